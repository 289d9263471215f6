"""What callbacks and helper functions may expect of a trainer, whichever trainer it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import (
    _accelerate,
    checkpoint,
    compatibility,
    default_step,
    distributed,
    input_checks,
    overrides,
    run_scheduler,
    training_state,
)
from pa_core._tqdm import bars_hidden
from pa_core.accumulation import Accumulation, MicroBatch, forget_gradients, micro_batches
from pa_core.added_modules import AddedModule, AddedModules
from pa_core.checkpoint import save_safetensors
from pa_core.data.batch_count import BatchCount
from pa_core.data.custom_loader import batches_of_slices
from pa_core.data.given_data import GivenData, check_arguments_of_loaders
from pa_core.data.loaders import Loaders, Purpose, batches_on_device, count_steps, end_workers
from pa_core.distributed import fail_fast, processes
from pa_core.distributed.agreement import Agreement
from pa_core.distributed.collectives import agree_on_integer
from pa_core.distributed.shared_errors import showing_errors_once
from pa_core.errors import ConfigurationError, NonFiniteLossError, StopTrainingError
from pa_core.events import EVENT_NAMES, CallbackHandler, CallbackLike, TrainerCallback
from pa_core.misspelt_overrides import warn_of_misspelt_overrides
from pa_core.placeholders import placeholder_values
from pa_core.progress import Phase, Progress
from pa_core.run_config import TrainerRunConfig, describe_run_config
from pa_core.state_dicts import supports_state_dict
from pa_core.step_output import no_sample_counted
from pa_core.storage.encoding import encode
from pa_core.tracking import InMemoryRunHistory, LossTracker, MetricValue, RunHistory, StepMeans
from pa_core.training_state import (
    EvaluationInterrupted,
    Resumption,
    RunParts,
    SafePoints,
    SavedRun,
    StateRequest,
    asked_settings,
)
from pa_core.types import (
    LossFunction,
    SchedulerFactory,
    SchedulerLike,
    SizedIterable,
    StatefulScheduler,
    SupportsStateDict,
    TensorsT,
)
from pa_core.unwrapping import unwrap_model

if TYPE_CHECKING:
    from pa_core.scheduler_stepping import SchedulerStepping

__all__ = ["AnyTrainer"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class AnyTrainer(ABC):
    """A trainer of any model, batch, output and scheduler.

    Annotate callbacks and helper functions with this class. ``Trainer`` derives from it and adds the type
    parameters; nobody else needs to.

    Attributes:
        model: The module being trained. While a run goes on this may be the wrapped module; use ``get_model()``
            to reach the attributes of your own class.
        loss_func: The loss function that was given to the trainer.
        optimizer: The optimizer that was given to the trainer.
        scheduler: The scheduler of the current run, None without one.
        create_scheduler_fn: The factory that was given to ``train()``.
        collate_fn: The collate function that was given to ``train()`` or ``evaluate()``.
        train_dataset: The dataset of the current or last training run, also where a ``DataLoader`` was given.
        eval_dataset: The dataset that is evaluated, None where nothing is.
        train_dataloader: The loader of the current or last training run; a callback may replace it in
            ``on_prepare_start``.
        eval_dataloader: The loader that is evaluated; a callback may replace it between epochs.
        run_history: The recorded metrics.
        run_config: The settings of the current or last run.
        callback_handler: The registered callbacks.
        gradient_norm: The norm of all gradients before clipping at the last update, as a tensor on the
            device of the run; None unless the run clips by norm.
        resume_from: The path given to ``train()`` that the current or last run was to resume from; None for one that
            just begins.
        preemptible: Whether evaluation epochs look for a request to leave between their batches; a callback sets it
            on every process when a run starts, and a new run begins without.

    Example:
        >>> from pa_core import AnyTrainer, TrainerCallback
        >>> class PrintSamples(TrainerCallback):
        ...     def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: object) -> None:
        ...         trainer.print(trainer.run_history.clock.samples)
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
    run_history: RunHistory
    run_config: TrainerRunConfig
    callback_handler: CallbackHandler[Any]
    gradient_norm: Tensor | None
    resume_from: Path | None
    preemptible: bool
    _accelerator: _accelerate.AcceleratorLike
    _progress: Progress

    _loss_tracker: LossTracker
    _step_means: StepMeans
    _loaders: Loaders
    _agreement: Agreement
    _resumption: Resumption
    _stepping: SchedulerStepping

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
    ) -> None:
        self.model = model
        self.loss_func = cast("LossFunction", loss_func)
        self.optimizer = cast("Optimizer", optimizer)
        self.run_history = InMemoryRunHistory() if run_history is None else run_history
        self.run_config = _unset()
        self.train_dataset = _unset()
        self.eval_dataset = None
        self.collate_fn = None
        self.create_scheduler_fn = None
        self.scheduler = None
        self.gradient_norm = None
        self.train_dataloader = _unset()
        self.eval_dataloader = None
        self._loss_tracker = LossTracker()
        self._step_means = StepMeans()
        self._added = AddedModules()
        self._accelerator, arguments = compatibility.create_accelerator(self._create_accelerator, mixed_precision, cpu)
        processes.prepare_process(self._accelerator)
        with showing_errors_once():  # from here on the processes are connected
            input_checks.check_trainer_arguments(model, loss_func, optimizer)
            self.callback_handler = self._create_callback_handler(callbacks)
        compatibility.require_usable(self._accelerator, arguments, model)
        self._loaders = Loaders(self._accelerator)
        self._gradient_clip_norm: float | None = None
        self._running: Literal["train", "evaluate"] | None = None
        self._start_bookkeeping()
        self._safe_points = SafePoints(self._parts_of_run())

    @override
    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse or warn of methods that would replace a private part of the loop, or that it would never call."""
        super().__init_subclass__(**kwargs)
        trainer_class = cls.__mro__[cls.__mro__.index(AnyTrainer) - 1]
        if trainer_class is cls:
            return
        names = (*vars(AnyTrainer), *vars(trainer_class))
        parts = {name for name in names if name.startswith("_") and not name.startswith("__")}
        overrides.check_overrides(cls, trainer_class, parts)
        warn_of_misspelt_overrides(cls, trainer_class, overrides.OVERRIDABLE, EVENT_NAMES)

    @property
    def num_updates_completed(self) -> int:
        """Optimizer updates of the current or last run so far."""
        return self._progress.updates

    @property
    def num_epochs_completed(self) -> int:
        """Epochs of the current or last run that have been trained and evaluated."""
        return self._progress.epochs

    @property
    def was_complete(self) -> bool:
        """Whether the run resumes a complete one, and nothing is left of it to do.

        Its first and its last event are called.
        """
        return self._resumption.was_complete

    # Which process this is, and what one of them does for the others

    @property
    def num_processes(self) -> int:
        """The number of processes that train together, on all machines."""
        return self._accelerator.num_processes

    @property
    def process_index(self) -> int:
        """Which of them this process is, from 0: its rank."""
        return self._accelerator.process_index

    @property
    def local_process_index(self) -> int:
        """Which of the processes on its machine this one is, from 0."""
        return self._accelerator.local_process_index

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process of rank zero."""
        return self._accelerator.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process on its machine."""
        return self._accelerator.is_local_main_process

    def wait_for_everyone(self) -> None:
        """Wait until every process has come here; every process must call this.

        Raises:
            ConfigurationError: This process runs a function that the others do not, such as one that
                ``on_main_process`` decorates, and would wait for ever.
        """
        processes.require_all_processes("wait_for_everyone()")
        self._accelerator.wait_for_everyone()

    def on_main_process(self, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        """Make a function run on the process of rank zero only; the others return None at once.

        Nobody waits, so that it may be called anywhere, also by some processes only. Use ``world_process_zero_only``
        for what the others need before they go on.

        Args:
            function: What is decorated.

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
        """Make a function run on the first process of each machine only; see ``on_main_process``.

        Args:
            function: What is decorated.
        """
        return processes.run_if(self.is_local_main_process, function)

    def on_process(self, *, process_index: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
        """Make a function run on one process only, or on the only one there is; see ``on_main_process``.

        Args:
            process_index: The rank of the process, such as ``trainer.num_processes - 1`` for the last one.

        Raises:
            ConfigurationError: Of several processes, none has this rank.
        """
        if self.num_processes > 1 and process_index not in range(self.num_processes):
            raise ConfigurationError(
                "The function would run on no process.",
                given=f"on_process(process_index={process_index!r}) on {self.num_processes} processes",
                expected=f"a rank from 0 to {self.num_processes - 1}",
                do="Choose one of them, for example trainer.num_processes - 1 for the last process.",
            )
        return partial(processes.run_if, process_index == self.process_index or self.num_processes == 1)

    def main_process_first(self) -> processes.BlockOrDecorator:
        """Let the process of rank zero run a block before all others; every process must come to it.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with trainer.main_process_first():
            ...     print("downloaded once to a shared disk, then read by all")
            downloaded once to a shared disk, then read by all
        """
        return processes.world_process_zero_first()

    def local_main_process_first(self) -> processes.BlockOrDecorator:
        """Let the first process of each machine run a block before the others, as ``local_process_zero_first``."""
        return processes.local_process_zero_first()

    # Precision and device

    @property
    def device(self) -> torch.device:
        """The device that this process computes on."""
        return _accelerate.device_of(self._accelerator)

    @property
    def mixed_precision(self) -> str:
        """The mixed precision that the model computes in: "no", "bf16" or "fp16"."""
        return _accelerate.computed_precision(self._accelerator)

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context in which torch computes in the mixed precision of the trainer.

        ``trainer.model`` does so anyway when it is called. The context is for what else a step computes: a method of
        the model other than ``forward``, a loss function with layers of its own, a second module.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
            >>> with trainer.autocast():
            ...     product = torch.ones(2, 2, device=trainer.device) @ torch.ones(2, 2, device=trainer.device)
            >>> product.dtype
            torch.float32
        """
        return self._accelerator.autocast()

    # The model

    def get_model(self, keep_torch_compile: bool = True) -> nn.Module:
        """Return the model without its distributed wrappers.

        Args:
            keep_torch_compile: False also returns what is inside a compiled model.
        """
        return unwrap_model(self.model, keep_torch_compile=keep_torch_compile)

    def add_module(
        self,
        name: str,
        module: nn.Module,
        optimizer: Optimizer | None = None,
        create_scheduler_fn: SchedulerFactory[SchedulerLike] | None = None,
    ) -> None:
        """Train another module together with the model, by the loss that ``calculate_train_batch_loss`` returns.

        A run places it on the device and in the precision of the model. Its optimizer is stepped, and its gradients are
        clipped, cleared and on several processes averaged, together with those of the model. It is part of training
        states and checkpoints by its name. Losses and updates of its own, as in a GAN, need a ``Run``.

        A module whose parameters no optimizer has, such as a teacher, is placed on the device and put into evaluation
        mode, and is not saved.

        Args:
            name: Its name in ``trainer.modules`` and in what is saved.
            module: The module, which shares no parameters with the model.
            optimizer: An optimizer of its parameters; None where the trainer's optimizer has them, or where it stays as
                it is.
            create_scheduler_fn: As for ``train()``, for this optimizer. It is stepped when the trainer's scheduler is.

        Raises:
            ConfigurationError: The name is taken; the module is a part of the model; the optimizer has parameters of
                another module; none has the parameters of a module in training mode; or a run is under way.
            ArgumentTypeError: An argument is another kind of thing.
        """
        added = AddedModule(module, optimizer, create_scheduler_fn)
        self._added.add(name, added, self.get_model(), self.optimizer)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """What ``add_module`` was given, by name: what a step calls."""
        return self._added.called()

    def named_models(self) -> dict[str, nn.Module]:
        """Return everything that the run trains, without wrappers, by name: "model", and what stands beside it."""
        return {"model": self.get_model(keep_torch_compile=False), **self._added.trained(self.optimizer)}

    def named_optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizers of the run by name: "optimizer", and any others; empty without one."""
        optimizer = cast("Optimizer | None", self.optimizer)
        return ({} if optimizer is None else {"optimizer": optimizer}) | self._added.optimizers

    def named_schedulers(self) -> dict[str, StatefulScheduler]:
        """Return the schedulers of the run by name: "scheduler", and any others; empty without one."""
        own: dict[str, StatefulScheduler] = {} if self.scheduler is None else {"scheduler": self.scheduler}
        return own | self._added.schedulers

    # Metrics, and what the processes tell each other

    @property
    def loss_tracker(self) -> LossTracker:
        """The losses of the current epoch so far, of this process."""
        return self._loss_tracker

    @property
    def step_means(self) -> StepMeans:
        """The means of what the steps of the current epoch have logged so far, of this process."""
        return self._step_means

    def log(self, name: str, value: MetricValue) -> None:
        """Log a value of the present step: its mean over all samples of the epoch, on all processes, is recorded.

        The metric is called ``train_NAME_epoch``, ``eval_NAME_epoch`` or, in ``evaluate()``, ``evaluation_NAME``; it is
        recorded with the loss of the epoch, and the mean so far is on the progress bar. Call this in a step: from
        ``calculate_train_batch_loss`` or ``calculate_eval_batch_loss``, or from a callback between the start of the
        step and ``on_optimizer_step_end`` or ``on_eval_step_end``. A tensor stays on its device, and nothing waits for
        it before the epoch ends.

        A value counts for the ``batch_size`` samples of its step, also where the loss is a mean over other items. Steps
        that do not log a name do not count for its mean.

        Args:
            name: A name such as "kl", letters, digits and underscores; once in a step.
            value: A number, or a tensor with one element: a mean over the samples of the step.

        Raises:
            ConfigurationError: There is no step under way, the name cannot be used or was logged in this step already,
                or the value is no single number.
        """
        self._step_means.log(name, value)

    def gather(self, tensor: TensorsT, padding_value: float | None = None) -> TensorsT:
        """Return the tensors of all processes, concatenated along the first dimension; every process must call this.

        Args:
            tensor: A tensor, or a nested list, tuple or mapping of tensors; first dimensions may differ.
            padding_value: Only needed where other dimensions differ too, which are filled up with it to the longest of
                all processes. Rows of padding are never in the result.

        Returns:
            The same structure, with the rows of all processes in the order of the ranks; it carries no gradient.

        Raises:
            TypeError: Something in it is neither a tensor nor a container of tensors.
            ConfigurationError: The tensors of the processes do not fit together.
        """
        return distributed.gather(tensor, padding_value)

    def describe_run(self) -> str:
        """Return one line that says what runs: processes, backend, device and precision."""
        return _accelerate.describe_processes(self._accelerator)

    def print(self, *args: object, **kwargs: Any) -> None:
        """Print once per node; a progress bar makes room."""
        if self._accelerator.is_local_main_process:
            with bars_hidden():
                print(*args, **kwargs)  # noqa: T201  # printing is what this method is for

    @abstractmethod
    def run_evaluation_epoch(self, *, is_intermediate: bool = False) -> None:
        """Evaluate ``eval_dataset`` once in the middle of a training run, and go on training as before."""

    # Checkpoints and training states

    @checkpoint.refusing_ambiguous_flag
    def save_checkpoint(
        self,
        save_path: str | Path,
        checkpoint_kwargs: dict[str, Any] | None = None,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        save_per_node: bool = True,
    ) -> None:
        """Write the weights, and what belongs to them, to one file, which is whole or is not there.

        Args:
            save_path: The file, by convention ending in ``.pt``.
            checkpoint_kwargs: Further entries: tensors, numbers, strings and containers of them.
            save_optimizer: Whether the optimizer's state is included.
            save_scheduler: Whether the scheduler's state is included, if there is one.
            save_per_node: True writes once on each machine, False once in the whole run.

        Raises:
            ConfigurationError: The fourth argument is False and has no name: it was ``save_per_node`` in early releases
                of pytorch-accelerated.
            CheckpointError: Something in it could not be loaded again; a file that is there already stays as it is.
        """
        content = checkpoint.build_checkpoint(self._trained(save_optimizer, save_scheduler), checkpoint_kwargs)
        writes = self._accelerator.is_local_main_process if save_per_node else self._accelerator.is_main_process
        if writes:
            checkpoint.write_checkpoint(save_path, content)

    def load_checkpoint(
        self, checkpoint_path: str | Path, load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        """Read a file that ``save_checkpoint`` wrote; every process must call this.

        Args:
            checkpoint_path: The file.
            load_optimizer: Whether the optimizer's state is loaded, if the file has one.
            load_scheduler: Whether the scheduler's state is loaded, if the file and the trainer have one.

        Returns:
            The whole content of the file, with its tensors on the CPU.

        Raises:
            StateNotFoundError: There is no such file.
            CheckpointError: The file is damaged, needs code to be unpickled, or is that of another model; nothing was
                loaded.
        """
        self._accelerator.wait_for_everyone()
        # Not on the device of the run, which may have no room for everything a second time.
        content = checkpoint.read_checkpoint(checkpoint_path, torch.device("cpu"))
        with asked_settings.not_asking(*self.named_optimizers().values()):
            checkpoint.load_checkpoint_into(
                content,
                self._trained(load_optimizer, load_scheduler),
                needs_optimizer=load_optimizer,
                source=checkpoint_path,
            )
        return content

    def _trained(self, with_optimizers: bool, with_schedulers: bool) -> dict[str, checkpoint.Trained]:
        """What a checkpoint holds: the model, and the modules that are trained beside it."""
        optimizers = self._added.optimizers if with_optimizers else {}
        schedulers = self._added.schedulers if with_schedulers else {}
        own = checkpoint.Trained(
            self.get_model(keep_torch_compile=False),
            self.optimizer if with_optimizers else None,
            self.scheduler if with_schedulers else None,
        )
        beside = self._added.trained(self.optimizer).items()
        added = {name: checkpoint.Trained(one, optimizers.get(name), schedulers.get(name)) for name, one in beside}
        return {"model": own, **added}

    def save_model(self, save_directory: str | Path, max_shard_size: int | str = "5GB") -> None:
        """Export the weights as safetensors; every process may call this, the first one of all writes.

        Args:
            save_directory: The folder of the files, made if it is missing.
            max_shard_size: Weights of more than this are split into several files, with an index beside them.
        """
        if self._accelerator.is_main_process:
            save_safetensors(
                self._accelerator, self.get_model(keep_torch_compile=False), save_directory, max_shard_size
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
    ) -> None:
        """Save everything that a run consists of, so that ``train(resume_from=...)`` goes on from there.

        Every process must call this, and the first one writes. Within a run the state is captured at the next moment
        at which everything belongs to the same update: after the events of the present update, or of the present epoch.
        After a run it is that of the complete run or, where an exception ended it between two updates, of a run that
        goes on from there.

        Args:
            output_dir: The directory of the state, which is whole or is not there. A state that is there is replaced.
            checkpoint_kwargs: Further entries, which ``load_training_state`` returns.
            asynchronous: Whether training goes on while the state is written, from a copy in host memory.
            sequence: Its place among the states of a folder, of which the newest one has the highest.
            on_saved: Called with the directory, on the process that writes, once the state is there; in a thread if
                asynchronous.
            keep_other_runs: Whether a state of another run at ``output_dir`` stays there. This one is then called
                ``final_2``, for example.

        Raises:
            ConfigurationError: There has not been any training yet.
            CheckpointError: An exception ended the run in the middle of an update, or on several processes, so that it
                cannot go on from there. Or something could not be loaded again, or not be written; what was there
                stays. Within a run this is raised when the state is captured; if asynchronous, with the next one or
                when the run ends.
        """
        extras = encode(dict(checkpoint_kwargs or {}), "extras")
        request = StateRequest(Path(output_dir), extras, asynchronous, sequence, on_saved, keep_other_runs)
        if self._running == "train" and self._safe_points.ended_by is None:
            self._safe_points.request(request)
        else:
            self._safe_points.save(request, self, self._call_event)

    def load_training_state(self, input_dir: str | Path) -> dict[str, Any]:
        """Load model, optimizer and scheduler of a training state, without going on with its run.

        Every process must call this. Pass ``resume_from`` to ``train()`` to go on with the run.

        Args:
            input_dir: A training state, or a folder of them, of which the newest valid one is taken.

        Returns:
            What was passed to ``save_training_state`` as ``checkpoint_kwargs``, and ``current_epoch``: the number of
            the epoch that the state is of, from 1; of a state between two epochs, the one that was complete.

        Raises:
            StateNotFoundError: There is no training state.
            CheckpointError: None is valid, or it is that of another model or optimizer.
        """
        saved = SavedRun(training_state.find_state(input_dir))
        with asked_settings.not_asking(*self.named_optimizers().values()):
            saved.restore_training(self, self._accelerator.scaler)
        return {"current_epoch": saved.position.current_epoch, **saved.extras}

    def check_training_state(self) -> None:
        """Refuse, before any time is spent on training, what could not be saved in a training state.

        Every process must call this, within a run. Most optimizers make their state with the first update; it is looked
        at again after that.

        Raises:
            CheckpointError: Something in the state is neither a tensor nor plain, or could not be loaded again; it is
                named. Of the optimizer's state this may be raised after the first update.
        """
        self._safe_points.check(self)

    def request_training_state(self) -> None:
        """Ask that all processes save a training state after the same update: ``on_training_state_request`` fires.

        One process may ask alone, for example because some time has passed on its clock.
        """
        self._agreement.save.is_asked = True

    def request_preemption(self) -> None:
        """Ask that all processes save a training state after the same update, and end: ``on_preemption`` fires.

        One process may ask alone, also from a signal handler. ``train()`` then raises ``TrainingPreempted``.
        """
        self._agreement.preempt.is_asked = True

    def register_for_checkpointing(self, *objects: SupportsStateDict) -> None:
        """Make objects a part of training states, in this order.

        Args:
            *objects: Anything with ``state_dict()``, of tensors and plain values, and ``load_state_dict()``. The
                model, the loss function, the optimizer, the scheduler and callbacks are saved without.

        Raises:
            TypeError: An object has no such methods.
        """
        for one in objects:
            if not supports_state_dict(one):
                raise TypeError(
                    f"Given: an object of type {type(one).__name__}. Expected: one with state_dict() and "
                    "load_state_dict(). Give its class these methods."
                )
        self._safe_points.registered.extend(objects)

    # What a subclass may create in another way

    def _create_accelerator(self) -> _accelerate.AcceleratorLike:
        """Create the ``accelerate.Accelerator`` that places and wraps what a run needs.

        Precision and device are those that the trainer was asked for, and otherwise what the script was launched with.
        Override this to pass arguments of your own; an Accelerator made here follows the trainer's ``mixed_precision``
        and ``cpu`` where it is not told otherwise.
        """
        return _accelerate.create_accelerator()

    def _create_callback_handler(self, callbacks: Iterable[CallbackLike[Self]]) -> CallbackHandler[Self]:
        """Create what calls the callbacks; override this for a ``CallbackHandler`` of your own.

        Args:
            callbacks: What was given to the trainer.
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
        """Describe the run, from what was asked for and from the loaders that were made.

        Args:
            per_device_batch_size: Samples in a batch of one process, where a loader does not say.
            num_epochs: Epochs asked for; ``max_num_train_steps`` overrides them.
            gradient_accumulation_steps: Batches of one process in an update.
            max_num_train_steps: Updates after which the run ends; None for all of the epochs.
            gradient_clip_value: The bound on each element of the gradients.
        """
        return describe_run_config(
            self._accelerator,
            mixed_precision=_accelerate.computed_precision(self._accelerator),
            seed=self._resumption.seed,
            training=self._loaders.settings("train", self.train_dataloader, per_device_batch_size),
            evaluation=self._loaders.settings("eval", self.eval_dataloader, per_device_batch_size),
            num_steps_per_epoch=count_steps(self.train_dataloader) if self._running == "train" else 0,
            num_epochs=num_epochs,
            max_num_train_steps=max_num_train_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_clip_value=gradient_clip_value,
            gradient_clip_norm=self._gradient_clip_norm,
        )

    # What every loop stands on: beginning and ending a run

    @contextmanager
    def _run(self, kind: Literal["train", "evaluate"]) -> Generator[None]:
        """Begin a run, and leave the user's objects as they were however it ends."""
        self._start_bookkeeping()
        self._safe_points.start_run(self._parts_of_run())
        self._resumption.seed = agree_on_integer(int(torch.randint(2**63 - 1, ()).item()), self.device)
        self.run_history.clock.start()
        self._running = kind
        try:
            yield
        except BaseException as exception:
            self._safe_points.end(exception, self.device)
            with fail_fast.ending_process_unless_all_fail(exception):
                self._close_after(exception)
            raise
        finally:
            self._running = None
            optimizers = self.named_optimizers().values()
            if kind == "train":
                for optimizer in optimizers:
                    asked_settings.end_run(optimizer)
            self.run_history.clock.stop()
            end_workers(self.train_dataloader, self.eval_dataloader)
            self._release_models()
            self._added.restore()
            forget_gradients(self.model, *optimizers)
        self.callback_handler.warn_of_unfired_events()

    def _close_after(self, exception: BaseException) -> None:
        """Close what is open when an exception ends the run: all of it, whatever one of the callbacks raises."""
        problems: list[BaseException] = []
        for listener in self.callback_handler.listeners(TrainerCallback.on_exception.__name__):
            try:
                listener(self, exception=exception)
            except BaseException as problem:
                problems.append(problem)
        self._safe_points.abandon(exception)
        end_workers(self.train_dataloader, self.eval_dataloader)
        if problems:
            raise problems[0]

    def _start_bookkeeping(self) -> None:
        """Forget what was noted down in an earlier run."""
        self._progress = Progress()
        self._agreement = Agreement(self.device, self.num_processes)
        self._resumption = Resumption(self._progress, self.device)
        self._loaders.start_run()
        self._checked_steps: set[str] = set()
        self.preemptible = False
        self.resume_from = None

    @abstractmethod
    def _accumulations(self) -> Mapping[str, Accumulation]:
        """What weighs the batches of each optimizer's updates, by the name of the optimizer."""

    @abstractmethod
    def _release_models(self) -> None:
        """Make the models at the end of a run what they were before it."""

    def _parts_of_run(self) -> RunParts:
        """What decides which states are saved, and when."""
        return RunParts(
            self._progress,
            self._resumption,
            self._accumulations(),
            self._agreement,
            scaler=self._accelerator.scaler,
        )

    def _reset_run_history(self) -> None:
        self.run_history.reset()
        self.run_history.clock.reset()

    # What every loop stands on: events

    @contextmanager
    def _stopping_in_order(self) -> Generator[None]:
        """Let a ``StopTrainingError`` end what is within the context, and the run go on to its last events."""
        try:
            yield
        except StopTrainingError as error:
            self._agreement.stop = error
            self.callback_handler.call_event(TrainerCallback.on_stop_training_error, self, error=error)

    def _call_hook(self, hook: Callable[[], None]) -> None:
        """Call a method of the trainer that may stop the run."""
        try:
            hook()
        except StopTrainingError as error:
            self._agreement.ask_to_stop(error)

    def _call_event(
        self, event: Callable[Concatenate[Any, Any, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        """Call an event that may stop the run.

        With several processes, a callback that stops does not keep the others from being called: one of them may
        gather, and would wait for this process.
        """
        for listener in self.callback_handler.listeners(event.__name__):
            try:
                listener(self, *args, **kwargs)
            except StopTrainingError as error:
                self._agreement.ask_to_stop(error)
            except EvaluationInterrupted:
                if not self._safe_points.is_between_steps:
                    raise

    def _call_event_of_evaluation(
        self, event: Callable[Concatenate[Any, Any, ...], None], is_intermediate: bool
    ) -> None:
        """The argument is passed only where it says something."""
        if is_intermediate:
            self._call_event(event, is_intermediate=True)
        else:
            self._call_event(event)

    # What every loop stands on: loaders and schedulers

    def _check_data(
        self, data: Sequence[GivenData], per_device_batch_size: int, collate_fn: Callable[[list[Any]], Any] | None
    ) -> None:
        """Refuse data that this trainer or this process cannot use, and arguments that have no effect on it."""
        for one in data:
            one.require_default_loader(type(self))
            one.require_rank(self.process_index, self.num_processes)
        check_arguments_of_loaders(data, per_device_batch_size, collate_fn)

    def _create_dataloader(
        self, dataset: Dataset[Any], purpose: Purpose, defaults: dict[str, Any], asked: dict[str, Any] | None
    ) -> SizedIterable[Any]:
        return self._loaders.create(
            dataset, purpose, defaults, asked, collate_fn=self.collate_fn, seed=self._resumption.seed, say=self.print
        )

    def _placeholder_values(self) -> dict[str, float]:
        return placeholder_values(
            num_epochs=self.run_config.num_epochs,
            num_update_steps_per_epoch=self.run_config.num_update_steps_per_epoch,
            train_dataloader_len=count_steps(self.train_dataloader),
            eval_dataloader_len=0 if self.eval_dataloader is None else count_steps(self.eval_dataloader),
        )

    @property
    def _steps_scheduler_itself(self) -> bool:
        """Whether a subclass steps the scheduler of the trainer in a way of its own."""
        return False

    def _require_usable_schedulers(self) -> None:
        """Refuse schedulers that cannot be stepped in the way that was asked for."""
        is_evaluated = self.eval_dataloader is not None
        schedulers: Mapping[str, object] = self.named_schedulers() or {"scheduler": None}
        for name, scheduler in schedulers.items():
            is_overridden = name == "scheduler" and self._steps_scheduler_itself
            self._stepping.require_usable(scheduler, is_overridden=is_overridden, is_evaluated=is_evaluated)

    def _check_length_of_schedules(self) -> None:
        """Refuse schedules that end with an error before the run does."""
        updates = cast("int", self.run_config.max_num_train_steps) - self.num_updates_completed
        steps = self._stepping.count(updates, self.run_config.num_epochs - self.num_epochs_completed)
        for name, scheduler in self.named_schedulers().items():
            if name != "scheduler" or not self._steps_scheduler_itself:
                run_scheduler.check_length_of_schedule(scheduler, steps, is_resumed=self._resumption.saved is not None)

    # What every loop stands on: steps and epochs

    @property
    def _is_at_last_update(self) -> bool:
        """Whether all updates are made, perhaps in mid-epoch."""
        return self._progress.updates == self.run_config.max_num_train_steps

    @property
    def _ends_within_epoch(self) -> bool:
        """Whether the last update cut its epoch short, which a longer run would bring to its end."""
        updates_of_whole_epochs = self.num_epochs_completed * self.run_config.num_update_steps_per_epoch
        return self._is_at_last_update and self.num_updates_completed < updates_of_whole_epochs

    def _remaining_steps(self, train_dl: SizedIterable, count: BatchCount | None) -> Iterator[tuple[MicroBatch, Any]]:
        """The rest of a training epoch: no step, if the run had its last update before it was interrupted."""
        if self._is_at_last_update:
            return iter(())
        return micro_batches(
            train_dl,
            self._remaining_batches(train_dl),
            accumulation_steps=self.run_config.gradient_accumulation_steps,
            rank=self._accelerator.process_index,
            num_processes=self._accelerator.num_processes,
            steps_done=self._progress.steps_in_epoch,
            count=count,
        )

    def _remaining_batches(self, train_dl: SizedIterable) -> Iterable[Any]:
        """The batches of the rest of the epoch on the device; a custom data loader is not read ahead."""
        loader = self._resumption.loaders.custom_state(train_dl)
        if loader is None:
            return batches_on_device(train_dl, self.device)
        limit = batches_of_slices(train_dl)
        batches = self._leaving_safe_point(loader.batches())
        return islice(batches, None if limit is None else max(0, limit - self._progress.steps_in_epoch))

    def _leaving_safe_point(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Fetching a batch of a custom data loader changes what the state holds of it."""
        for batch in batches:
            yield batch
            self._safe_points.leave()

    def _calculate_batch_loss(self, batch: Any, method: str) -> dict[str, Any]:
        """The default step: the loss of a batch, whose parts are checked in the first step of a run."""
        return default_step.calculate_batch_loss(self.model, self.loss_func, batch, method, self._checked_steps)

    def _record_epoch_loss(self, metric_name: str, count: BatchCount | None) -> None:
        """Record the means over all samples of the epoch on all processes, unless one of them asked to stop."""
        missing = 0.0 if count is None else count.missing
        missing = self._agreement.add_up(self._loss_tracker, self._step_means, missing)
        if count is not None:
            self._loaders.check_count(count, missing, is_empty=self._loss_tracker.running_count == 0)
        if self._loss_tracker.running_count == 0:
            raise no_sample_counted(metric_name)
        self.run_history.update_metric(metric_name, self._loss_tracker.average)
        self._step_means.record(self.run_history, metric_name)

    def _updated_parameters(self) -> Iterator[Tensor]:
        """Others of the model may have gradients too, which nobody clears and which must not count."""
        for optimizer in self.named_optimizers().values():
            for group in optimizer.param_groups:
                yield from group["params"]

    @contextmanager
    def _evaluating(self) -> Generator[None]:
        """Within the context the model is the module without wrappers; means and modes of training come back."""
        wrapped, losses_of_training, means_of_training = self.model, self._loss_tracker, self._step_means
        modes = [(module, module.training) for module in wrapped.modules()]
        self.model = unwrap_model(wrapped)
        self._loss_tracker, self._step_means = LossTracker(), StepMeans()
        try:
            distributed.broadcast_buffers(self.model)
            with self._added.evaluating(self.optimizer):
                yield
        finally:
            self.model = wrapped
            self._loss_tracker, self._step_means = losses_of_training, means_of_training
            for module, training in modes:
                module.training = training

    # What every loop stands on: training states

    def _resume(self, allowed: Collection[str]) -> None:
        """Restore everything of a saved run but what callbacks set up when the run starts."""
        self._resumption.note_settings(self, str(self._stepping), self._stepping.count)
        counts_steps = not (self._steps_scheduler_itself or self._stepping.watch_metric)
        self._resumption.restore(
            self,
            scaler=self._accelerator.scaler,
            objects=self._safe_points.registered,
            allowed=allowed,
            count_steps=self._stepping.count if counts_steps else None,
        )
        if self._resumption.saved is not None:
            for name, accumulation in self._accumulations().items():
                accumulation.nominal = self._resumption.saved.nominal_items.get(name)

    def _resume_steps(self, train_dl: SizedIterable) -> None:
        """Restore what belongs to a place within an epoch, and finish an evaluation that was interrupted there."""
        phase = self._resumption.resume_steps(
            self,
            train_dl,
            report=lambda steps: self._call_event(TrainerCallback.on_train_steps_passed_over, steps=steps),
        )
        if phase is Phase.INTERMEDIATE_EVALUATION:
            with self._safe_points.between_steps():
                try:
                    self.run_evaluation_epoch(is_intermediate=True)
                except EvaluationInterrupted:
                    self._reach_safe_point(Phase.STEP)

    @contextmanager
    def _interruptible_evaluation(self) -> Generator[None]:
        """Let the evaluation after a training epoch be interrupted by a preemption, for the resumed run to do it."""
        try:
            with self._safe_points.interruptible(Phase.EVALUATION, self):
                yield
        except EvaluationInterrupted:
            self._reach_safe_point(Phase.EVALUATION)

    def _reach_end(self) -> None:
        """Save what was asked for at the end of a training run, unless a loss that is not finite ended it."""
        if isinstance(self._agreement.stop, NonFiniteLossError):
            self._safe_points.end(self._agreement.stop, self.device)
            self._safe_points.drop_requests(self._agreement.stop)
        else:
            self._resumption.finish(self)
            self._reach_safe_point(Phase.COMPLETE)

    def _reach_safe_point(self, phase: Phase) -> None:
        """Save what was asked for: here, everything that the run consists of belongs to the same update.

        Args:
            phase: What comes next.
        """
        self._safe_points.reach(phase, self, self._call_event)

    # The names under which scripts know the loaders

    @property
    def _train_dataloader(self) -> SizedIterable:
        """The name under which scripts know ``train_dataloader``."""
        return self.train_dataloader

    @_train_dataloader.setter
    def _train_dataloader(self, loader: SizedIterable) -> None:
        self.train_dataloader = loader

    @property
    def _eval_dataloader(self) -> SizedIterable | None:
        """The name under which scripts know ``eval_dataloader``."""
        return self.eval_dataloader

    @_eval_dataloader.setter
    def _eval_dataloader(self, loader: SizedIterable | None) -> None:
        self.eval_dataloader = loader


def _unset() -> Any:
    """The value of attributes that have one from the first run on, and are typed as if they always had."""
    return None
