"""Custom training loops with the guarantees of ``Trainer.train``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast, overload

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core._tensors import reshard
from pa_core.callbacks.limit_batches import add_limit_of_environment, apply_limit_of_environment
from pa_core.checkpoints import checkpoint
from pa_core.custom_loop import mistakes
from pa_core.custom_loop.evaluations import Evaluations
from pa_core.custom_loop.run_models import RunModels
from pa_core.custom_loop.update import Update, batches_of_loop
from pa_core.data.custom_loader import lengths_of_epochs
from pa_core.data.data_arguments import DEFAULT_BATCH_SIZE, DataArgument
from pa_core.data.epoch_lengths import EpochLengths
from pa_core.distributed.collectives import gather_without_rows, tensors_with_gradient
from pa_core.engine.any_trainer import AnyTrainer, CallbackHandler, CallbackLike, TrainerCallback
from pa_core.engine.parts import counting_samples, forget_gradients
from pa_core.engine.prepare import check_data, fit_batches, follow_deepspeed, place, require_usable, shard
from pa_core.engine.run_arguments import RunArguments, requested_epochs
from pa_core.engine.run_descriptions import describe_start, require_same_parts
from pa_core.engine.running import running, stopping_in_order
from pa_core.engine.scheduler_stepping import SchedulerStepping
from pa_core.engine.session import Session
from pa_core.engine.setup import TrainingHooks
from pa_core.engine.update import Batches
from pa_core.errors import ConfigurationError, StopTrainingError
from pa_core.run_config import TrainerRunConfig
from pa_core.steps.default_step import require_count
from pa_core.steps.placeholders import create_scheduler
from pa_core.tracking import MetricValue, RunHistory
from pa_core.training_state.progress import Phase
from pa_core.types import (
    BatchT,
    ModelT_co,
    SchedulerFactory,
    SchedulerLike,
    SizedIterable,
    StatefulScheduler,
    TensorsT,
)
from pa_core.user_warnings import warn_user
from pa_data.orders import Order
from pa_distributed import print_errors_once

_T = TypeVar("_T")

_block_is_open: ContextVar[bool] = ContextVar("_block_is_open", default=False)


class Run(AnyTrainer, Generic[ModelT_co, BatchT]):
    """Run a training loop that you write yourself, with the features of ``Trainer.train``.

    Use it if your task does not fit the loop of ``Trainer``, for example with several optimizers, in reinforcement
    learning, or if you already have a loop. The order of the samples, gradients over several batches and processes,
    metrics, callbacks, signals, and exact resuming from training states all work as in ``Trainer``. The loop itself
    stays in
    your script::

        with Run(model, optimizer, train_dataset, num_epochs=10, per_device_batch_size=64) as run:
            for epoch in run.epochs():
                for update in run.updates():        # an accumulation group
                    for inputs, targets in update:  # a batch, on the device
                        update.backward(loss_func(model(inputs), targets))
                    update.step()  # clip gradients, step the optimizer and its scheduler, clear the gradients
                for inputs, targets in run.evaluation_batches(eval_dataset):
                    run.log("loss", loss_func(model(inputs), targets))

    A run is entered once, in a ``with`` statement, on every process. An accumulation group consists of the batches
    whose gradients are combined in an optimizer update. With ``run.batches()``, ``run.backward()`` and ``run.step()``,
    you can write the same loop without an ``Update`` object. ``updates()`` outside of ``epochs()`` iterates over all
    epochs. In the body of a batch, ``updates(batches)`` and ``batches(batches)`` iterate over batches that your loop
    makes, for example the chunks of a sequence, a rollout, or samples from a replay buffer. The models are not wrapped,
    even with several processes, so call them directly: ``model(inputs)``. With ``mixed_precision``, such a call
    computes in the lower precision without further code. Only calls to a part of the model or to another of its
    methods, for example ``model.encode(inputs)``, need ``with run.autocast():``.

    The events of a callback are passed the run as the trainer. These are the events of a run:

    - ``on_init_end``: the run is constructed.
    - ``on_prepare_start``: the block is entered; nothing is placed or compiled yet.
    - ``on_training_run_start``: the first loop begins. A run that resumes then restores its state.
    - ``on_train_epoch_start``, ``on_train_epoch_end``: ``updates()`` or ``batches()`` begins or ends an epoch.
    - ``on_train_step_start``: before each batch of the dataset, but not on a process that has no sample in the batch.
    - ``on_train_step_end``: after the body of a batch, or before its first step. ``batch_output["loss"]`` is the loss
      of the backward pass. With ``updates(batches)`` or ``batches(batches)``, for each of those batches.
    - ``on_optimizer_step_end``: after the step; with several optimizers, at the end of the body of the update.
    - ``on_eval_epoch_start``, ``on_eval_step_start``, ``on_eval_step_end``, ``on_eval_epoch_end``: in each evaluation;
      the two step events are not called on a process that has no sample in the batch.
    - ``on_training_run_epoch_end``: after the body of an epoch.
    - ``on_training_state_request``, ``on_preemption``: after the body of an update, if a state or a preemption was
      requested.
    - ``on_preemption_check``: never, because an evaluation in a loop cannot be interrupted.
    - ``on_training_state_save``: before a training state is captured.
    - ``on_training_state_saved``: a training state is complete on the disk.
    - ``on_train_steps_skipped``: a resumed run skips the batches that were trained before the interruption.
    - ``on_training_run_end``, ``on_stop_training_error``, ``on_exception``: the block ends.

    Args:
        model: The module to train, or several modules by name:
            ``{"generator": generator, "discriminator": discriminator}``.
        optimizer: The optimizer of the model. With several models, a single optimizer of all their parameters, or a
            mapping from model names to optimizers. Models without an optimizer are placed on the device and saved in
            training states. None if you pass ``create_optimizer_fn``.
        train_dataset: The samples to train on, or a ``DataLoader`` of them, whose order is used.
        num_epochs: The number of epochs; leave it out if you pass ``max_num_train_steps``.
        max_num_train_steps: The number of optimizer updates of the run. If you pass it, the run makes this many updates
            and may end mid-epoch; it overrides ``num_epochs``.
        per_device_batch_size: The number of samples in a batch of one process; the default, 8, fits on almost any
            device. Leave it out if you pass a ``DataLoader``, which has its own. With ``samples_per_update``, "fit"
            starts with the largest possible batches; if a batch does not fit into memory, the run exits with status 75,
            and the next start resumes with smaller batches.
        gradient_accumulation_steps: The number of batches of one process in an update; the default is 1. The last
            update of an epoch may have fewer batches.
        gradient_clip_value: Each element of the gradients is clipped to plus and minus this value. None, the default,
            does not clip.
        gradient_clip_norm: All gradients of an optimizer are scaled down together so that their common norm is at most
            this value. None, the default, does not clip.
        create_scheduler_fn: A function that is called with the optimizer and returns its scheduler. Arguments of a
            ``functools.partial`` may be ``TrainerPlaceholderValues``. With several optimizers, pass a mapping from
            optimizer names to functions.
        train_dataloader_kwargs: Arguments of ``torch.utils.data.DataLoader`` for the training loader; they override the
            defaults (shuffling and, with an accelerator, pinned memory). None, the default, overrides nothing.
        collate_fn: A function that makes a batch of a list of samples, for all loaders. None, the default, stacks
            tensors, as ``DataLoader`` does.
        callbacks: Callbacks, as classes or instances. By default, there are no callbacks, because your loop prints its
            own progress.
        run_history: The history that records the metrics; None, the default, creates an ``InMemoryRunHistory``.
        resume_from: A training state, or a folder of states (the newest valid state is used). Either can be a URL in an
            object store, such as ``"s3://bucket/states"``. The state is restored when the first loop of the block
            begins, so that you can register further objects before that. None, the default, begins a new run.
        resume_missing: What to do if ``resume_from`` holds no state. ``"error"`` is the default, because otherwise a
            mistyped path would begin a new run; ``"start"`` begins a new run, so that a job script can always pass both
            arguments.
        resume_allow: Names of differences from the saved run that are accepted. Each of these differences raises an
            error unless it is named here, because it changes the meaning of the run. The names are
            "samples_per_update", "dataset_length", "shuffle", "order", "drop_last", "loader", "model", "optimizer" and
            "scheduler". Reproducible runs add "reproducible" and "arithmetic".
        step_scheduler: When schedulers are stepped: after each ``"update"`` of their optimizer, the default, or after
            each ``"epoch"``.
        watch_metric: The full name of a metric, for example "eval_loss_epoch". After each epoch, its value is passed to
            schedulers such as ``ReduceLROnPlateau``.
        mixed_precision: "no", "bf16" or "fp16". The default, None, uses the launcher's setting.
        cpu: True trains on the CPU. The default, None, uses the device that the script was launched on.
        max_wait_seconds: The number of seconds that a process waits for another process before all of them print where
            they are and exit. The default is 600, the same as NCCL's default timeout, which gives no diagnostics. None
            leaves the timeout to the process group.
        create_optimizer_fn: A function that is called with the model and returns its optimizer; pass it in place of
            ``optimizer``. It is called once, when the block is entered, after any sharding of the model. A single
            function for several models is called with an ``nn.ModuleDict`` of them. If each model has its own
            optimizer, pass a mapping from model names to functions.
        order: Which samples an epoch visits, and when: an object from ``pa_data.orders``. None, the default, uses the
            order of the dataset if it has an order, and otherwise visits each sample once in a random order.
        max_updates_per_batch: The largest number of updates that the loop makes from each batch of ``train_dataset``,
            by ``updates(batches)``. Schedules and the length of the run are computed from it, and
            ``gradient_accumulation_steps`` then counts the batches that your loop makes. None, the default, is for
            loops that do not call ``updates(batches)``.
        samples_per_update: The total number of samples in an optimizer update, over all processes. The batches and the
            accumulation follow from it, on any number of processes; ``per_device_batch_size`` is then the largest
            number of samples in a forward pass of one process. By default (None), an update consists of
            ``gradient_accumulation_steps`` batches from each process.
        reproducible: "any_processes" makes results bit-for-bit identical on any number of processes, and needs
            ``samples_per_update``. None, the default, is faster, but results on different numbers of processes are
            equal only up to rounding.

    Attributes:
        step_scheduler: The value that was passed.
        watch_metric: The value that was passed.

    Raises:
        ArgumentTypeError: An argument has the wrong type, for example a class instead of an instance.
        ConfigurationError: An argument cannot work, or the names of models, optimizers and functions differ; or both
            ``optimizer`` and ``create_optimizer_fn`` are passed.
        UnsupportedConfigurationError: An earlier trainer of the process uses a different precision or device.
        DataError: ``pa_data`` cannot use the dataset, the loader or the order (raised when the block is entered).
        RanksDifferError: The processes were passed different arguments, models or samples (raised when the block is
            entered).
        CheckpointNotFoundError: There is no training state to resume (raised when the block is entered).
        NonFiniteLossError: ``TerminateOnNaNCallback`` ended the run (raised when the block ends).

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import Run
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(64, 3)
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Run(model, optimizer, TensorDataset(x, x.sum(1, keepdim=True)), num_epochs=20) as run:
        ...     for inputs, targets in run.batches():
        ...         run.backward((model(inputs) - targets).square().mean())
        ...         _ = run.step()
        >>> run.num_updates_completed, run.run_history.get_latest_metric("train_loss_epoch") < 0.001
        (160, True)
    """

    model: ModelT_co  # pyright: ignore[reportIncompatibleVariableOverride]  # narrower than any module
    optimizer: Optimizer
    scheduler: StatefulScheduler | None
    train_dataset: Dataset[Any]
    eval_dataset: Dataset[Any] | None
    train_dataloader: SizedIterable
    epoch_lengths: EpochLengths
    eval_dataloader: SizedIterable | None
    run_config: TrainerRunConfig
    callback_handler: CallbackHandler[Self]
    resume_from: Path | None
    _session: Session

    def __init__(
        self,
        model: ModelT_co | Mapping[str, nn.Module],
        optimizer: Optimizer | Mapping[str, Optimizer] | None,
        train_dataset: Dataset[Any] | DataLoader[Any],
        *,
        num_epochs: int | None = None,
        max_num_train_steps: int | None = None,
        per_device_batch_size: int | Literal["fit"] = DEFAULT_BATCH_SIZE,
        gradient_accumulation_steps: int = 1,
        gradient_clip_value: float | None = None,
        gradient_clip_norm: float | None = None,
        create_scheduler_fn: SchedulerFactory[Any] | Mapping[str, SchedulerFactory[Any]] | None = None,
        train_dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], BatchT] | None = None,
        callbacks: Iterable[CallbackLike[Self]] = (),
        run_history: RunHistory | None = None,
        resume_from: str | Path | None = None,
        resume_missing: Literal["error", "start"] = "error",
        resume_allow: Collection[str] = (),
        step_scheduler: Literal["update", "epoch"] = "update",
        watch_metric: str | None = None,
        mixed_precision: Literal["no", "bf16", "fp16"] | None = None,
        cpu: bool | None = None,
        max_wait_seconds: float | None = 600.0,
        create_optimizer_fn: Callable[[ModelT_co], Optimizer] | Mapping[str, Callable[[Any], Optimizer]] | None = None,
        order: Order | None = None,
        max_updates_per_batch: int | None = None,
        samples_per_update: int | None = None,
        reproducible: Literal["any_processes"] | None = None,
    ) -> None:
        self._given = RunModels(model, optimizer, create_scheduler_fn, create_optimizer_fn)
        super().__init__(
            self._given.whole,
            None,
            next(iter(self._given.optimizers.values()), None),
            callbacks,
            run_history,
            mixed_precision=mixed_precision,
            cpu=cpu,
            max_wait_seconds=max_wait_seconds,
            reproducible=reproducible,
        )
        with print_errors_once():
            self._train_data = DataArgument(
                train_dataset, "train_dataset", train_dataloader_kwargs, is_made_by_method=False, order=order
            )
            self._arguments = RunArguments(
                call=type(self).__qualname__,
                data=[self._train_data],
                per_device_batch_size=per_device_batch_size,
                num_epochs=requested_epochs(num_epochs, max_num_train_steps),
                gradient_accumulation_steps=gradient_accumulation_steps,
                samples_per_update=samples_per_update,
                max_num_train_steps=max_num_train_steps,
                gradient_clip_value=gradient_clip_value,
                gradient_clip_norm=gradient_clip_norm,
                max_updates_per_batch=max_updates_per_batch,
                create_scheduler_fn=self._given.factories.get("optimizer", self._given.factories or None),
                stepping=SchedulerStepping(step_scheduler, watch_metric, caller="Run"),
                collate_fn=collate_fn,
                resume_from=resume_from,
                resume_missing=resume_missing,
                resume_allow=resume_allow,
            )
            if self._accelerator.scaler is not None and len(self._given.optimizer_names) > 1:
                raise mistakes.shared_scaler()
        self.collate_fn = collate_fn
        self.step_scheduler: Literal["update", "epoch"] = step_scheduler
        self.watch_metric: str | None = watch_metric
        self._setup.makes_optimizer = not self._given.optimizers
        self._setup.hooks = TrainingHooks(pads=True)
        self._session = Session(self, self._setup)
        with print_errors_once():
            check_data(self._session, self._arguments.data, self._arguments)
        self._parts = self._given.make_parts(self._accelerator, self._session.exchange)
        self._evaluations = Evaluations[BatchT](self._session)
        self._block, self._showing_last_epoch, self._has_begun = ExitStack(), ExitStack(), False
        # The position of the script: in the block, in its loop over epochs, in the training of an epoch, in an update.
        self._stage: Literal["before", "within", "after"] = "before"
        self._in_epochs: Literal["before", "within", "after"] = "before"
        self._training: Literal["to come", "in progress", "left", "over"] = "over"
        self._update: Update[Any] | None = None
        add_limit_of_environment(self.callback_handler)
        self.callback_handler.call_event(TrainerCallback.on_init_end, self)

    # The models

    if TYPE_CHECKING:

        @override
        def get_model(self, keep_torch_compile: bool = True) -> ModelT_co: ...

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The models by name, as they were passed; the name of a single model is "model".

        A mapping from names to modules, not wrapped and not compiled. It does not change.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> run = Run({"student": model}, optimizer, make_regression(16), num_epochs=1)
            >>> list(run.models)
            ['student']
        """
        return self._given.models

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """The optimizers by name; the name of a single optimizer is "optimizer".

        If there are several optimizers, each has the name of the model that it trains. The mapping is empty before the
        block is entered if ``create_optimizer_fn`` creates the optimizers.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), make_regression(16), num_epochs=1)
            >>> run.optimizers["optimizer"].param_groups[0]["lr"]
            0.1
        """
        return self._given.optimizers

    @property
    def schedulers(self) -> Mapping[str, StatefulScheduler]:
        """The schedulers by the names of their optimizers; the name of a single optimizer is "optimizer".

        A mapping; empty without schedulers, and before the block is entered. ``named_schedulers()`` returns them by the
        names in training states.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> run = Run(model, optimizer, make_regression(16), num_epochs=1)
            >>> dict(run.schedulers)
            {}
        """
        return {name: scheduler for part in self._parts.values() for name, scheduler in part.schedulers.items()}

    @override
    def named_models(self) -> dict[str, nn.Module]:
        """Return the models by name, for callbacks that change or save weights; in your loop, read ``models``.

        Returns:
            A new dictionary of all models of the run, trained or not; the name of a single model is "model". Training
            states use the same names.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), make_regression(16), num_epochs=1)
            >>> run.named_models()["model"] is model
            True
        """
        return dict(self._given.models)

    @override
    def named_optimizers(self) -> dict[str, Optimizer]:
        """Return the optimizers by name, for callbacks that read learning rates; in your loop, read ``optimizers``.

        Returns:
            A new dictionary; the name of a single optimizer is "optimizer", and several optimizers have the names of
            their models. Training states use the same names. The dictionary is empty before the block is entered if
            ``create_optimizer_fn`` creates the optimizers.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), make_regression(16), num_epochs=1)
            >>> list(run.named_optimizers())
            ['optimizer']
        """
        return dict(self._given.optimizers)

    @override
    def named_schedulers(self) -> dict[str, StatefulScheduler]:
        """Return the schedulers, for callbacks, by the names that training states use.

        Returns:
            A new dictionary; the name of a single scheduler is "scheduler", and several schedulers have the names of
            their models. The dictionary is empty without schedulers, and before the block is entered.

        Example:
            >>> import torch
            >>> from functools import partial
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=10)
            >>> with Run(model, optimizer, make_regression(16), num_epochs=1, create_scheduler_fn=schedule) as run:
            ...     list(run.named_schedulers())
            ['scheduler']
        """
        return {self._given.name_of_scheduler(name): scheduler for name, scheduler in self.schedulers.items()}

    # The block

    @override
    @contextmanager
    def dry_run(self, *data: object) -> Generator[None]:
        """Return a context that undoes all effects of the block within it, to try the loop before the run.

        Enter the block of the run within the context, and again after the context for the real run. Afterwards, the
        models, the optimizers, the history, random numbers and all other objects that the loop reaches have their
        earlier values. Objects that cannot be restored are named in a warning, and files that the loop writes are not
        removed. Within the context a new run begins, even with ``resume_from``.

        Args:
            *data: Further datasets and loaders that the loop uses, whose random generators are restored; the training
                data is included anyway.

        Returns:
            A context manager for a ``with`` statement.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), make_regression(16), num_epochs=1)
            >>> with run.dry_run(), run:
            ...     for inputs, targets in run.batches():
            ...         run.backward((model(inputs) - targets).square().mean())
            ...         _ = run.step()
            >>> run.num_updates_completed
            0
        """
        with super().dry_run(*self._train_data.held, *data), self._given.dry_run():
            self._parts = self._given.make_parts(self._accelerator, self._session.exchange)
            self._evaluations, self._arguments = Evaluations(self._session), replace(self._arguments, resume_from=None)
            yield

    def __enter__(self) -> Self:
        """Begin the run: place the models, and create the loader and the schedulers.

        Raises:
            ConfigurationError: The block was entered before, or the block of another run is open.
            DataError: ``pa_data`` cannot use the dataset, the loader or the order.
            FileNotFoundError: There is no training state to resume from.
            CheckpointError: No training state is valid.
        """
        if self._stage != "before":
            raise ConfigurationError(
                "A run has one block.",
                given=f"with run: a second time, {self._stage} the block",
                do="Make another Run.",
            )
        if _block_is_open.get():
            raise ConfigurationError(
                "Only one run can be in progress, and the block of another run is open. End that block first, "
                "or pass several models by name to a single run."
            )
        reshard(self.model)  # as when the run was made
        arguments = self._arguments
        self.train_dataset = cast("Dataset[Any]", self._train_data.dataset)
        with ExitStack() as block:
            block.callback(_block_is_open.reset, _block_is_open.set(True))
            begin, in_progress = self._begin_session, self._session.running
            block.enter_context(running(self._setup, "train", in_progress, begin, arguments.describe))
            self._session.find_state(arguments)
            loaders, size = self._setup.loaders, arguments.batch_size
            loader = loaders.get_or_create(
                self._train_data, self._create_train_loader, size, arguments.samples_per_update
            )
            self.train_dataloader = cast("SizedIterable", loader)
            self._session.announce()
            apply_limit_of_environment(self)
            require_same_parts(self, is_training=True)
            shard(self._session, *self.models.values())
            self._given.place(self._parts, self._session.exchange, partial(place, self._session))
            if not self.optimizers:
                with print_errors_once():
                    self._given.make_optimizers()
                self.optimizer = next(iter(self.optimizers.values()))
                require_same_parts(self, is_training=True)
            for name, part in self._parts.items():
                part.watch_steps(self.optimizers[name])
            self.train_dataloader = loaders.split_for_training(self.train_dataloader)
            if arguments.per_device_batch_size == "fit":
                self._arguments = arguments = fit_batches(self._session, arguments)
            require_usable(self._session, [self.train_dataloader], self.models)
            steps = loaders.steps_per_update(self.train_dataloader, size, arguments.gradient_accumulation_steps)
            arguments = replace(arguments, gradient_accumulation_steps=steps)
            per_batch = arguments.max_updates_per_batch
            self.epoch_lengths = lengths_of_epochs(
                self.train_dataloader, 1 if per_batch else steps, arguments.max_num_train_steps, per_batch or 1
            )
            self.run_config = self._create_run_config(*arguments.numbers)
            follow_deepspeed(self._session)
            self._session.resumption.record_hyperparameters(self)
            for name, factory in self._given.factories.items():
                scheduler = create_scheduler(factory, self.optimizers[name], self._session.placeholder_values())
                self._parts[name].schedulers = {name: scheduler}
            self.scheduler = next(iter(self.schedulers.values()), None)
            self._session.require_usable_schedulers()
            self._block = block.pop_all()
        self._stage = "within"
        return self

    def _begin_session(self) -> Session:
        session = Session(self, self._setup, self._arguments, self._parts)
        self._session = session  # pyright: ignore[reportIncompatibleVariableOverride]  # narrower than of any trainer
        self._evaluations = Evaluations(session)
        return session

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the run and call its last events, or clean up after an exception.

        Returns:
            Whether the exception was a request to stop, which ends the block without an exception.

        Raises:
            NonFiniteLossError: ``TerminateOnNaNCallback`` ended the run. It is raised after the last events.
            RanksDifferError: Another process is at a different place in the run.
            TrainingPreempted: The run was preempted, and its training state was saved.
        """
        self._evaluations.end()
        self._showing_last_epoch.close()
        self._close_update()
        self._session.last_batch = None
        self._session.means.end_step()
        self._stage = "after"
        if exception is not None and not isinstance(exception, StopTrainingError):
            return bool(self._block.__exit__(kind, exception, traceback))
        with self._block:
            self._finish(exception)
        self._session.rank_sync.raise_non_finite_loss()
        return True

    def _finish(self, stop: StopTrainingError | None) -> None:
        """Call the last events; a run that the script left early, by a ``break``, is also complete."""
        if not self._has_begun:
            return
        self._forget_gradients()
        with stopping_in_order(self._session):
            if stop is not None:
                raise stop
        with suppress(StopTrainingError), self._session.rank_sync.together():
            pass  # if only this process left the loop, the run must not end as complete
        self._session.checkpointer.next_phase = None
        self._session.finish()
        self._session.checkpointer.settle(self._session.call)

    def _begin(self) -> None:
        """Restore a saved run, with the registered objects, when the first loop of the block begins."""
        if self._has_begun:
            return
        self._has_begun = True
        self._session.resume()
        if len(self._parts) == 1:  # only the loop knows how often each of several optimizers steps
            self._session.check_length_of_schedules()
        if self._session.resumption.saved is None:
            self._session.reset_history()
        self._session.begin(describe=partial(describe_start, self, self._session.progress))

    # The loops

    def epochs(self) -> Iterator[int]:
        """Iterate over the remaining epochs; the body iterates over the updates of the epoch.

        You call it in the block of the run if an epoch has more than its updates, for example an evaluation; otherwise,
        iterate only over ``updates()`` or ``batches()``. Code that follows the updates belongs to the epoch. A
        ``break`` ends the run, which is then complete. A resumed run begins with the epoch in which it was interrupted.

        Yields:
            The epoch number, counted from 0.

        Raises:
            ConfigurationError: The call is outside the block of the run, in the body of another loop of the run, or
                after a loop that has trained; or an epoch had no updates.
            CheckpointError: The run differs from the saved run.
            TrainingPreempted: The run was preempted, and its training state was saved; a ``SystemExit``.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(16), num_epochs=2) as run:
            ...     for epoch in run.epochs():
            ...         for inputs, targets in run.batches():
            ...             run.backward((model(inputs) - targets).square().mean())
            ...             _ = run.step()
            ...         print("epoch", epoch, "ended after update", run.num_updates_completed)
            epoch 0 ended after update 2
            epoch 1 ended after update 4
        """
        self._require_training("epochs()")
        if self._in_epochs == "within":
            raise mistakes.loop_within("epochs()", "an epoch")
        if self._in_epochs == "after":
            raise mistakes.second_loop() if self._session.progress.epoch_under_way is None else mistakes.left_loop()
        self._begin()
        for epoch in self._session.remaining_epochs():
            self._training = "to come"
            self._in_epochs = "within"
            try:
                yield epoch
            finally:
                self._in_epochs = "after"
            self._require_open("the next epoch")
            self._finish_epoch()
        self._show_last_epoch()

    def _show_last_epoch(self) -> None:
        """After the last epoch, record metrics with its number until the block ends."""
        if self.num_epochs_completed >= self.run_config.num_epochs:
            self._showing_last_epoch.close()  # a complete run may be looped over again
            self._showing_last_epoch.enter_context(self._session.set_back_by_one_epoch())

    def _finish_epoch(self) -> None:
        """Count the epoch, step the schedulers that step after epochs, and call the last event."""
        self._evaluations.abort()
        if self._training == "to come":
            raise ConfigurationError(
                "An epoch was left without its updates. Write for update in run.updates(): ..., or for batch in "
                "run.batches(): ..., in the body of the loop over run.epochs()."
            )
        if self._training in ("in progress", "left"):
            self._end_training_early()
        self._session.finish_epoch()

    @overload
    def updates(self) -> Iterator[Update[BatchT]]: ...
    @overload
    def updates(self, batches: Iterable[_T], *, num_samples: int | None = None) -> Iterator[Update[_T]]: ...
    def updates(self, batches: Iterable[Any] | None = None, *, num_samples: int | None = None) -> Iterator[Update[Any]]:
        """Iterate over the remaining updates of the epoch or, outside of ``epochs()``, of all epochs.

        You call it in the block of the run if an update has several batches or several steps; for a step after each
        batch, ``batches()`` is shorter. Between two updates, training states are saved and signals end the run, so code
        that follows the step in the body still belongs to the update. A ``break`` ends the epoch.

        With ``batches``, you call it in the body of a batch of ``updates()``, to iterate over updates of batches that
        your loop makes, for example the chunks of a sequence. There are at most ``Run(max_updates_per_batch=...)`` such
        updates, and they end early with the last update of the run. States are saved only after the outer body, because
        a state does not contain these batches. A ``break`` drops the gradients of an update that was not stepped, and
        the outer body continues.

        Args:
            batches: The batches of this process, on any device; ``gradient_accumulation_steps`` of them make an update.
                A process that has fewer batches than the others, or none, gets padding batches with the weight 0 (see
                ``is_padding_batch``). The processes exchange how many batches they have, once if ``batches`` has a
                length, and otherwise (for example, for a generator) before each update. None, the default, uses the
                training dataset.
            num_samples: The number of samples in each of ``batches``, which is the weight of its loss. None, the
                default, uses the first dimension of the first tensor.

        Yields:
            An ``Update``, which is itself an iterable of its batches. Call its ``step`` in the body.

        Raises:
            ConfigurationError: The call is outside the block of the run, in the body of another loop over updates, or
                after a loop over all epochs that has trained; or an update was not stepped. With ``batches``, the call
                is not in the body of a batch, or it is between the backward pass of a batch and its step; or a batch
                has more updates than ``max_updates_per_batch``.
            CheckpointError: The run differs from the saved run.
            TrainingPreempted: The run was preempted, and its training state was saved; a ``SystemExit``.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(32), num_epochs=1, gradient_accumulation_steps=2) as run:
            ...     for update in run.updates():
            ...         for inputs, targets in update:  # two batches
            ...             update.backward((model(inputs) - targets).square().mean())
            ...         _ = update.step()
            >>> run.num_updates_completed
            2
        """
        self._require_training("updates()")
        if batches is not None:
            yield from self._updates_of_loop(batches, num_samples)
            return
        if self._in_epochs == "within":
            yield from self._updates_of_epoch()
            return
        for _ in self.epochs():
            yield from self._updates_of_epoch()

    def _updates_of_epoch(self) -> Iterator[Update[BatchT]]:
        """Iterate over the remaining updates of the epoch, and save a state after an update if it is requested."""
        if self._training != "to come":
            place = "an update" if self._training == "in progress" else "an epoch whose updates have ended"
            raise mistakes.loop_within("updates()", place)
        self._training = "in progress"
        session = self._session
        session.start_training(self.train_dataloader)
        with Batches(session.batches(self.train_dataloader)) as batches:
            progress, last = self._session.progress, self.run_config.max_num_train_steps
            while progress.updates != last and batches.has_next():
                session.updates_of_batch = 0
                self._update = update = Update[BatchT](session, batches, self._parts, self._evaluations)
                try:
                    yield update
                except GeneratorExit:  # of a break
                    self._training = "left"
                    raise
                self._end_update(update)
                self._session.checkpointer.next_phase = Phase.STEP
                if self._session.rank_sync.is_pending:
                    self._session.checkpointer.checkpoint(self, session.call)
        self._finish_training()

    def _updates_of_loop(self, batches: Iterable[Any], num_samples: int | None) -> Iterator[Update[Any]]:
        """Iterate over updates of the script's batches, in the body of a batch; no state is saved between them."""
        around, session = self._require_update("updates(batches)"), self._session
        if self._arguments.max_updates_per_batch is None:
            raise ConfigurationError(
                "updates(batches) needs to know how many updates the loop makes from a batch, because the length "
                "of the run depends on it. Pass Run(..., max_updates_per_batch=4), for example; fewer are allowed."
            )
        place = around.start_inner_updates()
        parts = batches_of_loop(
            batches,
            place,
            device=self.device,
            accumulation_steps=self.run_config.gradient_accumulation_steps,
            samples=num_samples,
        )
        with self._session.means.interrupted(), counting_samples(self._parts.values()), Batches(parts) as upcoming:
            try:
                while not session.is_at_last_update and upcoming.has_next():
                    self._update = update = Update[Any](
                        session, upcoming, self._parts, self._evaluations, is_inner=True
                    )
                    yield update
                    self._end_update(update)
            except GeneratorExit:  # of a break
                self._close_update()
                self._forget_gradients()
                for part in self._parts.values():
                    part.accumulation.items = 0.0
                session.exchange.drop_update()
                raise
            finally:
                self._update = around

    def _end_update(self, update: Update[Any]) -> None:
        """End an update, after its body."""
        self._require_open("the next update")
        self._evaluations.abort()
        update.finish()
        self._update = None
        update.end()

    def _close_update(self) -> None:
        if self._update is not None:
            self._update.close()
            self._update = None

    def _forget_gradients(self) -> None:
        forget_gradients(self.model, *self.optimizers.values())

    def _end_training_early(self) -> None:
        """End the training of an epoch whose loop over updates ended with a break."""
        self._close_update()
        self._forget_gradients()
        self._session.count = None
        self._finish_training()

    def _finish_training(self) -> None:
        """Record the means of the training of an epoch, and call its last event."""
        self._training = "over"
        self._session.finish_training(with_loss=len(self._parts) == 1)

    @overload
    def batches(self) -> Iterator[BatchT]: ...
    @overload
    def batches(self, batches: Iterable[_T], *, num_samples: int | None = None) -> Iterator[_T]: ...
    def batches(self, batches: Iterable[Any] | None = None, *, num_samples: int | None = None) -> Iterator[Any]:
        """Iterate over the batches of the remaining updates, on the device, for a loop with a step after each batch.

        You call it in the block of the run, either in the body of ``epochs()`` or, for all epochs, on its own. Call
        ``backward`` and ``step`` for each batch; with ``gradient_accumulation_steps``, ``step`` does nothing before the
        last batch of an update. With ``updates()``, there is a separate loop for each update instead.

        Args:
            batches: Batches that your loop makes in the body of a batch, for example the chunks of a sequence or a
                rollout, for at most ``Run(max_updates_per_batch=...)`` updates. None, the default, uses the training
                dataset.
            num_samples: The number of samples in each of ``batches``. None, the default, uses the first dimension of
                the first tensor.

        Yields:
            A batch as the loader makes it, on the device of this process.

        Raises:
            ConfigurationError: The call is outside the block of the run, in the body of another loop over batches, or
                after a loop over all epochs that has trained; or an update was not stepped.
            CheckpointError: The run differs from the saved run.
            TrainingPreempted: The run was preempted, and its training state was saved; a ``SystemExit``.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(16), num_epochs=2) as run:
            ...     for inputs, targets in run.batches():
            ...         run.backward((model(inputs) - targets).square().mean())
            ...         _ = run.step()
            >>> run.num_epochs_completed, run.num_updates_completed
            (2, 4)
        """
        for update in self.updates() if batches is None else self.updates(batches, num_samples=num_samples):
            yield from update

    def backward(
        self, loss: Tensor, *, model: str | None = None, num_items: int | None = None, retain_graph: bool = False
    ) -> None:
        """Compute the gradients of a loss of the current batch, and add them to the gradients of the update.

        You call it for each batch, in place of ``loss.backward()``, on every process; several calls for a batch add up.
        The sum is the gradient of the mean loss over all samples of the update, on all processes; gradients are
        exchanged with the last batch of an update. ``Update.backward`` is the same method.

        Args:
            loss: The mean loss over the samples of the batch, a tensor with one element and a graph.
            model: With several optimizers, the name of the model whose gradients are computed. None, the default, is
                for a single optimizer.
            num_items: The number of items in the batch of this process, if the loss is a mean over items other than
                samples, for example tokens. None, the default, counts samples.
            retain_graph: Whether to keep the graph for a further backward pass. False, the default, frees its memory.

        Raises:
            ConfigurationError: There is no update or no batch, the model is unknown or has been stepped, or the loss is
                not a single number with a graph.
            BatchOutputError: ``num_items`` is not a whole number; only some calls in a run pass it; or two calls for a
                batch pass different numbers.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(16), num_epochs=1) as run:
            ...     for inputs, targets in run.batches():
            ...         run.backward((model(inputs) - targets).square().mean())
            ...         _ = run.step()
            >>> len(run.run_history.get_metric_values("train_loss_epoch"))
            1
        """
        update = self._require_update("backward(...)")
        update.backward(loss, model=model, num_items=num_items, retain_graph=retain_graph)

    def step(self, name: str | None = None) -> bool:
        """Update the weights after the last batch of an update; after its other batches, do nothing.

        You call it for each batch of ``batches()``, after ``backward``, on every process; with several optimizers, once
        for each. It clips the gradients, steps the optimizer and its scheduler, and clears the gradients.
        ``Update.step`` raises an error before the last batch instead.

        Args:
            name: With several optimizers, the name of the optimizer to step. None, the default, is for a single
                optimizer.

        Returns:
            Whether an update was made. False if the batch is not the last of its update, or if gradients overflowed in
            fp16.

        Raises:
            ConfigurationError: There is no update, the last batch had no backward pass, the optimizer is unknown, it
                was already stepped, or its parameters have no gradients.
            StopTrainingError: A process requested the end of the run; no step was made. The block of the run catches
                it.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(32), num_epochs=1, gradient_accumulation_steps=2) as run:
            ...     for inputs, targets in run.batches():
            ...         run.backward((model(inputs) - targets).square().mean())
            ...         print(run.step())
            False
            True
            False
            True
        """
        update = self._require_update("step()")
        if name is not None and name not in self._parts:
            raise mistakes.unclear_name(name, self._parts, "step(name)")
        return update.is_at_last_batch and update.step(name)

    def request_stop(self, reason: str = "The loop requested a stop.") -> None:
        """Request that all processes end the run before the next update, as if it were complete.

        You call it in the loop, to stop early for a reason that only your loop knows. A single process may make the
        request, which is exchanged together with the gradients. If you call this before the step of the update in
        progress, this update is not made; if you call it later, the next update is not made. With several accelerators,
        the request is read two updates later, so that no process waits for it.

        To leave the loop by ``break`` or ``StopTrainingError``, all processes must leave it together; if only some of
        them do, all of them end with an error. Outside of the block, a warning is shown, and the call has no effect.

        Args:
            reason: The text of the ``StopTrainingError`` that callbacks get in ``on_stop_training_error``. The default
                names the loop.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(64), num_epochs=1, cpu=True) as run:
            ...     for inputs, targets in run.batches():
            ...         run.backward((model(inputs) - targets).square().mean())
            ...         _ = run.step()
            ...         if run.num_updates_completed == 3:
            ...             run.request_stop("Three updates are enough.")
            >>> run.num_updates_completed
            3
        """
        if self._session.running is None:
            warn_user("request_stop() has no effect outside of the block of the run.")
        elif self._session.rank_sync.stop is None:
            self._session.rank_sync.stop = StopTrainingError(reason)

    # Metrics and evaluations

    @property
    @override
    def is_padding_batch(self) -> bool:
        """Whether the current batch is padding, with the weight 0, because only other processes still have samples.

        It is always False with one process and outside of the loops. With several processes, the last step of a
        training epoch or of an evaluation may have fewer samples than there are processes. A process without a sample
        gets a copy of another process's batch, so that all of them call the model the same number of times. The losses,
        logged values and gathered rows of the copy are ignored, and callbacks do not see the copy. Check this property
        if your loop adds up or collects values itself.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model, samples = torch.nn.Linear(4, 1), make_regression(16)
            >>> run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), samples, num_epochs=1)
            >>> num_samples = 0
            >>> with run:
            ...     for inputs, targets in run.evaluation_batches(samples):
            ...         if not run.is_padding_batch:
            ...             num_samples += len(inputs)
            >>> num_samples
            16
        """
        if self._evaluations.is_in_batch:
            return self._evaluations.samples == 0
        return self._update is not None and self._update.is_empty

    @override
    def gather(self, tensor: TensorsT, padding_value: float | None = None, *, with_gradient: bool = False) -> TensorsT:
        """Return the tensors of all processes, concatenated along the first dimension; every process must call this.

        You call it for metrics that are not means over samples, for example an area under a curve. For means, call
        ``log``, which needs no exchange. In the body of a loop, a process with a padding batch (see
        ``is_padding_batch``) adds no rows, so that each sample is in the result once.

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
                detaches the result.

        Returns:
            The same structure, with the rows of all processes in the order of the ranks, on the device of this process.

        Raises:
            ArgumentTypeError: ``tensor`` contains an object that is neither a tensor nor a container of tensors; a
                ``TypeError``.
            ConfigurationError: The tensors of the processes do not fit together; or this was called in a step of a
                reproducible run, in which processes have different numbers of steps.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model, samples = torch.nn.Linear(4, 1), make_regression(16)
            >>> with Run(model, torch.optim.SGD(model.parameters(), lr=0.1), samples, num_epochs=1) as run:
            ...     outputs = [run.gather(model(inputs)) for inputs, targets in run.evaluation_batches(samples)]
            >>> torch.cat(outputs).shape
            torch.Size([16, 1])
        """
        self._session.require_between_steps("gather(...)")
        # Values that callbacks gather between two steps do not belong to the batch.
        if self.is_padding_batch and not self._session.checkpointer.is_between_steps:
            gathered = gather_without_rows(tensor, padding_value, with_gradient=with_gradient)
            self._session.gathered_empty += tensors_with_gradient(gathered)
            return gathered
        return super().gather(tensor, padding_value, with_gradient=with_gradient)

    @override
    def log(self, name: str, value: MetricValue, *, num_items: int | None = None) -> None:
        """Log a value of the current batch, and record its mean over all samples of the epoch or the evaluation.

        The metric is called ``train_NAME_epoch`` in training and ``eval_NAME_epoch`` in an evaluation. In training, you
        call it before the step of the update, or in a callback's ``on_optimizer_step_end``, because there is no batch
        after the step. A tensor stays on its device, and is not read before the mean is recorded. For a value that is
        not a mean over samples, call ``record``.

        Args:
            name: The name of the metric without prefix and suffix, for example "accuracy". It consists of letters,
                digits and underscores, does not start with a digit, and can be logged once for each batch. "loss" is
                allowed only in evaluations, because ``backward`` logs the loss in training.
            value: A number, or a tensor with one element: a mean over the samples of the batch on this process.
            num_items: The number of items in the batch of this process, if the value is a mean over items other than
                samples, for example tokens. None, the default, counts samples.

        Raises:
            ConfigurationError: There is no batch, the name cannot be used or was already logged for this batch, or the
                value is not a single number.
            BatchOutputError: ``num_items`` is not a whole number.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(16), num_epochs=1) as run:
            ...     for inputs, targets in run.batches():
            ...         run.backward((model(inputs) - targets).square().mean())
            ...         run.log("size", len(inputs))
            ...         _ = run.step()
            >>> run.run_history.get_latest_metric("train_size_epoch")
            8.0
        """
        num_items = None if num_items is None else require_count(num_items, f'num_items in log("{name}", ...)')
        if self._evaluations.is_in_batch and name == "loss":
            self._evaluations.log_loss(value, num_items)
        elif not self._session.means.is_in_step:
            raise ConfigurationError(
                f"log({name!r}, ...) needs a batch, and was called outside of a loop over "
                "batches, or after the step of an update. Log before the step; for a value that is not a mean over "
                "samples, call run.record(name, value)."
            )
        else:
            is_of_update = self.reproducible and self._session.checkpointer.is_between_steps
            counts = self.process_index == 0 if is_of_update else not self.is_padding_batch
            self._session.means.log(name, value, count=num_items if counts else 0)

    def record(self, name: str, value: object) -> None:
        """Record a value that is not a mean over samples, for example a learning rate or a score.

        You call it in the block of the run, on every process; its place in the loop does not matter. For a mean over
        the samples of an epoch, call ``log`` for each batch.

        Args:
            name: The full name of the metric; no prefix is added.
            value: A number or another plain value (a string, a tensor, a list or a dictionary), the same on every
                process.

        Raises:
            ConfigurationError: The call is outside the block of the run, or the value is not plain.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> with Run(model, optimizer, make_regression(16), num_epochs=1) as run:
            ...     run.record("learning_rate", optimizer.param_groups[0]["lr"])
            >>> run.run_history.get_latest_metric("learning_rate")
            0.1
        """
        self._require_open("record(...)")
        self.run_history.update_metric(name, value)

    def evaluation_batches(
        self,
        dataset: Dataset[Any] | DataLoader[Any],
        per_device_batch_size: int | None = None,
        *,
        name: str | None = None,
        dataloader_kwargs: dict[str, Any] | None = None,
    ) -> Iterator[BatchT]:
        """Iterate over the batches of an evaluation, in which each sample counts once, on any number of processes.

        You call it in the block of the run, in the body of ``epochs()`` or ``updates()``, or outside of them. In the
        body, the models are in evaluation mode, and no gradients are recorded; the modes are restored when the
        iteration ends, even by a ``break``, which records nothing. Means of logged values are recorded as
        ``eval_NAME_epoch`` or, among the updates of an epoch, as ``intermediate_eval_NAME_epoch``. All processes have
        the same number of batches, so that ``gather`` may be called in the body; if there are fewer samples than
        processes, each process without a sample gets a padding batch (see ``is_padding_batch``).

        Args:
            dataset: The samples, or a ``DataLoader`` of them.
            per_device_batch_size: The number of samples in a batch of one process. None, the default, uses the batch
                size of the training.
            name: The first part of the names of metrics: "test" records ``test_NAME_epoch``, and "eval_val" records the
                names that ``Trainer`` uses for its evaluation set "val". Callbacks read it as ``eval_name``. None, the
                default, records ``eval_NAME_epoch``.
            dataloader_kwargs: Arguments of ``torch.utils.data.DataLoader`` for the loader; they override the defaults.
                None, the default, overrides nothing.

        Yields:
            A batch as the loader makes it, on the device of this process.

        Raises:
            ConfigurationError: The call is outside the block of the run, or in the body of another evaluation.
            DataError: ``pa_data`` cannot use the dataset or the loader.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> samples = make_regression(16)
            >>> with Run(model, optimizer, samples, num_epochs=1) as run:
            ...     for inputs, targets in run.evaluation_batches(samples):
            ...         run.log("size", len(inputs))
            >>> run.run_history.get_latest_metric("eval_size_epoch")
            8.0
        """
        self._require_open("evaluation_batches(...)")
        if self._evaluations.is_in_batch:
            raise mistakes.loop_within("evaluation_batches(...)", "an evaluation")
        self._begin()
        if self._training == "left":
            self._end_training_early()
        batch_size = per_device_batch_size or self._arguments.batch_size
        data = DataArgument(dataset, "dataset", dataloader_kwargs, is_made_by_method=False)
        check_data(self._session, [data], replace(self._arguments, per_device_batch_size=batch_size))
        self.eval_dataset = data.dataset
        self.eval_dataloader = self._evaluations.loader(data, batch_size, name, self._create_eval_loader)
        yield from self._evaluations.batches(name, is_intermediate=self._update is not None)

    @override
    def _parts_of_checkpoint(self, with_optimizers: bool, with_schedulers: bool) -> dict[str, checkpoint.Trained]:
        is_single = len(self._parts) == 1  # only a training state contains several optimizers
        return super()._parts_of_checkpoint(with_optimizers and is_single, with_schedulers and is_single)

    # Loaders

    def _create_train_loader(self, batch_size: int, kwargs: dict[str, Any] | None) -> SizedIterable[BatchT]:
        defaults = {"shuffle": True, **self._setup.loaders.default_kwargs(self.train_dataset, batch_size)}
        return self._session.create_loader(self.train_dataset, "train", defaults, kwargs)

    def _create_eval_loader(self, batch_size: int, kwargs: dict[str, Any] | None) -> SizedIterable[BatchT]:
        dataset = cast("Dataset[Any]", self.eval_dataset)
        defaults = {"shuffle": False, **self._setup.loaders.default_kwargs(dataset, batch_size)}
        return self._session.create_loader(dataset, "eval", defaults, kwargs, allows_empty_shares=True)

    # Checks of the position of the script

    def _require_open(self, what: str) -> None:
        if self._stage == "before":
            raise ConfigurationError(
                f"The run has not begun: {what} before its block. Write with run: around the loop."
            )
        if self._stage == "after":
            raise ConfigurationError(
                f"The run is over: {what} after its block. Move the call into the block, or make another Run."
            )

    def _require_training(self, what: str) -> None:
        self._require_open(what)
        if self._evaluations.is_in_batch:
            raise mistakes.evaluates(what)

    def _require_update(self, what: str) -> Update[Any]:
        self._require_open(what)
        if self._update is None:
            raise ConfigurationError(
                f"No update is in progress: run.{what} was called outside of updates() and batches(). Write for batch "
                "in run.batches(): ..., and call it for each batch."
            )
        return self._update

    # Methods of a trainer that a run does not have

    @override
    def run_evaluation_epoch(self, *, is_intermediate: bool = False, eval_names: Collection[str] | None = None) -> None:
        """Raise an error, because you evaluate in a custom training loop yourself.

        Callbacks that evaluate in the middle of an epoch need a ``Trainer``. In a ``Run``, iterate over
        ``evaluation_batches`` in the loop instead.

        Args:
            is_intermediate: Not used; an argument of ``AnyTrainer.run_evaluation_epoch``.
            eval_names: Not used.

        Raises:
            ConfigurationError: Always.

        Example:
            >>> import torch
            >>> from pa_core import ConfigurationError, Run
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), make_regression(16), num_epochs=1)
            >>> try:
            ...     run.run_evaluation_epoch()
            ... except ConfigurationError:
            ...     print("evaluate in the loop")
            evaluate in the loop
        """
        raise mistakes.evaluates_by_callback()

    @override
    def add_module(
        self,
        name: str,
        module: nn.Module,
        optimizer: Optimizer | None = None,
        create_scheduler_fn: SchedulerFactory[SchedulerLike] | None = None,
    ) -> None:
        """Raise an error, because a run gets all of its models when it is created.

        Pass several models to the constructor instead: ``Run({"model": model, "teacher": teacher}, ...)``; a model
        without an optimizer is placed on the device, and is not trained.

        Args:
            name: Not used; an argument of ``AnyTrainer.add_module``.
            module: Not used.
            optimizer: Not used.
            create_scheduler_fn: Not used.

        Raises:
            ConfigurationError: Always.

        Example:
            >>> import torch
            >>> from pa_core import Run
            >>> from pa_core.testing import make_regression
            >>> model, teacher = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> models, optimizers = {"student": model, "teacher": teacher}, {"student": optimizer}
            >>> list(Run(models, optimizers, make_regression(16), num_epochs=1).models)
            ['student', 'teacher']
        """
        raise mistakes.late_model(name)
