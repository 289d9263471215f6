"""The interface of all trainers for callbacks: methods, events, and the handler that calls callbacks.

The docstring of ``Trainer`` shows when each event fires in ``train()``. ``evaluate()`` fires ``on_prepare_start``, then
the events of an evaluation epoch between ``on_evaluation_run_start`` and ``on_evaluation_run_end``. ``predict()`` fires
``on_prepare_start``, ``on_prediction_run_start``, ``on_prediction_step_end`` after each batch, and
``on_prediction_run_end``.

``on_training_state_request`` and ``on_preemption`` fire after the update at which all processes know about the request;
``on_training_state_save`` fires before a training state is captured, and ``on_training_state_saved`` on all processes
after the same update, when the state is on the disk. A run that resumes from a training state fires the
start event of the run again, and then restores the state of each callback. If the run resumes mid-epoch, the start
event of the epoch and ``on_train_steps_skipped`` also fire before the states are restored.

``StopTrainingError`` fires ``on_stop_training_error``, and then the last event of the run still fires. Any other
exception fires ``on_exception`` and is raised by ``train()`` or ``evaluate()``; the last event does not fire.

If a callback raises ``StopTrainingError``, the other callbacks are still called for this event. With one process, only
the events that end the run follow. (A ``NonFiniteLossError`` ends even this event at once, so that the loss is not
reported or saved.) With several processes, events continue until all processes know about the stop, because a callback
that gathers would otherwise wait for the process that stopped.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from signal import Signals
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeAlias, cast, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset
from typing_extensions import TypeVar, override

from pa_core import _accelerate, distributed
from pa_core._attributes import temporarily
from pa_core._tensors import is_sharded_module, missing_methods, unwrap_model
from pa_core._tqdm import bars_hidden
from pa_core.checkpoints import checkpoint
from pa_core.checkpoints.checkpoint import save_safetensors
from pa_core.checkpoints.loading import has_weights_of, load_checkpoint_into
from pa_core.data.custom_loader import innermost, is_keyed
from pa_core.data.epoch_lengths import EpochLengths
from pa_core.data.evaluation_sets import EvaluationSet, EvaluationSets
from pa_core.distributed import processes
from pa_core.distributed.comparison import advice_for_parted
from pa_core.engine.added_modules import AddedModule
from pa_core.engine.callback_checks import (
    implements,
    require_callback,
    require_iterable,
    warn_of_half_a_state,
    warn_of_unknown_events,
    with_known_arguments,
)
from pa_core.engine.exchange import Exchange, check_exchange, create_exchange
from pa_core.engine.fingerprint import fingerprint
from pa_core.engine.model_description import describe_model
from pa_core.engine.setup import RunState, Setup
from pa_core.engine.subclasses import check_subclass
from pa_core.errors import ArgumentTypeError, ConfigurationError, as_configuration_error
from pa_core.run_config import TrainerRunConfig
from pa_core.steps import compatibility, input_checks
from pa_core.tracking import InMemoryRunHistory, LossTracker, MetricValue, RunHistory, StepMeans
from pa_core.training_state import initial_hyperparameters
from pa_core.training_state.checkpointer import StateRequest
from pa_core.training_state.downloaded_states import download
from pa_core.training_state.progress import Progress, Stage
from pa_core.training_state.saved_runs import find_saved_run
from pa_core.types import (
    LossFunction,
    SchedulerFactory,
    SchedulerLike,
    SizedIterable,
    StatefulScheduler,
    SupportsStateDict,
    TensorsT,
)
from pa_core.user_warnings import warn_user, write_or_warn
from pa_distributed import HangDetector, print_errors_once, rank_zero_first

TrainerT_contra = TypeVar("TrainerT_contra", bound="AnyTrainer", default="AnyTrainer", contravariant=True)
BatchT_contra = TypeVar("BatchT_contra", default=Any, contravariant=True)
OutputT_contra = TypeVar("OutputT_contra", default=Any, contravariant=True)
_TrainerT = TypeVar("_TrainerT", bound="AnyTrainer", default="AnyTrainer")
_P = ParamSpec("_P")
_R = TypeVar("_R")


class AnyTrainer(ABC):
    """The common base of ``Trainer`` and ``Run``, for annotations of callbacks and helper functions.

    Annotate a function or a callback event with this class if it works with any trainer. Do not construct it or derive
    from it: derive from ``Trainer``, or use ``Run`` for your own loop. Their docstrings explain the constructor's
    arguments and their defaults.

    Args:
        model: The module to train.
        loss_func: The loss function; None if the model or your step computes the loss.
        optimizer: The optimizer; None for a trainer that only evaluates.
        callbacks: Callbacks, as classes or instances, in the order in which their events are called.
        run_history: The history that records the metrics; None creates an ``InMemoryRunHistory``.
        mixed_precision: "no", "bf16" or "fp16"; None for the launcher's setting.
        cpu: True for the CPU; None for the launcher's setting.
        max_wait_seconds: The number of seconds that a process waits for another process before all of them print where
            they are and exit; None for the timeout of the process group.
        reproducible: "any_processes" for results that are bit-for-bit identical on any number of processes, or None.

    Attributes:
        model: The module being trained. During a run this may be the compiled module; use ``get_model()`` for the
            attributes of your class.
        loss_func: The loss function that was passed.
        optimizer: The optimizer that was passed, or that ``create_optimizer_fn`` returned.
        scheduler: The scheduler of the current run, or None.
        create_scheduler_fn: The function that was passed to ``train()``, or None.
        collate_fn: The function that was passed to ``train()`` or ``evaluate()``, or None.
        train_dataset: The dataset of the current or last training run, even if a ``DataLoader`` was passed; None before
            the first run.
        eval_dataset: The evaluation dataset, or None; with several evaluation sets, the set that is being evaluated or,
            between evaluations, the first set.
        train_dataloader: The loader of the current or last training run, None before the first run; a callback may
            replace it in ``on_prepare_start``.
        eval_dataloader: The evaluation loader, or None; a callback may replace it between epochs. With several
            evaluation sets it is the loader of ``eval_dataset``; see ``change_eval_dataloaders``.
        epoch_lengths: The numbers of steps and updates in each epoch of the current or last training run; None before
            the first run.
        run_history: The recorded metrics.
        run_config: The settings of the current or last run, a ``TrainerRunConfig``; None before the first run.
        callback_handler: The registered callbacks, a ``CallbackHandler``.
        gradient_norm: The norm of all gradients before clipping at the last update, as a tensor with one element on the
            device of the run; None unless the run clips by norm.
        resume_from: The path passed to ``train()`` from which the current or last run resumes; for a URL, the folder of
            downloaded states. None for a new run.
        preemptible: Whether a preemption can interrupt evaluation epochs between batches. A callback sets it on every
            process when a run starts, and each run begins with False.

    Raises:
        ArgumentTypeError: An argument has the wrong type, for example a class instead of an instance.
        ConfigurationError: An argument has a value that cannot work.
        UnsupportedConfigurationError: An earlier trainer of the process uses a different precision or device.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, Trainer, TrainerCallback
        >>> from pa_core.testing import make_regression
        >>> class PrintSamples(TrainerCallback):
        ...     def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
        ...         trainer.print(trainer.run_history.clock.samples, "samples")
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[PrintSamples])
        >>> trainer.train(make_regression(64), num_epochs=1)
        64 samples
    """

    model: nn.Module
    loss_func: LossFunction
    optimizer: Optimizer
    scheduler: StatefulScheduler | None
    create_scheduler_fn: Callable[[Optimizer], StatefulScheduler] | None
    collate_fn: Callable[[list[Any]], Any] | None
    train_dataset: Dataset[Any]
    eval_dataset: Dataset[Any] | None
    train_dataloader: SizedIterable
    eval_dataloader: SizedIterable | None
    epoch_lengths: EpochLengths
    run_history: RunHistory
    run_config: TrainerRunConfig
    callback_handler: CallbackHandler[Any]
    gradient_norm: Tensor | None
    resume_from: Path | None
    preemptible: bool
    _setup: Setup
    _session: RunState

    def __init__(
        self,
        model: nn.Module,
        loss_func: LossFunction | None,
        optimizer: Optimizer | None,
        callbacks: Iterable[CallbackLike[Self]],
        run_history: RunHistory | None,
        *,
        mixed_precision: str | None,
        cpu: bool | None,
        max_wait_seconds: float | None,
        reproducible: str | None,
    ) -> None:
        self.model = model
        self.loss_func = cast("LossFunction", loss_func)
        self.optimizer = cast("Optimizer", optimizer)
        self.run_history = InMemoryRunHistory() if run_history is None else run_history
        self.eval_dataset = self.collate_fn = self.create_scheduler_fn = self.scheduler = None
        self.eval_dataloader = self.gradient_norm = self.resume_from = None
        # They have a value from the first run on, and their types ignore the time before.
        self.run_config = self.train_dataset = self.train_dataloader = self.epoch_lengths = cast("Any", None)
        self.preemptible = False
        is_default = type(self).create_accelerator is AnyTrainer.create_accelerator
        create = self._create_accelerator if is_default else self.create_accelerator  # messages name it
        accelerator, arguments = compatibility.create_accelerator(create, mixed_precision, cpu)
        processes.prepare_process(accelerator)
        with print_errors_once():  # from here on, the processes are connected
            input_checks.check_trainer_arguments(model, loss_func, optimizer)
            input_checks.check_reproducible(reproducible)
            with as_configuration_error():
                watch = HangDetector(max_wait_seconds, advise=advice_for_parted)
            self.callback_handler = self._create_callback_handler(callbacks)
        compatibility.require_usable(accelerator, arguments, model)
        self._setup = Setup(accelerator, watch, arguments, reproducible is not None)
        self._setup.exchange = exchange = self.create_exchange()
        self._session = RunState(self._setup, {}, EvaluationSets(), Progress())
        check_exchange(exchange, reproducible=reproducible is not None)

    @override
    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise an error, or warn, for methods that replace a private part of the loop, or that are never called."""
        super().__init_subclass__(**kwargs)
        trainer_class = next(base for base in cls.__mro__ if base.__module__.partition(".")[0] == "pa_core")
        if trainer_class not in (cls, AnyTrainer):
            check_subclass(cls, trainer_class, EVENT_NAMES)

    @override
    def __repr__(self) -> str:
        models, optimizers = (
            ", ".join(type(optimizer).__name__ for optimizer in named.values())
            for named in (self.named_models(), self.named_optimizers())
        )
        done = f"{self.num_epochs_completed} epochs and {self.num_updates_completed} updates completed"
        return f"<{type(self).__name__} of {models} with {optimizers or 'no optimizer'}: {done}>"

    # Factories that a subclass may override

    def create_accelerator(self) -> _accelerate.AcceleratorLike:
        """Create the ``accelerate.Accelerator`` of the trainer, which places and compiles models.

        The constructor calls it once; you need not call it yourself. Override it to pass other arguments to the
        Accelerator, for example a plugin that shards the model; ``super()`` need not be called. The precision and the
        device come from the trainer's ``mixed_precision`` and ``cpu`` arguments or the launcher's settings, even for an
        Accelerator that you create here, unless you pass other values. A different precision makes the constructor
        raise a ``ConfigurationError``. Of the trainer's attributes, only ``model``, ``loss_func``, ``optimizer`` and
        ``run_history`` exist when it is called.

        Returns:
            The Accelerator, which the trainer keeps for all of its runs.

        Example:
            >>> from accelerate import Accelerator, DistributedDataParallelKwargs
            >>> from pa_core import Trainer
            >>> class LargeBuckets(Trainer):
            ...     def create_accelerator(self):
            ...         return Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=100)])
        """
        return self._create_accelerator()

    def _create_accelerator(self) -> _accelerate.AcceleratorLike:
        """Create the Accelerator, under the name that ``create_accelerator`` has in pytorch-accelerated."""
        return _accelerate.create_accelerator()

    def create_exchange(self) -> Exchange:
        """Create the object that exchanges gradients between processes; override it for another communication library.

        The constructor calls it once, after ``create_accelerator``; you need not call it yourself. The default averages
        gradients over the processes, or adds them up in a fixed order if the trainer is ``reproducible``; ``super()``
        need not be called. ``pa_core.engine.exchange.Exchange`` describes the methods, and has an example for several
        processes.

        Returns:
            An instance of a class that derives from ``pa_core.engine.exchange.Alone``, which exchanges nothing. The
            constructor raises an ``ArgumentTypeError`` for any other object.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.engine.exchange import Alone, Exchange
            >>> class PrintUpdates(Alone):
            ...     def end_update(self) -> None:
            ...         print("the gradients of an update are complete")
            >>> class MyTrainer(Trainer):
            ...     def create_exchange(self) -> Exchange:
            ...         return PrintUpdates()
            >>> trainer = MyTrainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[])
        """
        place = partial(attrgetter("_session.resumption.seed", "_session.progress.updates"), self)
        return create_exchange(self._setup.accelerator, place, reproducible=self._setup.reproducible)

    def _create_callback_handler(self, callbacks: Iterable[CallbackLike[Self]]) -> CallbackHandler[Self]:
        """Create the handler of the callbacks; override this for a custom ``CallbackHandler``.

        Args:
            callbacks: The argument of the trainer.
        """
        return CallbackHandler(callbacks)

    def _create_run_config(
        self,
        per_device_batch_size: int,
        num_epochs: int,
        gradient_accumulation_steps: int,
        max_num_train_steps: int | None,
        gradient_clip_value: float | None,
    ) -> TrainerRunConfig:
        """Create the config of a run, from its arguments and its loaders.

        Args:
            per_device_batch_size: The number of samples in a batch of one process, if a loader does not have a batch
                size.
            num_epochs: The requested number of epochs; ``max_num_train_steps`` overrides it.
            gradient_accumulation_steps: The number of batches of one process in an update.
            max_num_train_steps: The number of updates after which the run ends; None for all of the epochs.
            gradient_clip_value: The bound on each element of the gradients.
        """
        sizes = per_device_batch_size, num_epochs, gradient_accumulation_steps
        return self._session.make_run_config(self, (*sizes, max_num_train_steps, gradient_clip_value))

    @property
    def num_updates_completed(self) -> int:
        """The number of optimizer updates that the current or last run has made so far; 0 before the first run.

        A resumed run also counts the updates before the interruption. In ``on_optimizer_step_end`` it includes the
        update that was just made.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> trainer.train(make_regression(32), num_epochs=2)  # four updates in an epoch
            >>> trainer.num_updates_completed
            8
        """
        return self._session.progress.updates

    @property
    def num_epochs_completed(self) -> int:
        """The number of epochs of the current or last run that have been trained and evaluated; 0 before the first run.

        It is a whole number. In ``on_training_run_epoch_end``, it includes the epoch that has just ended; in the
        earlier events of an epoch, it does not include this epoch. A resumed run also counts the epochs before the
        interruption.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> trainer.train(make_regression(32), num_epochs=2)
            >>> trainer.num_epochs_completed
            2
        """
        return self._session.progress.epochs

    @property
    def was_complete(self) -> bool:
        """Whether the current or last run resumed a run that was already complete, so that nothing was left to train.

        It is False before the first run. If it is True, only the first and the last event of the training are called:
        ``on_training_run_start`` and ``on_training_run_end``. Check it in callbacks that expect an epoch between these
        events.

        Example:
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class PrintLoss(TrainerCallback):
            ...     def on_training_run_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
            ...         if not trainer.was_complete:
            ...             trainer.print(trainer.run_history.get_latest_metric("train_loss_epoch"))
        """
        return self._session.resumption.was_complete

    # Evaluation sets

    @property
    def eval_name(self) -> str | None:
        """The name of the evaluation set that is being evaluated, for example "val".

        It is None between evaluations, and for a single dataset that was passed without a name. In
        ``create_eval_dataloader``, it is the name of the set whose loader is created.

        Example:
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class PrintNames(TrainerCallback):
            ...     def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
            ...         trainer.print(f"evaluated {trainer.eval_name}")
        """
        return self._session.eval_sets.name

    @property
    def eval_sets(self) -> Mapping[str, EvaluationSet]:
        """The evaluation sets of the current or last run by name; empty if ``eval_dataset`` is a single dataset.

        A read-only mapping in the order in which the sets were passed; empty before the first run. Each value is an
        ``EvaluationSet`` with ``dataset`` and ``every_n_epochs``, even if a dataset or a loader was passed.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> trainer = Trainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> _ = trainer.evaluate({"val": make_regression(8), "test": make_regression(8)})
            >>> list(trainer.eval_sets), trainer.eval_sets["val"].every_n_epochs
            (['val', 'test'], 1)
        """
        return MappingProxyType(self._session.eval_sets.given)

    @property
    def eval_dataloaders(self) -> Mapping[str, SizedIterable]:
        """The loaders of the evaluation sets by name; empty for a single dataset, whose loader is ``eval_dataloader``.

        The mapping has the same names as ``eval_sets``, and is empty before the first run. Read it to inspect the
        loaders; to replace them, call ``change_eval_dataloaders``.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> trainer = Trainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> _ = trainer.evaluate({"val": make_regression(16), "test": make_regression(8)})
            >>> {name: len(loader) for name, loader in trainer.eval_dataloaders.items()}
            {'val': 2, 'test': 1}
        """
        return self._session.eval_sets.loaders(self) if self.eval_sets else {}

    def change_eval_dataloaders(self, change: Callable[[SizedIterable], SizedIterable]) -> None:
        """Replace the loader of each evaluation set, or the only evaluation loader, from now on.

        You call it in callbacks, between evaluations, for example in ``on_prepare_start``, on every process. It has no
        effect in a run without evaluation.

        Args:
            change: A function that is called with each loader and returns its replacement, an iterable with a length;
                it may return the same loader.

        Example:
            >>> from pa_core import AnyTrainer, LimitBatchesCallback, TrainerCallback
            >>> class EvaluateTwoBatches(TrainerCallback):
            ...     def on_prepare_start(self, trainer: AnyTrainer, **kwargs: object) -> None:
            ...         trainer.change_eval_dataloaders(LimitBatchesCallback(2).limited)
        """
        self._session.eval_sets.change_loaders(self, change)

    def eval_set_of_metric(self, metric_name: str) -> str | None:
        """Return the name of the evaluation set that a metric belongs to.

        You call it in callbacks that watch a metric. The set follows from the name alone, so the metric need not be
        recorded yet. To find out whether the set is evaluated in the current epoch, call ``is_evaluated_in_epoch``.

        Args:
            metric_name: The full name of the metric, for example "eval_val_loss_epoch".

        Returns:
            The name of the set, for example "val"; None if the metric belongs to no set, or the run has a single
            evaluation dataset.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> trainer = Trainer(torch.nn.Linear(4, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> _ = trainer.evaluate({"val": make_regression(8), "test": make_regression(8)})
            >>> trainer.eval_set_of_metric("eval_val_loss_epoch"), trainer.eval_set_of_metric("train_loss_epoch")
            ('val', None)
        """
        return self._session.eval_sets.set_of_metric(metric_name)

    def is_evaluated_in_epoch(self, metric_name: str) -> bool:
        """Return whether a metric can get a new value in the current epoch.

        You call it in callbacks that watch a metric. If the evaluation set of the metric is not due in this epoch (see
        ``EvaluationSet``), the latest value is from an earlier epoch, and the callback should skip this epoch, as
        ``SaveBestModelCallback`` does.

        Args:
            metric_name: The full name of the metric, for example "eval_val_loss_epoch".

        Returns:
            False if the metric belongs to an evaluation set that is not evaluated in this epoch; otherwise True, even
            for a metric that belongs to no set.

        Example:
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class PrintScore(TrainerCallback):
            ...     def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
            ...         if trainer.is_evaluated_in_epoch("eval_test_loss_epoch"):
            ...             trainer.print(trainer.run_history.get_latest_metric("eval_test_loss_epoch"))
        """
        name = self.eval_set_of_metric(metric_name)
        return name is None or name in self._eval_names_of_epoch()

    def _eval_names_of_epoch(self) -> list[str | None]:
        """Return the sets to evaluate after the current epoch; between epochs and in ``evaluate()``, all sets."""
        epoch = self._session.progress.epoch_under_way
        if epoch is None:
            return self._session.eval_sets.due(0, is_last=True)
        config = self.run_config
        is_last = epoch + 1 >= config.num_epochs or self._session.progress.updates == config.max_num_train_steps
        return self._session.eval_sets.due(epoch + 1, is_last=is_last)

    # Ranks, and functions that only some processes run

    @property
    def num_processes(self) -> int:
        """The total number of processes that train together, across all machines; 1 without a launcher.

        It does not change after the construction of the trainer. Multiply the batch size of one process by it to get
        the number of samples on all processes.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[], cpu=True)
            >>> trainer.num_processes  # without a launcher
            1
        """
        return self._setup.accelerator.num_processes

    @property
    def process_index(self) -> int:
        """The rank of this process among all processes of the run, a whole number from 0 to ``num_processes - 1``.

        It is 0 without a launcher. To check for 0, use ``is_main_process``. The rank on each machine is
        ``local_process_index``.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[], cpu=True)
            >>> trainer.process_index  # without a launcher
            0
        """
        return self._setup.accelerator.process_index

    @property
    def local_process_index(self) -> int:
        """The rank of this process among the processes of its machine, from 0; usually the number of its GPU.

        It is a whole number, and 0 without a launcher. The rank over all machines is ``process_index``.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[], cpu=True)
            >>> trainer.local_process_index  # without a launcher
            0
        """
        return self._setup.accelerator.local_process_index

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process of rank zero, for work that happens once in the whole run.

        It is True on exactly one process of the run, and always True without a launcher. Check it before you write a
        file on a shared disk. Code that only this process runs must not communicate with other processes, because they
        do not take part.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.is_main_process  # without a launcher
            True
        """
        return self._setup.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process on its machine, for work that happens once on each machine.

        It is True on exactly one process of each machine, and always True without a launcher. Check it before you write
        a file on the local disk, or print; ``trainer.print`` already prints once on each machine. Code that only these
        processes run must not communicate with other processes.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.is_local_main_process  # without a launcher
            True
        """
        return self._setup.is_local_main_process

    def wait_for_everyone(self) -> None:
        """Wait until all processes have called this, for example before they read a file that one of them writes.

        Every process must call it. With one process, it returns at once. A process that waits longer than
        ``max_wait_seconds`` prints where each process is, and all of them exit.

        Raises:
            OtherProcessError: Another process has ended, or this was called in a function that the other processes do
                not run, for example a function decorated with ``on_main_process``, so this process would wait for them
                forever.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.on_main_process(print)("written by rank zero")
            written by rank zero
            >>> trainer.wait_for_everyone()  # now all processes can read it
        """
        processes.wait_for_all("wait_for_everyone()")

    def on_main_process(self, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        """Decorate a function so that only rank zero runs it; the other processes return None at once.

        It does not wait, so the function may be called anywhere, even on only some of the processes. Use
        ``world_process_zero_only`` for results that the others need before they continue, and ``on_local_main_process``
        for work on each machine.

        Args:
            function: The function to decorate. It must not communicate with other processes, because they do not take
                part.

        Returns:
            A function with the same arguments; its result is None on all processes except rank zero.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> @trainer.on_main_process
            ... def describe(loss: float) -> str:
            ...     return f"loss {loss}"
            >>> describe(0.5)
            'loss 0.5'
        """
        return processes.run_if(self.is_main_process, function)

    def on_local_main_process(self, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        """Decorate a function so that only the first process of each machine runs it; the others return None at once.

        Use it for files on the local disk of each machine. It does not wait, so the function may be called anywhere,
        even on only some of the processes; ``local_process_zero_only`` does wait.

        Args:
            function: The function to decorate. It must not communicate with other processes.

        Returns:
            A function with the same arguments; its result is None on the other processes.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> @trainer.on_local_main_process
            ... def describe(loss: float) -> str:
            ...     return f"loss {loss}"
            >>> describe(0.5)
            'loss 0.5'
        """
        return processes.run_if(self.is_local_main_process, function)

    def on_process(self, *, process_index: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
        """Return a decorator for a function that only one process runs; the other processes return None at once.

        Use it for work that should not burden rank zero, for example drawing a sample on the last process. The
        decorated function does not wait, so it may be called anywhere. With a single process, the function is called no
        matter which rank is given, so that the same script works.

        Args:
            process_index: The rank of the process, from 0; for example ``trainer.num_processes - 1`` for the last
                process.

        Returns:
            A decorator. The decorated function has the same arguments; its result is None on the other processes.

        Raises:
            ConfigurationError: There are several processes, and none has this rank.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> @trainer.on_process(process_index=trainer.num_processes - 1)
            ... def describe(loss: float) -> str:
            ...     return f"loss {loss}"
            >>> describe(0.5)
            'loss 0.5'
        """
        if self.num_processes > 1 and process_index not in range(self.num_processes):
            raise ConfigurationError(
                f"on_process(process_index={process_index!r}) would run on none of {self.num_processes} processes. "
                f"Choose one of 0 to {self.num_processes - 1}."
            )
        return partial(processes.run_if, process_index == self.process_index or self.num_processes == 1)

    def main_process_first(self) -> processes.BlockOrDecorator:
        """Let rank zero run a block first; all other processes run it afterwards.

        Use it for data that one process prepares on a shared disk, where the others then find it. For local disks, use
        ``local_main_process_first``. Every process must enter the block. The others wait until rank zero has left it,
        even if an exception ends it; only rank zero raises this exception.

        Returns:
            A context manager, which can also decorate a function.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with trainer.main_process_first():
            ...     print("downloaded once to a shared disk, then read by all")
            downloaded once to a shared disk, then read by all
        """
        return rank_zero_first()

    def local_main_process_first(self) -> processes.BlockOrDecorator:
        """Let the first process of each machine run a block first; the others on the machine run it afterwards.

        Use it for data that is prepared on the local disk of each machine; for a shared disk, use
        ``main_process_first``. ``pa_core.local_process_zero_first`` does the same without a trainer. Every process must
        enter the block. The others wait until the first process of their machine has left it, even if an exception ends
        it; only that process raises this exception.

        Returns:
            A context manager, which can also decorate a function.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with trainer.local_main_process_first():
            ...     print("unpacked once on each machine, then read by all")
            unpacked once on each machine, then read by all
        """
        return rank_zero_first(local=True)

    @property
    def is_sharded(self) -> bool:
        """Whether the model is split over the processes (FSDP), or will be when the run starts.

        If it is True, the parameters are ``DTensor`` objects during a run, and each process holds only a part of their
        values. Every process must then take part when the model is called, saved or gathered, so do not do this in code
        that only rank zero runs.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.is_sharded
            False
        """
        return (self._setup.sharding is not None and self.num_processes > 1) or is_sharded_module(self.get_model())

    # Precision and device

    @property
    def device(self) -> torch.device:
        """The device that this process computes on, for example ``torch.device("cuda", 0)``.

        It is known after construction, and does not change. Batches are already on it in a step; create other tensors
        for a step with ``device=trainer.device``.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[], cpu=True)
            >>> torch.zeros(2, device=trainer.device).device
            device(type='cpu')
        """
        return self._setup.device

    @property
    def mixed_precision(self) -> str:
        """The mixed precision of the model's forward pass, a string: "no", "bf16" or "fp16".

        It is "no" if the model computes in the precision of its weights, and if "fp16" was requested on a CPU, where it
        has no effect. It follows from the constructor's argument or the launcher's setting, and does not change.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[], cpu=True)
            >>> trainer.mixed_precision
            'no'
        """
        return _accelerate.computed_precision(self._setup.accelerator)

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context in which torch computes in the mixed precision of the trainer.

        Calls of ``trainer.model(...)`` already do so. Use the context for other computations in a step, for example in
        a method of the model other than ``forward``, in a loss function with layers, or in a second module. Without
        mixed precision the context has no effect.

        Returns:
            A context manager for a ``with`` statement.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with trainer.autocast():
            ...     product = torch.ones(2, 2, device=trainer.device) @ torch.ones(2, 2, device=trainer.device)
            >>> product.dtype  # torch.bfloat16 with mixed_precision="bf16"
            torch.float32
        """
        return self._setup.accelerator.autocast()

    # The course of a run

    def dry_run(self, *data: object) -> AbstractContextManager[None]:
        """Return a context that undoes all effects of the runs within it, for example of a search for a learning rate.

        Call ``train()`` as often as you like within the context. Afterwards everything is restored in place:
        parameters, buffers and gradients, optimizers, schedulers, history, random numbers, and all other objects that a
        step reaches: attributes and containers, tensors and arrays, random generators of your script, globals,
        closures, hooks, and samples that are changed when they are fetched. This takes memory for a copy of all of
        them. Objects that cannot be restored (Python generators, and iterators that do not expose their position) are
        named in a warning beforehand. Files that steps write are not removed, and changes to objects that do not expose
        their state, for example objects of a C extension, are not undone. If there are more than 300,000 objects, some
        of them are left out, for example items of a list of a million samples.

        Args:
            *data: Datasets, loaders and other arguments that you will pass to ``train()``, so that changes to them are
                also undone.

        Returns:
            A context manager for a ``with`` statement.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> samples = make_regression(64)
            >>> with trainer.dry_run(samples):
            ...     trainer.train(samples, num_epochs=1)
            ...     trial_loss = trainer.run_history.get_latest_metric("train_loss_epoch")
            >>> trainer.num_updates_completed
            0
        """
        return self._session.dry_run(self, data)

    def enter_run_context(self, context: AbstractContextManager[_R]) -> _R:
        """Enter a context that is exited when the run ends, no matter how it ends.

        You call it in callbacks, for example for a log file or a profiler. The context stays open until the last events
        and all writes of the run, including those in the background, are over. The context that is entered last is
        exited first, with the exception that ends the run, if any.

        Args:
            context: A context manager that has not been entered yet.

        Returns:
            The result of entering the context, which ``with context as result`` would bind.

        Raises:
            ConfigurationError: There is no run in progress.

        Example:
            >>> import torch
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class Profile(TrainerCallback):
            ...     def on_training_run_start(self, trainer: AnyTrainer, **kwargs: object) -> None:
            ...         self.profiler = trainer.enter_run_context(torch.profiler.profile())
        """
        if self._session.running is None:
            raise ConfigurationError(
                "enter_run_context(...) was called outside of a run. Call it in on_training_run_start, or use a with "
                "statement around train()."
            )
        return self._session.contexts.enter_context(context)

    # The model

    def get_model(self, keep_torch_compile: bool = True) -> nn.Module:
        """Return the model without wrappers, for example to export it or to read attributes of your class.

        You can call it at any time, even during a run. After a run, the model is in the same mode as before the run,
        usually training mode, so call ``get_model().eval()`` before you predict with the model or export it. If the
        model is sharded, its parameters are ``DTensor`` objects; ``save_model`` writes whole tensors.

        Args:
            keep_torch_compile: By default (True), a compiled model stays compiled, so that calls stay fast. False
                returns the original, whose state dict has the names of your class.

        Returns:
            The module that you passed to the trainer, not a copy; within a run, its compiled version if accelerate
            compiles it and ``keep_torch_compile`` is True.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> model = torch.nn.Linear(1, 1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.get_model() is model
            True
        """
        return unwrap_model(self.model, keep_torch_compile=keep_torch_compile)

    def add_module(
        self,
        name: str,
        module: nn.Module,
        optimizer: Optimizer | None = None,
        create_scheduler_fn: SchedulerFactory[SchedulerLike] | None = None,
    ) -> None:
        """Train another module together with the model, with the loss that ``calculate_train_batch_loss`` returns.

        You call it after the construction of the trainer and before ``train()``, on every process. A run places the
        module on the device, and runs it in the precision of the model. The optimizer of the module is stepped, and its
        gradients are clipped, cleared and, with several processes, averaged, together with the gradients of the model.
        The module is part of training states and checkpoints under its name. A module with a separate loss and separate
        updates, as in a GAN, needs a ``Run``.

        A module without an optimizer, for example a teacher or the average of a model, is placed on the device and put
        into evaluation mode. If steps change it, its values are also part of training states, but not of checkpoints.

        Args:
            name: The name of the module in ``trainer.modules``, in training states and in checkpoints.
            module: The module, which must not share parameters with the model.
            optimizer: An optimizer of the module's parameters. None, the default, means that the trainer's optimizer
                has these parameters, or that the module is not trained.
            create_scheduler_fn: A function that is called with this optimizer and returns its scheduler, which is
                stepped together with the trainer's scheduler. None, the default, keeps the learning rate of
                ``optimizer``.

        Raises:
            ConfigurationError: The name is taken; the module is a part of the model; the optimizer has parameters of
                another module; no optimizer has the parameters of a module in training mode; or a run is in progress.
            ArgumentTypeError: An argument has the wrong type.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> model, teacher = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> trainer.add_module("teacher", teacher.eval())
            >>> trainer.modules["teacher"] is teacher, [*trainer.named_models()]
            (True, ['model'])
        """
        added = AddedModule(module, optimizer, create_scheduler_fn)
        self._setup.added.add(name, added, self.get_model(), self.optimizer)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The modules that ``add_module`` has added, by name; steps call them in addition to ``trainer.model``.

        A mapping from names to modules; empty without added modules. Within a run, the modules are on the device, and
        compiled if accelerate compiles them. Call them in ``calculate_train_batch_loss``.

        Example:
            >>> from pa_core import Trainer
            >>> class Distillation(Trainer):
            ...     def calculate_train_batch_loss(self, batch):
            ...         output = super().calculate_train_batch_loss(batch)
            ...         wanted = self.modules["teacher"](batch[0]).detach()
            ...         output["loss"] = output["loss"] + (output["model_outputs"] - wanted).square().mean()
            ...         return output
        """
        return self._setup.added.called()

    def named_models(self) -> dict[str, nn.Module]:
        """Return the trained modules of the run by name: "model", and the added modules that have an optimizer.

        You call it in callbacks that change or save weights. Training states use the same names. Modules without an
        optimizer, for example a teacher, are in ``untrained_modules()``.

        Returns:
            A new dictionary of the modules without wrappers, not compiled.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> model = torch.nn.Linear(1, 1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
            >>> trainer.named_models()["model"] is model
            True
        """
        return {"model": self.get_model(keep_torch_compile=False), **self._setup.added.trained(self.optimizer)}

    def untrained_modules(self) -> dict[str, nn.Module]:
        """Return the added modules that no optimizer trains, for example a teacher, by name.

        You call it in callbacks that need all modules of a run; ``named_models`` returns the others. Untrained modules
        are part of training states if steps change them, but not of checkpoints.

        Returns:
            A new dictionary of the modules without wrappers, not compiled; empty without such modules.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> model, teacher = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> trainer.add_module("teacher", teacher.eval())
            >>> list(trainer.untrained_modules())
            ['teacher']
        """
        return self._setup.added.untrained(self.optimizer)

    def named_optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizers of the run by name: its first as "optimizer", and the optimizers of added modules.

        You call it in callbacks that read or change learning rates. The optimizer of an added module has the name of
        the module. Training states use the same names.

        Returns:
            A new dictionary of optimizers; empty for a trainer that only evaluates, and before ``create_optimizer_fn``
            was called, which happens when the first training run begins.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> model = torch.nn.Linear(1, 1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
            >>> trainer.named_optimizers()["optimizer"].param_groups[0]["lr"]
            0.1
        """
        optimizer = cast("Optimizer | None", self.optimizer)
        return ({} if optimizer is None else {"optimizer": optimizer}) | self._setup.added.optimizers

    def named_schedulers(self) -> dict[str, StatefulScheduler]:
        """Return the schedulers of the run by name: "scheduler", and the schedulers of added modules.

        You call it in callbacks, in ``on_training_run_start`` or later. The scheduler of an added module has the name
        of the module. Training states use the same names.

        Returns:
            A new dictionary of schedulers; empty without schedulers, and before a run has created them.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> model = torch.nn.Linear(1, 1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
            >>> trainer.named_schedulers()  # before a run
            {}
        """
        own: dict[str, StatefulScheduler] = {} if self.scheduler is None else {"scheduler": self.scheduler}
        return own | self._setup.added.schedulers

    # Metrics, gathering and descriptions

    @property
    def loss_tracker(self) -> LossTracker:
        """The mean loss over the samples that this process has seen in the current training or evaluation epoch.

        A ``LossTracker``: read ``trainer.loss_tracker.average``, a float, in a callback. Reading it waits for the
        device. The average is NaN before the first batch of an epoch, and keeps its value until the next epoch or
        evaluation begins. The mean over all processes is recorded at the end of the epoch, for example as
        ``train_loss_epoch``.

        Example:
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class PrintLoss(TrainerCallback):
            ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
            ...         if update % 100 == 0:
            ...             trainer.print("loss so far:", trainer.loss_tracker.average)
        """
        return self._session.means.losses

    @property
    def step_means(self) -> StepMeans:
        """The means of the logged values, by name, over the samples that this process has seen in the current epoch.

        A dictionary from names without prefix to ``LossTracker`` objects: ``trainer.step_means["kl"].average`` is a
        float, and reading it waits for the device. It contains the names that ``log`` was called with in this epoch.
        The means over all processes are recorded at the end of the epoch, for example as ``train_kl_epoch``.

        Example:
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class PrintDivergence(TrainerCallback):
            ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
            ...         if update % 100 == 0 and "kl" in trainer.step_means:
            ...             trainer.print("divergence so far:", trainer.step_means["kl"].average)
        """
        return self._session.means

    def log(self, name: str, value: MetricValue) -> None:
        """Log a value of the current step, and record its mean over all samples of the epoch, on all processes.

        You call it in ``calculate_train_batch_loss`` or ``calculate_eval_batch_loss``, or in a callback: from
        ``on_train_step_start`` to ``on_optimizer_step_end``, or from ``on_eval_step_start`` to ``on_eval_step_end``.
        The trainer records the mean at the end of the epoch, together with the loss: as ``train_NAME_epoch``,
        ``eval_NAME_epoch`` (``eval_SET_NAME_epoch`` for a named evaluation set) or, in ``evaluate()``,
        ``evaluation_NAME``. Until then, the progress bar shows the mean so far. A tensor stays on its device, and is
        not read before the epoch ends. For a value that is not a mean over samples, call ``run_history.update_metric``.

        A value is weighted by the ``batch_size`` of its step, even if the loss is a mean over other items. Steps that
        do not log a name are left out of its mean.

        Args:
            name: The name of the metric without prefix and suffix, for example "kl". It consists of letters, digits and
                underscores, must not be "loss", and can be logged once in each step.
            value: A number, or a tensor with one element: a mean over the samples of the step on this process.

        Raises:
            ConfigurationError: There is no step in progress, the name cannot be used or was already logged in this
                step, or the value is not a single number.

        Example:
            >>> import torch
            >>> from pa_core import AnyTrainer, Trainer, TrainerCallback
            >>> from pa_core.testing import make_regression
            >>> class LogSize(TrainerCallback):
            ...     def on_train_step_end(self, trainer: AnyTrainer, batch, batch_output, **kwargs: object) -> None:
            ...         trainer.log("size", len(batch[0]))
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[LogSize])
            >>> trainer.train(make_regression(32), num_epochs=1)
            >>> trainer.run_history.get_latest_metric("train_size_epoch")
            8.0
        """
        self._session.means.log(name, value)

    def gather(self, tensor: TensorsT, padding_value: float | None = None, *, with_gradient: bool = False) -> TensorsT:
        """Return the tensors of all processes, concatenated along the first dimension; every process must call this.

        You call it for metrics that are not means over samples, for example an area under a curve. It waits for the
        other processes. Means need no gathering; call ``log`` for them. ``pa_core.distributed.gather`` does the same
        without a trainer, and ``pa_core.gather_objects`` gathers strings and other objects.

        Args:
            tensor: A tensor on the device of the run, or a nested list, tuple or mapping of tensors. The first
                dimension may differ between processes; a tensor without dimensions counts as a row.
            padding_value: Needed only if other dimensions also differ; they are then padded with this value to the
                largest size on any process. Rows that consist only of this value are removed, even rows of your data:
                with 0, each label 0 would be removed. So choose a value that your data does not contain. A process
                whose rows are all padding may have a tensor with a different number of dimensions. None, the default,
                pads nothing.
            with_gradient: Whether gradients flow through the result to the rows of each process, which a loss over the
                samples of all processes needs; each process then has to use the result in its loss. False, the default,
                detaches the result, because metrics need no gradients.

        Returns:
            The same structure, with the rows of all processes in the order of the ranks, on the device of this process.
            With one process, these are the rows of ``tensor``.

        Raises:
            ArgumentTypeError: ``tensor`` contains an object that is neither a tensor nor a container of tensors; a
                ``TypeError``.
            ConfigurationError: The tensors of the processes do not fit together; or this was called in a step of a
                reproducible run, in which processes have different numbers of steps.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[], cpu=True)
            >>> trainer.gather({"score": torch.tensor([0.5, 1.0])})  # on one process
            {'score': tensor([0.5000, 1.0000])}
        """
        self._session.require_between_steps("gather(...)")
        return distributed.gather(tensor, padding_value, with_gradient=with_gradient)

    def describe_run(self) -> str:
        """Return a line about the run: processes, backend, device and precision; include it in bug reports and logs.

        You can call it at any time. The line names the precision of the weights unless it is float32, because a model
        that is trained in pure bfloat16 loses small updates. It does not communicate.

        Returns:
            A single line, without a line break.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[], cpu=True)
            >>> trainer.describe_run()
            '1 process, device cpu, precision fp32'
        """
        return _accelerate.describe_processes(self._setup.accelerator, self.named_models().values())

    def describe_model(self, depth: int = 2) -> str:
        """Return a table of the modules that the run trains or calls, with parameter counts, memory and dtypes.

        You call it to see where the parameters are and which are frozen; print it with ``trainer.print``, once on each
        machine. ``pa_core.describe_model`` returns the same table for any model. The memory column counts parameters
        and buffers, but not gradients or optimizer states. It does not communicate.

        Args:
            depth: The number of levels of modules below each model; 0 for the models alone. The default, 2, fits on a
                screen for most models.

        Returns:
            A string of several lines, with the columns module, type, parameters, trainable (parameters), memory and
            dtype.

        Raises:
            ConfigurationError: ``depth`` is not a whole number of at least 0.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(64, 10), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.print(trainer.describe_model())
            module  type    parameters  trainable    memory  dtype
            model   Linear         650        650  2.54 KiB  float32
        """
        return describe_model({**self.named_models(), **self.modules}, depth)

    @property
    def reproducible(self) -> bool:
        """Whether the trainer's results are bit-for-bit identical on any number of processes.

        True if the trainer was constructed with ``reproducible="any_processes"``, otherwise False. It does not change.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[], cpu=True)
            >>> trainer.reproducible
            False
        """
        return self._setup.reproducible

    def fingerprint(self) -> str:
        """Return a hash of the results of a run, to compare runs bit for bit; every process must call this.

        You call it after a run, or between updates in a callback. Results are the weights and buffers of all models and
        added modules, the states of optimizers and schedulers, and the recorded metrics without their times. Runs whose
        results are bit-for-bit identical have the same hash, no matter on which devices and on how many processes they
        ran. The buffers of models are taken from rank zero, as in training states; in a reproducible run, all processes
        must have the same buffers. Buffers that belong to each process separately, for example the queue of an
        untrained added module, are included from all processes.

        Returns:
            A string of 16 hexadecimal digits, the same on every process.

        Raises:
            RanksDifferError: The results are not the same on all processes.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> model = torch.nn.Linear(1, 1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), None, callbacks=[])
            >>> before = trainer.fingerprint()
            >>> _ = torch.nn.init.ones_(model.weight)
            >>> trainer.fingerprint() == before
            False
        """
        return fingerprint(
            self,
            shares_buffers=self._session.shares_buffers,
            requires_same_buffers=self._session.exchange.is_exact,
        )

    def print(self, *args: object, **kwargs: Any) -> None:
        """Print once on each machine, without breaking progress bars; the other processes do nothing.

        You call it in callbacks and steps in place of ``print``. It does not wait for other processes. If standard
        output can no longer be written to, for example because a pipe was closed, a warning is shown and the run
        continues.

        Args:
            *args: The objects to print.
            **kwargs: Arguments of the ``print`` function, for example ``sep`` or ``file``.

        Raises:
            OSError: A ``file`` that you passed cannot be written to.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.print("epoch", 3)
            epoch 3
        """
        if self._setup.is_local_main_process:
            with bars_hidden():
                line = partial(print, *args, **kwargs)
                line() if kwargs.get("file") is not None else write_or_warn(line)

    @property
    def is_padding_batch(self) -> bool:
        """Whether the current batch is padding, with the weight 0, because only other processes still have samples.

        It is always False outside of a step and with one process. A padding batch is a copy of another process's batch,
        so that all processes call the model the same number of times; its loss is ignored. In a ``Trainer``, it occurs
        only with a sharded model. Check it in a module that counts its calls or its samples.

        Example:
            >>> from pa_core import Trainer
            >>> class CountsSamples(Trainer):
            ...     num_samples = 0
            ...     def calculate_train_batch_loss(self, batch):
            ...         if not self.is_padding_batch:
            ...             self.num_samples += len(batch[0])
            ...         return super().calculate_train_batch_loss(batch)
        """
        return self._session.is_padding_batch

    @abstractmethod
    def run_evaluation_epoch(self, *, is_intermediate: bool = False, eval_names: Collection[str] | None = None) -> None:
        """Evaluate ``eval_dataset`` in the middle of a training run, and record its metrics.

        You call it in callbacks, on every process, for example in ``on_optimizer_step_end``; the random numbers of the
        training are not changed. A ``Trainer`` evaluates after each epoch anyway. A ``Run`` raises an error, because
        you evaluate in its loop yourself.

        Args:
            is_intermediate: Whether the training epoch continues afterwards. If it does, metric names get the prefix
                ``intermediate_``, so that a curve with one value for each epoch is not mixed with other values, and the
                model is put back into training mode at the end. The default is False.
            eval_names: The names of the evaluation sets to evaluate. None, the default, evaluates the sets that are
                evaluated after the current epoch or, with ``is_intermediate``, after each epoch.

        Raises:
            ConfigurationError: The run has no evaluation dataset, or no evaluation set with such a name; or this is a
                ``Run``.

        Example:
            >>> import torch
            >>> from pa_core import AnyTrainer, Trainer, TrainerCallback
            >>> from pa_core.testing import make_regression
            >>> class EvaluateOften(TrainerCallback):
            ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
            ...         if update % 4 == 0:
            ...             trainer.run_evaluation_epoch(is_intermediate=True)
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[EvaluateOften])
            >>> trainer.train(make_regression(64), num_epochs=1, eval_dataset=make_regression(8))
            >>> trainer.run_history.count_metric_values("intermediate_eval_loss_epoch")
            2
        """

    # Checkpoints and training states

    @checkpoint.rejecting_ambiguous_flag
    def save_checkpoint(
        self,
        save_path: str | Path,
        checkpoint_kwargs: dict[str, Any] | None = None,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        save_per_node: bool = True,
        *,
        trainable_only: bool = False,
    ) -> None:
        """Write the weights and the states of the optimizer and the scheduler to a file, atomically.

        You call it to keep a model, for example the best model of a run, that you will load with ``load_checkpoint``.
        To continue a run, use ``SaveTrainingStateCallback`` instead; to export the weights to other programs, use
        ``save_model``. Every process may call this; if the model is sharded, every process must. The file of a sharded
        model holds whole tensors, so a process that writes the file needs enough host memory for them, and a model that
        is not sharded can load the file.

        Args:
            save_path: The file, by convention ending in ``.pt``. An existing file is replaced, and missing folders are
                created.
            checkpoint_kwargs: Further entries by name: tensors, numbers, strings and containers of them. None, the
                default, adds nothing.
            save_optimizer: Whether the optimizer's state is included. The default, True, lets you continue the
                training; False makes the file smaller.
            save_scheduler: Whether the scheduler's state is included, if it exists. The default is True.
            save_per_node: True, the default, writes once on each machine, as local disks need; False writes once in the
                whole run, for a shared disk.
            trainable_only: Whether frozen parameters are left out, for example the base model of an adapter.
                ``load_checkpoint`` then does not change the frozen parameters of the model. The default is False.

        Raises:
            ConfigurationError: The fourth argument is False and was not passed by name (it was ``save_per_node`` in
                early releases of pytorch-accelerated); or, with ``trainable_only``, all parameters are frozen.
            CheckpointError: An entry could not be loaded again; an existing file is not changed.
            OSError: The file cannot be written.

        Example:
            >>> import tempfile, torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trainer.save_checkpoint(f"{folder}/model.pt", {"classes": ["cat", "dog"]})
            ...     trainer.load_checkpoint(f"{folder}/model.pt")["classes"]
            ['cat', 'dog']
        """
        trained = self._parts_of_checkpoint(save_optimizer, save_scheduler)
        if any(part.is_sharded for part in trained.values()):
            processes.wait_for_all("save_checkpoint() of a sharded model")
        writes = self.is_local_main_process if save_per_node else self.is_main_process
        with self._setup.optimizer_modes.evaluating():
            content = checkpoint.build_checkpoint(
                trained, checkpoint_kwargs, keep=writes, trainable_only=trainable_only
            )
            if writes:
                checkpoint.write_checkpoint(save_path, content)

    def load_checkpoint(
        self, checkpoint_path: str | Path, load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        """Load a ``save_checkpoint`` file into model, optimizer and scheduler; every process must call this.

        You call it before ``evaluate()`` or ``predict()``, or before a new ``train()`` that begins with these weights;
        to continue an interrupted run, pass ``resume_from`` to ``train()``. If the model is sharded, each process loads
        its own part, whether the saved model was sharded or not.

        Args:
            checkpoint_path: The file, which each process must be able to read.
            load_optimizer: Whether the optimizer's state is loaded, if the file has it. True, the default, continues
                with its momentum; pass False for a new optimizer.
            load_scheduler: Whether the scheduler's state is loaded, if the file and the trainer have it. The default is
                True.

        Returns:
            The whole content of the file, with its tensors on the CPU, including the ``checkpoint_kwargs`` by their
            names.

        Raises:
            CheckpointNotFoundError: There is no such file.
            CheckpointError: The file is damaged, needs code to be unpickled, or belongs to another model; or the file
                has an optimizer state, but ``create_optimizer_fn`` has not created the optimizer yet. Nothing was
                loaded.

        Example:
            >>> import tempfile, torch
            >>> from pa_core import Trainer
            >>> source, target = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Trainer(source, None, None, callbacks=[]).save_checkpoint(f"{folder}/model.pt")
            ...     content = Trainer(target, None, None, callbacks=[]).load_checkpoint(f"{folder}/model.pt")
            >>> torch.equal(source.weight, target.weight)
            True
        """
        self._setup.accelerator.wait_for_everyone()
        trained = self._parts_of_checkpoint(load_optimizer, load_scheduler)
        # Not on the device of the run, which may not have the memory for a second copy.
        content = checkpoint.read_checkpoint(
            checkpoint_path, torch.device("cpu"), mapped=any(part.is_sharded for part in trained.values())
        )
        if checkpoint.LOSS_FUNC not in trained and has_weights_of(self.loss_func, content):
            trained[checkpoint.LOSS_FUNC] = checkpoint.Trained(self.loss_func)
        optimizers = self.named_optimizers()
        with initial_hyperparameters.not_chosen_by_script(*optimizers.values()):
            load_checkpoint_into(
                content,
                trained,
                needs_optimizer=load_optimizer and (not optimizers or "optimizer" in optimizers),
                makes_optimizer=self._setup.makes_optimizer and not optimizers,
                source=checkpoint_path,
            )
        self._setup.optimizer_modes.train_again()
        return content

    def _parts_of_checkpoint(self, with_optimizers: bool, with_schedulers: bool) -> dict[str, checkpoint.Trained]:
        """Return the parts of a checkpoint: the model, and the modules trained with it, like the loss function."""
        optimizers = self._setup.added.optimizers if with_optimizers else {}
        schedulers = self._setup.added.schedulers if with_schedulers else {}
        own = checkpoint.Trained(
            self.get_model(keep_torch_compile=False),
            self.optimizer if with_optimizers else None,
            self.scheduler if with_schedulers else None,
        )
        beside = self._setup.added.trained(self.optimizer).items()
        added = {
            name: checkpoint.Trained(module, optimizers.get(name), schedulers.get(name)) for name, module in beside
        }
        loss_func = self.loss_func
        if isinstance(loss_func, nn.Module) and self._session.checkpointer.has_changed(loss_func):
            added[checkpoint.LOSS_FUNC] = checkpoint.Trained(loss_func)
        return {"model": own, **added}

    def save_model(
        self, save_directory: str | Path, max_shard_size: int | str = "5GB", *, trainable_only: bool = False
    ) -> None:
        """Export the weights as safetensors, for other programs; every process may call this, and the first writes.

        You call it after a run; ``save_checkpoint`` writes a file for ``load_checkpoint``, with the state of the
        optimizer. If the model is sharded, every process must call this, and the tensors are gathered one at a time.
        The file is ``model.safetensors``, whose keys are the names in ``get_model().state_dict()``.

        Args:
            save_directory: The folder for the files, which is created if it is missing.
            max_shard_size: The largest size of a file, as a number of bytes or a string. The default, ``"5GB"``, is
                accepted by model hubs. Larger weights are split into several files, with an index next to them.
            trainable_only: Whether frozen parameters are left out. Buffers are always included, because training may
                also change the buffers of frozen layers, for example the statistics of batch norm. The default is
                False.

        Raises:
            ConfigurationError: The folder is a file; or, with ``trainable_only``, all parameters are frozen.

        Example:
            >>> import os, tempfile, torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trainer.save_model(folder)
            ...     os.listdir(folder)
            ['model.safetensors']
        """
        model = self.get_model(keep_torch_compile=False)
        if is_sharded_module(model):
            processes.wait_for_all("save_model() of a sharded model")
        with self._setup.optimizer_modes.evaluating():
            save_safetensors(
                self._setup.accelerator, model, save_directory, max_shard_size, trainable_only=trainable_only
            )

    def save_training_state(
        self,
        output_dir: str | Path,
        checkpoint_kwargs: Mapping[str, Any] | None = None,
        *,
        asynchronous: bool = False,
        sequence: int = 0,
        on_saved: Callable[[Path], object] | None = None,
        keep_other_runs: bool = False,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        """Save the complete state of a run, so that ``train(resume_from=...)`` resumes it.

        ``SaveTrainingStateCallback`` does so regularly; you call it in your own callbacks, or after a run. Every
        process must call this, and the first process writes. Within a run, the state is captured as soon as all of its
        parts belong to the same update, after the events of the current update or the current epoch. After a run, it is
        the state of the complete run. If an exception ended the run between two updates, the run can be resumed from
        there.

        Args:
            output_dir: The directory of the state, which is written atomically. An existing state is replaced.
            checkpoint_kwargs: Further entries, tensors and plain values by name, which ``load_training_state`` returns.
                None, the default, adds nothing.
            asynchronous: Whether training continues while the state is written, from a copy in host memory. The
                default, False, waits.
            sequence: The number of the state among the states in a folder. A run that resumes from the folder uses the
                state with the highest number, so pass, for example, the update number. The default, 0, is enough for a
                single state.
            on_saved: A function that is called with the directory, on the process that writes, after the state is
                complete; in a thread if asynchronous. None, the default, calls nothing.
            keep_other_runs: Whether a state of another run at ``output_dir`` is kept. The new state then gets a
                different name, for example ``final_2``. The default, False, replaces it.
            on_error: ``"raise"``, the default, ends the run if a state cannot be written; ``"warn"`` warns, and
                continues without the state.

        Raises:
            ConfigurationError: Nothing has been trained yet.
            CheckpointError: An exception ended the run in the middle of an update, or with several processes, so that
                the run cannot be resumed from that point; or an object could not be loaded again, or the state could
                not be written. An existing state is kept. Within a run this is raised when the state is captured; if
                asynchronous, with the next state or when the run ends.

        Example:
            >>> import tempfile, torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> trainer.train(make_regression(16), num_epochs=2)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trainer.save_training_state(f"{folder}/final", {"note": "two epochs"})
            ...     trainer.load_training_state(f"{folder}/final")
            {'current_epoch': 3, 'note': 'two epochs'}
        """
        request = StateRequest(
            Path(output_dir).absolute(),
            checkpoint_kwargs or {},
            asynchronous,
            sequence,
            on_saved,
            keep_other_runs,
            on_error == "warn",
        )
        if self._session.running == "train" and self._session.checkpointer.ended_by is None:
            self._session.checkpointer.request(request)
        else:
            self._session.checkpointer.save(request, self, self._call_event)

    def load_training_state(self, input_dir: str | Path) -> dict[str, Any]:
        """Load the model, the optimizer and the scheduler of a training state, without resuming its run.

        You call it before ``evaluate()``, ``predict()`` or a new run, on every process. To continue the run, pass
        ``resume_from`` to ``train()`` instead.

        Args:
            input_dir: A training state, which is a directory, or a folder of states (the newest valid state is used).
                Either can be a URL in an object store, for example ``"s3://bucket/states"``.

        Returns:
            A dictionary of the ``checkpoint_kwargs`` of ``save_training_state``, and ``current_epoch``, the value of
            ``run_history.current_epoch``: 3 for a state that was saved after two epochs.

        Raises:
            CheckpointNotFoundError: There is no training state.
            CheckpointError: No state is valid, or it belongs to another model or optimizer.

        Example:
            >>> import tempfile, torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> trainer.train(make_regression(16), num_epochs=1)
            >>> trained = model.weight.detach().clone()
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trainer.save_training_state(folder)
            ...     _ = torch.nn.init.zeros_(model.weight)
            ...     trainer.load_training_state(folder)
            {'current_epoch': 2}
            >>> torch.equal(model.weight, trained)
            True
        """
        saved = find_saved_run(download(input_dir, {}, self.print), argument="input_dir")
        with initial_hyperparameters.not_chosen_by_script(*self.named_optimizers().values()):
            saved.restore_training(self, self._setup.accelerator.scaler)
        return {"current_epoch": saved.current_epoch, **saved.extras}

    def reserve_state_folder(self, folder: str | Path, *, upload_to: str | None = None) -> Path | None:
        """Keep other runs out of a folder until this run is over, and check that its states can be saved there.

        ``SaveTrainingStateCallback`` calls it when the run starts. Call it in your own callback that saves states,
        within a run and on every process, before the first state. The folder is created if it is missing. The call
        immediately raises an error for objects whose states could not be saved later; the states of optimizers are
        checked after their first update, in which most optimizers create them.

        A folder may hold states of several runs. The run keeps the name of the saved run only if it resumed from the
        newest state of that run in this folder. Otherwise, it gets a new name. Callbacks that remove old states remove
        only states of the run with this name, so a second run that resumes from an older state does not remove the
        newer states of the first run.

        Args:
            folder: The folder in which you will save the states.
            upload_to: The URL of a folder in an object store to which you send the states, for example
                ``"s3://bucket/states"``; any URL that fsspec supports. If the saved run has a newer state there, this
                run also gets a new name. None, the default, is for states that stay in ``folder``.

        Returns:
            On the first process, the path of the state from which the run continues, if the run keeps its name, so that
            a callback can count it among the states that it removes later; otherwise, and on other processes, None.

        Raises:
            ConfigurationError: There is no run in progress.
            FolderInUseError: Another run is saving its states there.
            CheckpointError: The lock file of the folder cannot be written, or the object store cannot be used. Or an
                object in the state, which is named, is neither a tensor nor plain, or could not be loaded again.
            OSError: The folder cannot be created or written to.

        Example:
            >>> import torch
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class SaveEachEpoch(TrainerCallback):
            ...     def on_training_run_start(self, trainer: AnyTrainer, **kwargs: object) -> None:
            ...         trainer.reserve_state_folder("states")
            ...
            ...     def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
            ...         trainer.save_training_state(f"states/epoch_{trainer.num_epochs_completed}")
        """
        if self._session.running is None:
            raise ConfigurationError(
                "reserve_state_folder(...) was called outside of a run. Call it in on_training_run_start."
            )
        checkpointer = self._session.checkpointer
        continued = checkpointer.reserve_folder(Path(os.path.realpath(folder)), self.print, upload_to)
        checkpointer.check(self)
        return continued

    def request_training_state(self) -> None:
        """Request that all processes save a training state after the same update.

        You call it within a run, on any process, for example because some time has passed on its clock. With several
        processes, the others are told together with the gradients of the next update. Then the
        ``on_training_state_request`` event is called on all processes, and ``SaveTrainingStateCallback`` saves a state
        in it. Without a callback for the event, or outside of a training run, a warning is shown and nothing is saved.

        Example:
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class SaveEachHour(TrainerCallback):
            ...     hours = 0
            ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
            ...         if trainer.run_history.clock.seconds > 3600 * (self.hours + 1):
            ...             self.hours += 1
            ...             trainer.request_training_state()
        """
        if self._session.running != "train":
            warn_user(
                "request_training_state() has no effect outside of a training run. Call save_training_state(...)."
            )
        elif not self.callback_handler.listeners("on_training_state_request"):
            warn_user(
                "request_training_state() has no effect: no callback saves the state. Add SaveTrainingStateCallback."
            )
        self._session.rank_sync.request_save()

    def request_preemption(self, reason: str = "", *, signal: Signals | None = None) -> None:
        """Request that all processes save a training state after the same update, and end the run to be resumed later.

        You call it if the machine will be taken away. A single process may make the request, even from a signal handler
        or a thread. Then the ``on_preemption`` event is called on all processes, and ``SaveTrainingStateCallback``
        saves a state in it; without that callback, no state is saved. Afterwards, ``train()`` raises
        ``TrainingPreempted``, a ``SystemExit`` that ends the script with status 75. If the run is complete by then, it
        ends as usual.

        Outside of a training run, for example while the script still loads its data, the request counts for the next
        training run of this trainer, which ends after its first update.

        Args:
            reason: Why the run ends, which ``TrainingPreempted`` has as ``reason``, and the last line of the run shows.
                If several processes have requested it, the reason of the lowest rank is used, and each process keeps
                the reason of its first request. The default is an empty string, or the name of the signal.
            signal: The signal that is the reason. The default, None, means that it is not a signal.

        Example:
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class EndAfterAnHour(TrainerCallback):
            ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
            ...         if trainer.run_history.clock.seconds > 3600:
            ...             trainer.request_preemption("an hour is over")
        """
        self._session.rank_sync.request_preemption(reason or ("" if signal is None else signal.name), signal)

    def register_for_checkpointing(self, *objects: SupportsStateDict) -> None:
        """Make objects a part of training states, for example your own samplers or counters.

        You call it before ``train()``, or before the first loop in the ``with`` block of a ``Run``, on every process; a
        resumed run restores the objects when it starts. States hold the objects by position, not by name, so register
        the same classes in the same order each time; a different number or class causes an error when the run resumes.
        The objects are in training states (``save_training_state``, ``SaveTrainingStateCallback``), with the values of
        the first process, but not in the files of ``save_checkpoint`` and ``save_model``.

        Args:
            *objects: Objects with ``state_dict()``, which returns tensors and plain values, and ``load_state_dict()``.
                The model, the loss function, the optimizer, the scheduler and callbacks are saved without registration.

        Raises:
            ArgumentTypeError: An object does not have these methods; in this case, none of the objects is registered.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> class Counter:
            ...     count = 0
            ...     def state_dict(self):
            ...         return {"count": self.count}
            ...     def load_state_dict(self, state_dict):
            ...         self.count = state_dict["count"]
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.register_for_checkpointing(Counter())
        """
        for registered in objects:
            if missing := missing_methods(registered):
                raise ArgumentTypeError(
                    "The state of an object cannot be saved and restored.",
                    given=f"an object of type {type(registered).__name__}, without {' and '.join(missing)}",
                    do=f"Give {type(registered).__name__} these methods, or register the object whose state it holds.",
                )
        self._session.checkpointer.registered.extend(objects)

    def _number_in_dataset(self, step: int, sample: int) -> int | None:
        """Return the dataset index of a sample in a batch of this process; None if it is unknown.

        Args:
            step: The number of the batch in the epoch of training or evaluation that is in progress.
            sample: The index in the batch.
        """
        progress = self._session.progress
        is_training = progress.stage is Stage.TRAINING
        loader = innermost(self.train_dataloader if is_training else self.eval_dataloader)
        if not is_keyed(loader):
            return None
        before = progress.resumed_steps if is_training else 0
        position = loader.split.piece(step - 1 - before, self.process_index).start + sample
        return int(loader.order.indices(position, position + 1)[0])

    def _call_event(self, event: str, **kwargs: Any) -> None:
        self.callback_handler.call_event(event, self, **kwargs)

    # Other names of the accelerator and the loaders, for existing scripts

    @property
    def _accelerator(self) -> _accelerate.AcceleratorLike:
        """The ``accelerate.Accelerator`` of the trainer."""
        return self._setup.accelerator

    @_accelerator.setter
    def _accelerator(self, accelerator: _accelerate.AcceleratorLike) -> None:
        self._setup.accelerator = accelerator

    @property
    def _train_dataloader(self) -> SizedIterable:
        """The name of ``train_dataloader`` in existing scripts."""
        return self.train_dataloader

    @_train_dataloader.setter
    def _train_dataloader(self, loader: SizedIterable) -> None:
        self.train_dataloader = loader

    @property
    def _eval_dataloader(self) -> SizedIterable | None:
        """The name of ``eval_dataloader`` in existing scripts."""
        return self.eval_dataloader

    @_eval_dataloader.setter
    def _eval_dataloader(self, loader: SizedIterable | None) -> None:
        self.eval_dataloader = loader


class TrainerCallback(ABC, Generic[TrainerT_contra, BatchT_contra, OutputT_contra]):
    """The base class of callbacks, whose methods are called at the events of a run.

    Derive from it to add logging, saving or other behavior to any trainer, and pass the class or an instance as
    ``callbacks=[...]``. Override the events that you need, without calling ``super()``, because the methods here do
    nothing. Events that you do not override take no time. To change a step itself, override a method of ``Trainer``
    instead. The trainer is passed to each event, and ``**kwargs`` accepts arguments that later versions may add. An
    event may raise ``StopTrainingError`` to end the run.

    ``train()`` calls the events in this order::

        on_prepare_start, on_training_run_start
        for each epoch:
            on_train_epoch_start
            for each batch: on_train_step_start, on_train_step_end
                after each optimizer update: on_optimizer_step_end
            on_train_epoch_end
            if it is evaluated: on_eval_epoch_start
                for each batch: on_eval_step_start, on_eval_step_end
                on_eval_epoch_end
            on_training_run_epoch_end
        on_training_run_end

    ``evaluate()`` calls ``on_prepare_start``, ``on_evaluation_run_start``, the events of an evaluation, and
    ``on_evaluation_run_end``. ``predict()`` calls ``on_prepare_start``, ``on_prediction_run_start``,
    ``on_prediction_step_end`` after each batch, and ``on_prediction_run_end``. The docstrings of the other events say
    when they are called.

    Every process calls the events on its own callbacks. Only ``on_exception``, and the events of a step in which a
    process has no sample, may be called on only some of the processes, so do not communicate in them.

    A callback with state that a resumed run needs (a best value, a counter) has ``state_dict()``, which returns tensors
    and plain values, and ``load_state_dict()``. The trainer calls both on every process: ``state_dict`` when a training
    state is saved (only the state of the first process is kept), and ``load_state_dict`` when a run resumes.

    Attributes:
        joins_sanity_evaluation: Whether a copy of the callback is called in the evaluation that
            ``train(sanity_eval_steps=...)`` runs before the first epoch. The default is True; set it to False in
            callbacks with lasting effects, for example callbacks that write to a file.
        only_observes: Set it to True in the class if the callback only looks at the run in its events at the end of an
            epoch and at the start and the end of an evaluation, that is, if these events do not raise
            ``StopTrainingError``, request a training state, or change the settings of optimizers and loaders. The
            processes of a run exchange their requests after such an event, unless all callbacks that implement the
            event only observe. Skipping the exchange saves up to a millisecond each time. A subclass does not inherit
            True, because it may override the events. The default, False, is always correct.
        instance_name: The name of the instance, to distinguish callbacks of the same class in a trainer and in training
            states. It is empty by default.

    Example:
        >>> import torch
        >>> from pa_core import AnyTrainer, Trainer, TrainerCallback
        >>> from pa_core.testing import make_regression
        >>> class CountUpdates(TrainerCallback):
        ...     updates = 0
        ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
        ...         self.updates = update
        >>> counter, model = CountUpdates(), torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[counter])
        >>> trainer.train(make_regression(64), num_epochs=1)
        >>> counter.updates
        8
    """

    joins_sanity_evaluation: bool = True
    only_observes: bool = False
    instance_name: str = ""

    if TYPE_CHECKING:  # for @override; a callback without them has no state

        def state_dict(self) -> dict[str, Any]:
            """Return the state for a resumed run: tensors, numbers, strings and containers of them.

            It is called when a training state is captured. Define it together with ``load_state_dict``; there is no
            default, so do not call ``super()``.
            """
            ...

        def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
            """Restore the result of ``state_dict``, when a run resumes.

            It is called on every process after ``on_training_run_start`` or, mid-epoch, after ``on_train_epoch_start``,
            so that it replaces the values that these events set.

            Args:
                state_dict: The state that ``state_dict`` returned on the first process of the saved run.
            """

    def on_init_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called once, after the construction of the trainer.

        No data is known yet. Use it to check arguments of the trainer or of the callback.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_prepare_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called at the beginning of each run, before the model is placed on the device and compiled.

        Use it to change modules, or to replace ``trainer.train_dataloader`` or, with
        ``trainer.change_eval_dataloaders``, the evaluation loaders. ``train()``, ``evaluate()`` and ``predict()`` call
        it.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_training_run_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called once when a training run starts; the model, the loaders, the run config and the scheduler are ready.

        A resumed run has loaded models, optimizers, schedulers and history, but not yet the states of callbacks.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_train_epoch_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a training epoch starts, after ``trainer.train_epoch_start()`` and before its first batch.

        A run that resumes mid-epoch calls it again for this epoch.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_train_steps_skipped(self, trainer: TrainerT_contra, steps: int, **kwargs: Any) -> None:
        """Called when a run resumes mid-epoch: once, or after each batch that a loader has to fetch again.

        Args:
            trainer: The trainer.
            steps: The number of completed steps in the epoch.
            **kwargs: Arguments that later versions may add.
        """

    def on_train_step_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called before each training batch of this process, after it was fetched and before its forward pass.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_train_step_end(
        self, trainer: TrainerT_contra, batch: BatchT_contra, batch_output: OutputT_contra, **kwargs: Any
    ) -> None:
        """Called after the loss of a training batch was calculated, before its backward pass.

        The number of updates and the gradients do not include this batch yet; override ``on_optimizer_step_end`` to act
        after an update. Read the loss with ``ScalarTransfer`` rather than ``item()``, which would wait for the
        accelerator.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: The outputs of ``calculate_train_batch_loss``, a dictionary with ``loss``, ``model_outputs``
                and ``batch_size``. In a ``Run``, ``model_outputs`` is None.
            **kwargs: ``step``, the number of this batch in the epoch, from 1.
        """

    def on_optimizer_step_end(self, trainer: TrainerT_contra, update: int, **kwargs: Any) -> None:
        """Called after each optimizer update, when weights, scheduler and gradients are ready for the next update.

        An update that the gradient scaler of fp16 skipped does not count, and does not fire this event.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: Arguments that later versions may add.
        """

    def on_train_epoch_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a training epoch has ended, after its metrics, such as ``train_loss_epoch``, are recorded.

        The evaluation of the epoch, if any, comes afterwards.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_eval_epoch_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when the evaluation of a set starts, in ``train()`` and in ``evaluate()``.

        ``trainer.eval_name`` is the name of the set, and the event may replace ``trainer.eval_dataloader`` for this
        evaluation.

        Args:
            trainer: The trainer.
            **kwargs: Within a training epoch, ``is_intermediate=True``, and ``num_sets_to_come``, the number of
                evaluation sets that are evaluated after the current set.
        """

    def on_eval_step_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called before the forward pass of each evaluation batch of this process.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_eval_step_end(
        self, trainer: TrainerT_contra, batch: BatchT_contra, batch_output: OutputT_contra, **kwargs: Any
    ) -> None:
        """Called after the loss of each evaluation batch was calculated.

        Collect predictions or update metrics here, and record them in ``on_eval_epoch_end``.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: The outputs of ``calculate_eval_batch_loss``, as in ``on_train_step_end``.
            **kwargs: ``step``, the number of this batch in the epoch, from 1.
        """

    def on_eval_epoch_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when the evaluation of a set has ended, after its metrics, such as ``eval_loss_epoch``, are recorded.

        Args:
            trainer: The trainer.
            **kwargs: Within a training epoch, ``is_intermediate=True``, and ``num_sets_to_come``, the number of
                evaluation sets that are evaluated after the current set.
        """

    def on_training_run_epoch_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called at the end of each epoch, after its training and its evaluation, if any.

        ``trainer.num_epochs_completed`` includes the epoch, and ``trainer.run_history.current_epoch`` is still the
        number of this epoch. Watch metrics here, because the metrics of all evaluation sets are recorded by now.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_training_run_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a training run has ended, even if a ``StopTrainingError`` ended it early.

        If another exception ends the run, ``on_exception`` is called instead.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_evaluation_run_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called once when ``evaluate()`` starts; the model and the loaders are ready. ``train()`` does not call it.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_evaluation_run_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called once when ``evaluate()`` has ended; all of its metrics are recorded.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_prediction_run_start(self, trainer: TrainerT_contra, *, num_batches: int, **kwargs: Any) -> None:
        """Called when ``predict()`` starts; the model is ready.

        Args:
            trainer: The trainer.
            num_batches: The number of batches that this process predicts.
            **kwargs: Arguments that later versions may add.
        """

    def on_prediction_step_end(self, trainer: TrainerT_contra, *, batch_size: int, **kwargs: Any) -> None:
        """Called after each batch of a prediction.

        Args:
            trainer: The trainer.
            batch_size: The number of samples in the batch.
            **kwargs: Arguments that later versions may add.
        """

    def on_prediction_run_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when ``predict()`` has ended, even if its iterator was left early.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_stop_training_error(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a ``StopTrainingError`` ends the run, before the last events.

        Args:
            trainer: The trainer.
            **kwargs: ``error``, the ``StopTrainingError``.
        """

    def on_training_state_request(self, trainer: TrainerT_contra, update: int, **kwargs: Any) -> None:
        """Called to save a state after one of the processes called ``trainer.request_training_state()``.

        Override it only in a callback that saves states, and call ``trainer.save_training_state(...)`` in it.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: Arguments that later versions may add.
        """

    def on_preemption(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called to save a last training state when all processes know that the run is preempted; the run waits for it.

        Call ``trainer.save_training_state(...)`` in it. Afterwards, ``train()`` raises ``TrainingPreempted``.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_preemption_check(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called between two batches of an evaluation that a preemption can interrupt, to ask whether the run ends.

        All processes call it after the same batch, and only if ``trainer.preemptible`` is True. Call
        ``trainer.request_preemption()`` in it on any process. Within the training, use ``on_optimizer_step_end``.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_training_state_save(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called before a training state is captured, to complete pending work, for example to check the latest losses.

        Args:
            trainer: The trainer.
            **kwargs: Arguments that later versions may add.
        """

    def on_training_state_saved(self, trainer: TrainerT_contra, path: Path, update: int, **kwargs: Any) -> None:
        """Called when a training state is complete on the disk, on all processes after the same update.

        Use it to report the state to other systems, for example to a scheduler; the processes may communicate in it. It
        is called immediately after a state for which the run waits. If the state is written in the background, it is
        called after one of the updates that follow, but at the latest before the next state is captured, before
        ``train()`` or the block of a ``Run`` ends, or before ``TrainingPreempted`` is raised. Therefore, the call for
        the last state may come after ``on_training_run_end``. It is not called for a state that could not be written,
        or after any other exception has ended the run. Saving another state in it raises an error.

        Args:
            trainer: The trainer.
            path: The directory of the state, as the first process names it.
            update: The number of optimizer updates that the state contains.
            **kwargs: Arguments that later versions may add.
        """

    def on_exception(self, trainer: TrainerT_contra, exception: BaseException, **kwargs: Any) -> None:
        """Called when an exception, including ``KeyboardInterrupt``, ends the run; close files and connections in it.

        With several processes it may be called on only one of them, so do not communicate with the others.

        Args:
            trainer: The trainer.
            exception: The exception.
            **kwargs: Arguments that later versions may add.
        """


CallbackLike: TypeAlias = TrainerCallback[_TrainerT, Any, Any] | type[TrainerCallback[_TrainerT, Any, Any]]
"""The type of the items of ``callbacks``: a callback, or a class that the trainer constructs without arguments.

Use it in annotations: ``def add(callbacks: list[CallbackLike])`` accepts ``[MyCallback(3), TerminateOnNaNCallback]``.
"""

EVENT_NAMES = frozenset(name for name in vars(TrainerCallback) if name.startswith("on_"))


class CallbackHandler(Generic[_TrainerT]):
    """Calls the registered callbacks of a trainer, in the order of registration.

    A trainer creates a handler from its ``callbacks`` argument, and keeps it as ``trainer.callback_handler``. Use it to
    add or remove callbacks later, to find a callback in ``callbacks``, and to call custom events. Create it yourself
    only in a custom loop that calls the events itself.

    Args:
        callbacks: Callback classes (which are constructed without arguments) or instances. The default registers none.
            Two callbacks with the same class and the same ``instance_name`` are an error, because training states could
            not distinguish them.

    Attributes:
        callbacks: The registered callbacks, a list of instances in the order in which they are called.
        heard: The events that any callback implements: a mapping from the name of the event to its ``listeners``. A
            loop looks up an event here before it prepares the arguments. It is empty before the first run, and is
            updated when a run starts, and when a callback is added or removed after that.

    Raises:
        ConfigurationError: Two callbacks have the same class and the same ``instance_name``. It is a ``ValueError``.
        ArgumentTypeError: An object is not a callback, a class needs arguments, or the callbacks are not in a list. It
            is a ``TypeError``.

    Example:
        >>> from pa_core import CallbackHandler, TrainerCallback
        >>> class Hello(TrainerCallback):
        ...     def greet(self, name: str) -> None:
        ...         print("hello", name)
        >>> handler = CallbackHandler([Hello])
        >>> handler.call_event("greet", name="reader")
        hello reader
        >>> len(handler.callbacks)
        1
    """

    def __init__(self, callbacks: Iterable[CallbackLike[_TrainerT]] = ()) -> None:
        self.callbacks: list[TrainerCallback[_TrainerT, Any, Any]] = []
        self._listeners: dict[str, list[Callable[..., Any]]] = {}
        self.heard: Mapping[str, list[Callable[..., Any]]] = {}
        self._fired, self._warned = set[str](), set[tuple[type, str]]()
        self.add_callbacks(callbacks)

    def add_callbacks(self, callbacks: Iterable[CallbackLike[_TrainerT]]) -> None:
        """Register several callbacks, to be called in this order after the callbacks that are already registered.

        The constructor calls it. You call it between runs, on every process. If a callback cannot be registered, the
        callbacks before it in the list stay registered. ``add_callback`` registers a single callback.

        Args:
            callbacks: Callback instances, or classes that can be constructed without arguments.

        Raises:
            ConfigurationError: Two callbacks have the same class and the same ``instance_name``. It is a
                ``ValueError``.
            ArgumentTypeError: An object is not a callback, a class needs arguments, or the callbacks are not in a list.
                It is a ``TypeError``.

        Example:
            >>> from pa_core import CallbackHandler, LimitBatchesCallback, TerminateOnNaNCallback
            >>> handler = CallbackHandler()
            >>> handler.add_callbacks([TerminateOnNaNCallback, LimitBatchesCallback(2)])
            >>> [type(callback).__name__ for callback in handler.callbacks]
            ['TerminateOnNaNCallback', 'LimitBatchesCallback']
        """
        require_iterable(callbacks, TrainerCallback)
        for callback in callbacks:
            self.add_callback(callback)

    def add_callback(self, callback: CallbackLike[_TrainerT]) -> None:
        """Register a callback, to be called after the callbacks that are already registered.

        You call it between runs, on every process. You may also call it in ``on_prepare_start`` of another callback;
        the new callback is then called for the following events of the run.

        Args:
            callback: An instance, or a class that can be constructed without arguments.

        Raises:
            ConfigurationError: A callback of the same class and the same ``instance_name`` is already registered. It is
                a ``ValueError``.
            ArgumentTypeError: The object is not a callback, or is a class whose constructor needs arguments. It is a
                ``TypeError``.

        Example:
            >>> import torch
            >>> from pa_core import LimitBatchesCallback, Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.callback_handler.add_callback(LimitBatchesCallback(2))
            >>> len(trainer.callback_handler.callbacks)
            1
        """
        require_callback(callback, TrainerCallback)
        instance = callback() if isinstance(callback, type) else callback
        kind, name = type(instance), instance.instance_name
        if any(type(other) is kind and other.instance_name == name for other in self.callbacks):
            registered = ", ".join(type(other).__name__ for other in self.callbacks)
            raise ConfigurationError(
                "A callback of this class is registered already.",
                given=f"a second callback of class {type(instance).__name__}, besides {registered}",
                do="Remove one of the two, subclass it for the second use, or set a different instance_name in it.",
            )
        self.callbacks.append(instance)
        self._follow_callbacks()
        warn_of_unknown_events(instance, EVENT_NAMES, self._warned, only_typos=True)
        warn_of_half_a_state(instance)

    def remove_callback(self, callback: TrainerCallback[_TrainerT, Any, Any]) -> None:
        """Remove a registered callback, so that its events are no longer called.

        You call it between runs, on every process. To use different callbacks, or none, in a single block of code, use
        ``replaced_by``.

        Args:
            callback: The instance. If you registered a class, look up its instance in ``callbacks``, because a class is
                not accepted.

        Raises:
            ValueError: The callback is not registered.

        Example:
            >>> from pa_core import CallbackHandler, TerminateOnNaNCallback
            >>> handler = CallbackHandler([TerminateOnNaNCallback])
            >>> guard = next(callback for callback in handler.callbacks if isinstance(callback, TerminateOnNaNCallback))
            >>> handler.remove_callback(guard)
            >>> handler.callbacks
            []
        """
        self.callbacks.remove(callback)
        self._follow_callbacks()

    @contextmanager
    def replaced_by(self, callbacks: Iterable[CallbackLike[_TrainerT]]) -> Generator[None]:
        """Call only the given callbacks within a ``with`` block; the registered callbacks are always restored.

        Use it for a run or an evaluation that should have no side effects, for example a search for a learning rate.
        Enter the block on every process.

        Args:
            callbacks: The callbacks to call within the block, as classes or instances; an empty list calls none.

        Raises:
            ConfigurationError: Two callbacks have the same class and the same ``instance_name``. It is a
                ``ValueError``.
            ArgumentTypeError: An object is not a callback, or the callbacks are not in a list. It is a ``TypeError``.

        Example:
            >>> from pa_core import CallbackHandler, TerminateOnNaNCallback
            >>> handler = CallbackHandler([TerminateOnNaNCallback])
            >>> with handler.replaced_by([]):
            ...     print(len(handler.callbacks))
            0
            >>> len(handler.callbacks)
            1
        """
        with temporarily(self, callbacks=[], _listeners={}, heard={}):
            self.add_callbacks(callbacks)
            self.find_listeners()
            yield

    @overload
    def call_event(self, event: str, *args: Any, **kwargs: Any) -> None: ...
    @overload
    def call_event(self, event: Callable[Concatenate[Any, _P], None], *args: _P.args, **kwargs: _P.kwargs) -> None: ...
    def call_event(self, event: str | Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call an event on every callback that implements it, in the order of registration.

        Call it for your own events, for example in an overridden method of a trainer; the trainer calls its events
        itself. An event that no callback implements has no effect. If a callback raises an exception, this method
        raises it, and later callbacks are not called.

        Args:
            event: The name of the method, for example "on_mixup", or the method itself (``MyCallback.on_mixup``), with
                which type checkers compare the arguments.
            *args: Positional arguments of the event, usually the trainer first.
            **kwargs: Keyword arguments of the event.

        Example:
            >>> from pa_core import CallbackHandler, TrainerCallback
            >>> class ShowMixup(TrainerCallback):
            ...     def on_mixup(self, trainer: object, *, share: float) -> None:
            ...         print("mixed", share)
            >>> handler = CallbackHandler([ShowMixup])
            >>> handler.call_event("on_mixup", None, share=0.25)
            mixed 0.25
            >>> handler.call_event(ShowMixup.on_mixup, None, share=0.5)
            mixed 0.5
        """
        name = event if isinstance(event, str) else event.__name__
        for listener in self.listeners(name):
            listener(*args, **kwargs)

    def find_listeners(self) -> None:
        """Look up again which callbacks implement which events.

        You need not call it unless you assigned a method to a callback instance during a run, because it is called when
        a run starts, and by ``add_callback`` and ``remove_callback``. It updates ``heard`` and the result of
        ``listeners``.

        Example:
            >>> from pa_core import CallbackHandler, TerminateOnNaNCallback
            >>> handler = CallbackHandler([TerminateOnNaNCallback])
            >>> handler.find_listeners()
            >>> "on_train_step_end" in handler.heard, "on_exception" in handler.heard
            (True, False)
        """
        self._listeners = {name: list(map(with_known_arguments, self._bound(name))) for name in EVENT_NAMES}
        self.heard = {name: listeners for name in EVENT_NAMES if (listeners := self.listeners(name))}

    def _follow_callbacks(self) -> None:
        """Look up the listeners again, unless no event was called yet."""
        if self._listeners:
            self.find_listeners()

    def listeners(self, event: str) -> list[Callable[..., Any]]:
        """Return the methods that an event calls, in order.

        Use it to find out whether the arguments of an event are worth preparing. To call the event, use ``call_event``.

        Args:
            event: The name of an event of ``TrainerCallback``, for example "on_train_step_end", or of a custom event.

        Returns:
            A list of functions to call with the arguments of the event, one of each callback that implements it; empty
            if no callback does. Do not change the list.

        Example:
            >>> from pa_core import CallbackHandler, TerminateOnNaNCallback
            >>> handler = CallbackHandler([TerminateOnNaNCallback])
            >>> len(handler.listeners("on_train_step_end")), handler.listeners("on_mixup")
            (1, [])
        """
        if not self._listeners:
            self.find_listeners()
        if event not in self._listeners:  # a custom event of a script
            self._listeners[event] = self._bound(event)
            self._fired.add(event)
        return self._listeners[event]

    def _bound(self, event: str) -> list[Callable[..., Any]]:
        return [getattr(callback, event) for callback in self.callbacks if implements(callback, event, TrainerCallback)]

    def warn_of_unfired_events(self) -> None:
        """Warn about each ``on_`` method of a callback that no event has called; its name is usually misspelled.

        The trainer calls it at the end of a training run, so you need not call it yourself, except in a custom loop
        that calls events with its own handler. The ``UserWarning`` names the nearest event and points at the method.
        Each method of a class is warned about once. Custom events that ``call_event`` has called cause no warning.

        Example:
            >>> import warnings
            >>> from pa_core import CallbackHandler, TrainerCallback
            >>> class Misspelt(TrainerCallback):
            ...     def on_epoch_finished(self, trainer: object, **kwargs: object) -> None: ...
            >>> handler = CallbackHandler([Misspelt])
            >>> with warnings.catch_warnings(record=True) as caught:
            ...     warnings.simplefilter("always")
            ...     handler.warn_of_unfired_events()
            >>> len(caught)
            1
        """
        for callback in self.callbacks:
            warn_of_unknown_events(callback, {*EVENT_NAMES, *self._fired}, self._warned)
