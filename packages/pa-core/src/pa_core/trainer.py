"""The trainer: read it from top to bottom and you know what a run does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import distributed
from pa_core._tensors import clear_gradients
from pa_core.callbacks.defaults import DEFAULT_CALLBACKS, warn_of_none_by_default
from pa_core.callbacks.limit_batches import add_limit_of_environment, apply_limit_of_environment, first_batches
from pa_core.callbacks.move_modules import MoveModulesToDeviceCallback
from pa_core.data.custom_loader import lengths_of_epochs
from pa_core.data.data_arguments import BATCH_SIZE_OF_RUN_BEFORE, DEFAULT_BATCH_SIZE, DataArgument
from pa_core.data.epoch_lengths import EpochLengths
from pa_core.data.evaluation_sets import EvaluationData, EvaluationSets
from pa_core.engine.added_modules import require_one_trained_module, trained_loss
from pa_core.engine.any_trainer import CallbackHandler, CallbackLike, TrainerCallback
from pa_core.engine.callback_checks import implements
from pa_core.engine.modes import warn_of_pretrained_parts
from pa_core.engine.parts import Part
from pa_core.engine.prepare import check_data, fit_batches, follow_deepspeed, require_usable
from pa_core.engine.run_arguments import RunArguments, requested_epochs
from pa_core.engine.run_descriptions import describe_start, require_same_parts
from pa_core.engine.running import require_ready, stopping_in_order
from pa_core.engine.sanity_evaluation import sanity_evaluation
from pa_core.engine.scheduler_stepping import SchedulerStepping
from pa_core.engine.session import Session
from pa_core.engine.setup import TrainingHooks
from pa_core.engine.update import TrainerUpdate, updates_of_epoch
from pa_core.errors import NonFiniteLossError, StopTrainingError, UnsupportedConfigurationError
from pa_core.run_config import TrainerRunConfig, check_count
from pa_core.steps import default_step, input_checks
from pa_core.steps.default_step import ITEMS, check_step_output, count_items, name_step
from pa_core.tracking import RunHistory
from pa_core.tracking.run_history import INTERMEDIATE_PREFIX, UpdatedMetrics, recording_with_prefix
from pa_core.trainer_methods import TrainerMethods
from pa_core.training_state.progress import Phase
from pa_core.types import BatchT, LossFunction, ModelT_co, OutputT_co, SchedulerFactory, SchedulerT, SizedIterable
from pa_data.orders import Order
from pa_distributed import print_errors_once

_OPTIMIZER = "optimizer"
"""The name of a trainer's optimizer, and of the part that it trains, in training states."""


class Trainer(
    TrainerMethods[ModelT_co, BatchT, OutputT_co, SchedulerT], Generic[ModelT_co, BatchT, OutputT_co, SchedulerT]
):
    """Train a model on a dataset, on the hardware that the script was launched on.

    Use it if your task fits the loop below; use ``Run`` if you write the loop yourself. The same script runs on a CPU,
    on a GPU and with several processes. Construct it, call ``train()``, and then ``evaluate()``, ``predict()`` or
    ``save_model()``.

    Methods whose names begin with *create* or *calculate* return a value; all others change the state of the run.
    Override the methods that your task needs: the implementations here are sensible defaults. In pseudocode,
    ``train()`` is::

        train_dl, eval_dl = create_train_dataloader(), create_eval_dataloader()
        on_prepare_start
        scheduler = create_scheduler()
        training_run_start, on_training_run_start
        for each epoch:
            train_epoch_start, on_train_epoch_start
            for each batch:
                on_train_step_start, calculate_train_batch_loss, on_train_step_end, backward_step
                after the last batch of an accumulation group:
                    optimizer_step, scheduler_step, optimizer_zero_grad, on_optimizer_step_end
            train_epoch_end, on_train_epoch_end
            eval_epoch_start, on_eval_epoch_start
            for each batch:
                on_eval_step_start, calculate_eval_batch_loss, on_eval_step_end
            eval_epoch_end, on_eval_epoch_end
            training_run_epoch_end, on_training_run_epoch_end
        training_run_end, on_training_run_end

    An accumulation group consists of the batches whose gradients are combined in an optimizer update. ``AnyTrainer``
    lists the attributes, for example ``run_history`` (the recorded metrics) and ``run_config`` (the settings of the
    run). Training states (see ``save_training_state``) contain everything that a resumed run needs.

    Args:
        model: The module to train. It is moved to the device, but not wrapped, even with several processes.
        loss_func: A function that is called as ``loss_func(model_outputs, targets)``. By default, a batch is a pair of
            inputs and targets, as a ``TensorDataset`` of two tensors yields, and the model is called with the inputs.
            Pass None if the model returns its own loss when called with the items of a batch (a mapping), or if you
            override the ``calculate_*_batch_loss`` methods.
        optimizer: An optimizer of the model's parameters; None for a trainer that only evaluates or predicts.
        callbacks: Callbacks, as classes or instances; their events are called in this order. The default,
            ``DEFAULT_CALLBACKS``, prints the progress and the metrics, and ends a run whose loss is NaN. Any list
            replaces the default; use ``[*DEFAULT_CALLBACKS, ...]`` to add to it.
        run_history: The history that records the metrics; None, the default, creates an ``InMemoryRunHistory``.
        mixed_precision: The precision of the model's forward pass: "bf16", "fp16", or "no" for the precision of its
            weights. The default, None, uses the setting of ``accelerate launch``, or "no". All trainers in a process
            must use the same precision.
        cpu: True trains on the CPU. The default, None, uses the launcher's setting or, without such a setting, a GPU if
            available. All trainers in a process must use the same device.
        max_wait_seconds: The number of seconds that a process waits for another process before all of them print where
            they are and exit. The default is 600 seconds, the same as NCCL's default timeout, which gives no
            diagnostics. The limit grows to ten times the duration of the slowest update if that is longer. None leaves
            the timeout to the process group.
        create_optimizer_fn: A function that is called with the model and returns its optimizer; pass it in place of
            ``optimizer``. It is called once, when the first training run begins, after any sharding of the model. You
            need it only for optimizers that read the shapes of their parameters when they are created. The default is
            None.
        reproducible: "any_processes" makes weights, history and predictions bit-for-bit identical on any number of
            processes. ``train()`` then needs ``samples_per_update``, and ``per_device_batch_size`` is the size of the
            micro-batches, the parts that each update is divided into. None, the default, is faster, but results on
            different numbers of processes are equal only up to rounding. After construction, ``trainer.reproducible``
            is True or False.

    Raises:
        ArgumentTypeError: An argument has the wrong type, for example a class instead of an instance.
        ConfigurationError: The precision is unknown, or an overridden ``create_accelerator`` sets a different
            precision; or both ``optimizer`` and ``create_optimizer_fn`` are passed.
        UnsupportedConfigurationError: An earlier trainer of the process uses a different precision or device.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pa_core import Trainer
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(64, 3)
        >>> data = TensorDataset(x, x.sum(1, keepdim=True))
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> trainer.train(data, num_epochs=20)
        >>> trainer.run_history.get_latest_metric("train_loss_epoch") < 0.001
        True
    """

    model: ModelT_co
    scheduler: SchedulerT | None
    create_scheduler_fn: SchedulerFactory[SchedulerT] | None
    callback_handler: CallbackHandler[Self]
    train_dataset: Dataset[Any]
    train_dataloader: SizedIterable
    eval_dataset: Dataset[Any] | None
    epoch_lengths: EpochLengths
    run_config: TrainerRunConfig
    resume_from: Path | None
    _created_scheduler: SchedulerT | None
    _create_optimizer_fn: Callable[[Any], Optimizer] | None
    _session: Session

    def __init__(
        self,
        model: ModelT_co,
        loss_func: LossFunction | None,
        optimizer: Optimizer | None,
        # pyright checks a default against Self before it is solved; the same value passes at a call
        callbacks: Iterable[CallbackLike[Self]] = DEFAULT_CALLBACKS,  # pyright: ignore[reportArgumentType]
        run_history: RunHistory | None = None,
        *,
        mixed_precision: Literal["no", "bf16", "fp16"] | None = None,
        cpu: bool | None = None,
        max_wait_seconds: float | None = 600.0,
        create_optimizer_fn: Callable[[ModelT_co], Optimizer] | None = None,
        reproducible: Literal["any_processes"] | None = None,
    ) -> None:
        input_checks.check_optimizer_factory(create_optimizer_fn, optimizer)
        super().__init__(
            model,
            loss_func,
            optimizer,
            callbacks,
            run_history,
            mixed_precision=mixed_precision,
            cpu=cpu,
            max_wait_seconds=max_wait_seconds,
            reproducible=reproducible,
        )
        if self.is_local_main_process and (optimizer is not None or create_optimizer_fn is not None):
            warn_of_none_by_default(self.callback_handler.callbacks)
        self._created_scheduler = None
        self._create_optimizer_fn = create_optimizer_fn
        self._setup.makes_optimizer = create_optimizer_fn is not None
        self._setup.hooks = TrainingHooks(
            overlaps=type(self).backward_step is Trainer.backward_step,
            looks_at_gradients=type(self).backward_step is Trainer.backward_step,
            looks_at_optimizer=type(self).optimizer_step is Trainer.optimizer_step,
            steps_scheduler_itself=type(self).scheduler_step is not Trainer.scheduler_step,
            overrides=partial(implements, self, base=Trainer),
            update_weights=self._update_weights,
            rehearsed=self._compute_gradients if self.reproducible else None,
        )
        self._session = Session(self, self._setup)
        add_limit_of_environment(self.callback_handler)
        self.callback_handler.call_event(TrainerCallback.on_init_end, self)

    # The two entries: training and evaluation

    def train(
        self,
        train_dataset: Dataset[Any] | DataLoader[Any],
        num_epochs: int | None = None,
        eval_dataset: EvaluationData = None,
        per_device_batch_size: int | Literal["fit"] = DEFAULT_BATCH_SIZE,
        max_num_train_steps: int | None = None,
        gradient_accumulation_steps: int = 1,
        gradient_clip_value: float | None = None,
        create_scheduler_fn: SchedulerFactory[SchedulerT] | None = None,
        train_dataloader_kwargs: dict[str, Any] | None = None,
        eval_dataloader_kwargs: dict[str, Any] | None = None,
        reset_run_history: bool = True,
        collate_fn: Callable[[list[Any]], BatchT] | None = None,
        *,
        gradient_clip_norm: float | None = None,
        resume_from: str | Path | None = None,
        resume_missing: Literal["error", "start"] = "error",
        resume_allow: Collection[str] = (),
        step_scheduler: Literal["update", "epoch"] = "update",
        watch_metric: str | None = None,
        order: Order | None = None,
        sanity_eval_steps: int = 0,
        samples_per_update: int | None = None,
    ) -> None:
        """Train the model for some epochs, and evaluate after each of them if there is an evaluation dataset.

        You call it on every process; it returns when the run is complete, or when a ``StopTrainingError`` ends it. The
        mean losses are recorded in ``run_history`` as ``train_loss_epoch`` and ``eval_loss_epoch``, and the trained
        weights are in the model that you passed to the trainer. If you call it again, the model and the optimizer
        continue from their current state.

        The run draws one number from torch's global generator on rank zero. The order of the data and the randomness of
        augmentation follow from it, so ``torch.manual_seed(...)`` before the run is all the seeding that you need.

        With several processes, an exception that all of them raise can be caught as usual. A process that fails alone
        prints its exception and exits, even within a ``try`` block, because the others would otherwise wait for it. The
        same is true of ``evaluate()``.

        Args:
            train_dataset: The samples to train on. A ``DataLoader`` is used as if ``create_train_dataloader`` had
                returned it. With several processes, its samples are split, in the order of its sampler.
            num_epochs: The number of epochs; leave it out if you pass ``max_num_train_steps``.
            eval_dataset: The samples to evaluate after each epoch, or a ``DataLoader`` of them. By default (None),
                there is no evaluation. Several named sets, passed as ``{"val": ..., "test_ood": ...}``, are evaluated
                one after the other, and the names of their metrics begin with ``eval_val_`` and ``eval_test_ood_``.
                Wrap a set in an ``EvaluationSet`` to evaluate it less often than after each epoch.
            per_device_batch_size: The number of samples in a batch of one process; the default, 8, fits on almost any
                device. Leave it out if you pass a ``DataLoader``, which has its own. With ``samples_per_update``, "fit"
                uses as many samples as fit into the memory of each device. This number is determined by trial updates
                before the run, whose effects are undone.
            max_num_train_steps: The number of optimizer updates of the run; it overrides ``num_epochs``. For example,
                10,000 updates are ten epochs of 1,000 updates. The run may end mid-epoch. Data without a length
                requires this argument. None, the default, trains for ``num_epochs``.
            gradient_accumulation_steps: The number of batches of one process in an optimizer update; the default, 1,
                updates after each batch. The gradient is computed for the mean loss over all samples of the update. The
                last update of an epoch may have fewer batches.
            gradient_clip_value: Each element of the gradients is clipped to plus and minus this value. None, the
                default, does not clip.
            create_scheduler_fn: A function that is called with the optimizer and returns its scheduler. Arguments of a
                ``functools.partial`` may be ``TrainerPlaceholderValues``. It is called in each run, because the
                schedule depends on the length of the run; in contrast, ``create_optimizer_fn`` is called only once.
                Without a function, the run uses ``trainer.scheduler``, which is the scheduler that you assigned, or the
                scheduler of the previous run.
            train_dataloader_kwargs: Arguments of ``torch.utils.data.DataLoader`` for the training loader; they override
                ``get_default_train_dl_kwargs``. None, the default, overrides nothing.
            eval_dataloader_kwargs: Arguments of ``torch.utils.data.DataLoader`` for the evaluation loaders; they
                override ``get_default_eval_dl_kwargs``. None, the default, overrides nothing.
            reset_run_history: True, the default, begins with an empty history. False keeps the metrics and the epoch
                count of the previous run, and continues them.
            collate_fn: A function that makes a batch of a list of samples, for both loaders. None, the default, stacks
                tensors, as ``DataLoader`` does.
            gradient_clip_norm: All gradients are scaled down together to at most this norm. The norm before clipping is
                available as ``trainer.gradient_norm``. None, the default, does not clip.
            resume_from: A training state, or a folder of states (the newest valid state is used). Either can be a URL
                in an object store, such as ``"s3://bucket/states"``. ``num_epochs`` includes the epochs before the
                interruption. If the saved run is complete, its final state is restored. None, the default, begins a new
                run.
            resume_missing: What to do if ``resume_from`` holds no state. ``"error"`` is the default, because otherwise
                a mistyped path would begin a new run; ``"start"`` begins a new run, so that a job script can always
                pass both arguments.
            resume_allow: Names of differences from the saved run that are accepted. Each of these differences raises an
                error unless it is named here, because it changes the meaning of the run. The names are
                "samples_per_update", "dataset_length", "shuffle", "order", "drop_last", "loader", "model", "optimizer"
                and "scheduler". Reproducible runs add "reproducible" (the size of micro-batches) and "arithmetic"
                (torch, device, threads, precision).
            step_scheduler: When the trainer steps the scheduler: after each ``"update"``, the default, or after each
                ``"epoch"`` and its evaluation.
            watch_metric: The full name of a metric, for example "eval_loss_epoch". After each epoch, its value is
                passed to schedulers such as ``ReduceLROnPlateau``. None, the default, is for schedulers that need no
                metric.
            order: Which samples an epoch visits, and when: an object from ``pa_data.orders``. None, the default, uses
                the order of the dataset if it has an order, and otherwise visits each sample once in a random order.
            sanity_eval_steps: The number of batches of each evaluation set, for example 2, that a new run evaluates
                before its first epoch. The default, 0, evaluates none. Use it to find errors in the evaluation and
                misspelled metric names before the run has taken hours. The run is bit-for-bit identical to a run
                without this evaluation, because callbacks are called on copies and nothing is recorded.
            samples_per_update: The total number of samples in an optimizer update, over all processes. The batches and
                the accumulation follow from it, on any number of processes; ``per_device_batch_size`` is then the
                largest number of samples in a forward pass of one process. By default (None), an update consists of
                ``gradient_accumulation_steps`` batches from each process.

        Raises:
            ArgumentTypeError: An argument has the wrong type.
            ConfigurationError: An argument has a value that cannot work; a ``ValueError``.
            DataError: ``pa_data`` cannot use the dataset, the loader or the order; a ``ValueError``.
            RanksDifferError: The processes were passed different arguments, models or samples; a ``ValueError``.
            BatchMismatchError: The samples, the model and the loss function do not fit together.
            BatchOutputError: An overridden step returned values that cannot be used.
            MetricNotFoundError: ``watch_metric`` was not recorded by the end of the first epoch.
            CheckpointNotFoundError: There is no training state to resume.
            CheckpointError: No training state is valid, or resuming would change the meaning of the run.
            TrainingPreempted: The run was preempted, and its training state was saved; a ``SystemExit``.
            SmallerBatchNeeded: With ``per_device_batch_size="fit"``, a later batch did not fit. Start the script again
                to resume with smaller batches. It is a ``SystemExit``.
            NonFiniteLossError: ``TerminateOnNaNCallback`` ended the run. It is raised after the last events.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> samples, eval_samples = make_regression(64), make_regression(16)
            >>> trainer.train(samples, num_epochs=2, eval_dataset=eval_samples, per_device_batch_size=16)
            >>> trainer.num_updates_completed, len(trainer.run_history.get_metric_values("eval_loss_epoch"))
            (8, 2)
        """
        require_ready(self._session, "train")
        with print_errors_once():
            train_data = DataArgument(train_dataset, "train_dataset", train_dataloader_kwargs, order=order)
            eval_sets = EvaluationSets(eval_dataset, "eval_dataset", eval_dataloader_kwargs)
            arguments = RunArguments(
                call=f"{type(self).__qualname__}.train()",
                data=[train_data, *eval_sets.data.values()],
                evaluation_sets=eval_sets.given,
                per_device_batch_size=per_device_batch_size,
                num_epochs=requested_epochs(num_epochs, max_num_train_steps),
                gradient_accumulation_steps=gradient_accumulation_steps,
                samples_per_update=samples_per_update,
                max_num_train_steps=max_num_train_steps,
                gradient_clip_value=gradient_clip_value,
                gradient_clip_norm=gradient_clip_norm,
                sanity_eval_steps=sanity_eval_steps,
                create_scheduler_fn=create_scheduler_fn,
                stepping=SchedulerStepping(step_scheduler, watch_metric),
                collate_fn=collate_fn,
                reset_run_history=reset_run_history,
                resume_from=resume_from,
                resume_missing=resume_missing,
                resume_allow=resume_allow,
            )
            input_checks.check_sanity_evaluation(sanity_eval_steps, eval_dataset)
            # A script may have replaced them.
            input_checks.check_trainer_arguments(self.model, self.loss_func, self.optimizer)
            if not self._makes_optimizer:
                self._check_optimizer(self.model, self.optimizer)
            self._setup.added.require_usable(self.get_model(), self.optimizer)
            check_data(self._session, arguments.data, arguments)
        exchange = self._session.exchange
        part = Part(self._setup.accelerator, num_averaged=exchange.num_averaged, scales_all=exchange.is_exact)

        with self._running("train", arguments, eval_sets, {_OPTIMIZER: part}):
            self.train_dataset = cast("Dataset[Any]", train_data.dataset)
            self.eval_dataset = eval_sets.first.dataset
            self.collate_fn, self.create_scheduler_fn = collate_fn, create_scheduler_fn
            self._session.find_state(arguments)
            create, loaders = self.create_train_dataloader, self._setup.loaders
            train_dl = loaders.get_or_create(train_data, create, arguments.batch_size, samples_per_update)
            self.train_dataloader = cast("SizedIterable[BatchT]", train_dl)
            self._make_eval_dataloaders(arguments.batch_size)
            self._session.announce()
            apply_limit_of_environment(self)
            require_same_parts(self, is_training=True)
            self._prepare_model_optimizer_and_dataloaders()
            if arguments.per_device_batch_size == "fit":
                arguments = fit_batches(self._session, arguments, self._try_update, self._start_trial)
            loaders_of_run = self.train_dataloader, self.eval_dataloader, *self.eval_dataloaders.values()
            require_usable(self._session, loaders_of_run, {"model": self.get_model(), **self.modules})
            self._start_training_together()
            steps = loaders.steps_per_update(self.train_dataloader, arguments.batch_size, gradient_accumulation_steps)
            self.epoch_lengths = lengths_of_epochs(self.train_dataloader, steps, max_num_train_steps)
            arguments = replace(arguments, gradient_accumulation_steps=steps)
            self.run_config = self._create_run_config(*arguments.numbers)
            follow_deepspeed(self._session)
            self._session.resumption.record_hyperparameters(self)
            self._set_scheduler()
            self._setup.added.create_schedulers(self._session.placeholder_values())
            self._session.require_usable_schedulers()
            self._session.resume()
            self._session.check_length_of_schedules()
            # Not before: a run that cannot start keeps the metrics of the previous run.
            if reset_run_history and self._session.resumption.saved is None:
                self._session.reset_history()
            self._run_training()
            self._session.checkpointer.settle(self._session.call)
        self._session.rank_sync.raise_non_finite_loss()

    def evaluate(
        self,
        dataset: EvaluationData = None,
        per_device_batch_size: int = BATCH_SIZE_OF_RUN_BEFORE,
        dataloader_kwargs: dict[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], BatchT] | None = None,
        *,
        reset_run_history: bool = True,
    ) -> dict[str, float]:
        """Evaluate the model on a dataset without training it, and record the loss as ``evaluation_loss``.

        You call it on every process, for example with a test set after training, or with a loaded model. To evaluate
        after each training epoch, pass ``eval_dataset`` to ``train()`` instead. Each sample counts once, on any number
        of processes. The weights do not change, and no gradients are computed.

        Args:
            dataset: The samples to evaluate, or a ``DataLoader`` of them. None, the default, uses the evaluation data
                of the previous ``train()`` or ``evaluate()`` call. If you pass several named sets, each set is
                evaluated, and its loss is recorded as ``evaluation_NAME_loss``.
            per_device_batch_size: The number of samples in a batch of one process; leave it out if you pass a
                ``DataLoader``. The default is the evaluation batch size of the previous run, or 8 in the first run.
            dataloader_kwargs: Arguments of ``torch.utils.data.DataLoader`` for the loader; they override
                ``get_default_eval_dl_kwargs``. None, the default, overrides nothing.
            collate_fn: A function that makes a batch of a list of samples. None, the default, keeps the function of the
                previous run.
            reset_run_history: True, the default, begins with an empty history. False keeps the metrics that are already
                recorded.

        Returns:
            A dictionary of the metrics of this evaluation by name, each a float: the loss, the metrics that steps
            logged, and those that callbacks added, if they are numbers. It is the same on every process.

        Raises:
            ConfigurationError: There is no dataset, or an argument cannot work.
            DataError: ``pa_data`` cannot use the dataset or the loader.
            RanksDifferError: The processes were passed different arguments, models or samples; a ``ValueError``.
            BatchMismatchError: The samples, the model and the loss function do not fit together.
            BatchOutputError: An overridden step returned values that cannot be used.
            NonFiniteLossError: ``TerminateOnNaNCallback`` ended the run. It is raised after the last events.

        Example:
            >>> import torch
            >>> from torch.utils.data import TensorDataset
            >>> from pa_core import Trainer
            >>> x = torch.ones(10, 2)
            >>> trainer = Trainer(torch.nn.Flatten(), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.evaluate(TensorDataset(x, x + 1))
            {'evaluation_loss': 1.0}
        """
        require_ready(self._session, "evaluate")
        with print_errors_once():
            check_count("per_device_batch_size", per_device_batch_size)
            if dataset is None:
                dataset = self._session.eval_sets.last_given(self.eval_dataset)
            input_checks.require_evaluation_data(dataset)
            eval_sets = EvaluationSets(dataset, "dataset", dataloader_kwargs)
            arguments = RunArguments(
                call=f"{type(self).__qualname__}.evaluate()",
                data=[*eval_sets.data.values()],
                evaluation_sets=eval_sets.given,
                per_device_batch_size=per_device_batch_size,
                collate_fn=collate_fn,
                reset_run_history=reset_run_history,
            )
            check_data(self._session, arguments.data, arguments)
        if per_device_batch_size is BATCH_SIZE_OF_RUN_BEFORE:
            before = cast("TrainerRunConfig | None", self.run_config)
            batch_size = DEFAULT_BATCH_SIZE if before is None else before.eval_per_device_batch_size
            arguments = replace(arguments, per_device_batch_size=batch_size)

        with self._running("evaluate", arguments, eval_sets):
            self.eval_dataset = eval_sets.first.dataset
            self.collate_fn = self.collate_fn if collate_fn is None else collate_fn
            self._make_eval_dataloaders(arguments.batch_size)
            self._session.announce()
            apply_limit_of_environment(self)
            require_same_parts(self, is_training=False)
            self._prepare_model_optimizer_and_dataloaders()
            self.run_config = self._create_run_config(*arguments.numbers)
            if reset_run_history:
                self._session.reset_history()
            updated = UpdatedMetrics(self.run_history)
            self._run_evaluation()
        self._session.rank_sync.raise_non_finite_loss()
        return dict(sorted(updated.pop(self.run_history).items()))

    def _make_eval_dataloaders(self, per_device_batch_size: int) -> None:
        self._session.eval_sets.make_loaders(
            self,
            lambda data: self._setup.loaders.get_or_create(data, self.create_eval_dataloader, per_device_batch_size),
        )

    # The steps and the parts of an update

    def calculate_train_batch_loss(self, batch: BatchT) -> OutputT_co:
        """Calculate the training loss of a batch; override it for a custom loss or several outputs.

        The trainer calls it for each training batch, and then runs the backward pass, so an override must not call
        ``backward``. Call ``self.model`` in it; ``super()`` need not be called. Call ``self.log(name, value)`` in it to
        record the mean of a metric over the epoch.

        Args:
            batch: A batch of the training loader, on the device. By default, it has the inputs at index 0 and the
                targets at index 1. With ``loss_func=None``, it is a mapping, and the model is called as
                ``model(**batch)`` and returns outputs with ``.loss`` or ``["loss"]``, like Hugging Face models.

        Returns:
            A dictionary (see ``BatchOutput``) with ``loss``, ``model_outputs`` and ``batch_size``, and any further
            keys, for callbacks. The loss is a tensor with one element, the mean over the ``batch_size`` samples of this
            process. If it is a mean over other items, for example tokens, their number is ``num_items_in_batch``.

        Raises:
            ConfigurationError: The batch has no inputs and targets at these indices, or there is no loss.
            BatchMismatchError: The batch, the model and the loss function do not fit together.

        Example:
            >>> import torch
            >>> from pa_core import Trainer
            >>> from pa_core.testing import make_regression
            >>> class SmallOutputs(Trainer):
            ...     def calculate_train_batch_loss(self, batch):
            ...         inputs, targets = batch
            ...         outputs = self.model(inputs)
            ...         loss = self.loss_func(outputs, targets) + 0.01 * outputs.square().mean()
            ...         return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = SmallOutputs(model, torch.nn.MSELoss(), optimizer, callbacks=[])
            >>> trainer.train(make_regression(), num_epochs=1)
        """
        output = default_step.calculate_batch_loss(
            self.model, self.loss_func, batch, "calculate_train_batch_loss", self._session.checked_steps
        )
        return cast("OutputT_co", output)

    def calculate_eval_batch_loss(self, batch: BatchT) -> OutputT_co:
        """Calculate the evaluation loss of a batch; override it for a custom loss, or to log metrics of the batch.

        The trainer calls it for each evaluation batch, in evaluation mode and without gradients. Call
        ``self.log(name, value)`` in it to record the mean of a metric over all samples of the evaluation. ``super()``
        need not be called.

        Args:
            batch: A batch of the evaluation loader, on the device. By default, it has the inputs at index 0 and the
                targets at index 1; with ``loss_func=None``, it is a mapping, and the model is called as
                ``model(**batch)``.

        Returns:
            A dictionary with ``loss`` (a tensor with one element, the mean over the samples of this process),
            ``model_outputs`` and ``batch_size``, and any further keys, for callbacks. If the loss is a mean over other
            items, for example tokens, their number is ``num_items_in_batch``.

        Raises:
            ConfigurationError: The batch has no inputs and targets, or there is no loss.
            BatchMismatchError: The batch, the model and the loss function do not fit together.

        Example:
            >>> import torch
            >>> from torch.utils.data import TensorDataset
            >>> from pa_core import Trainer
            >>> class WithError(Trainer):
            ...     def calculate_eval_batch_loss(self, batch):
            ...         output = super().calculate_eval_batch_loss(batch)
            ...         self.log("error", (output["model_outputs"] - batch[1]).abs().mean())
            ...         return output
            >>> trainer = WithError(torch.nn.Identity(), torch.nn.MSELoss(), None, callbacks=[])
            >>> trainer.evaluate(TensorDataset(torch.zeros(8, 1), torch.full((8, 1), 0.5)))
            {'evaluation_error': 0.5, 'evaluation_loss': 0.25}
        """
        output = default_step.calculate_batch_loss(
            self.model, self.loss_func, batch, "calculate_eval_batch_loss", self._session.checked_steps
        )
        return cast("OutputT_co", output)

    def backward_step(self, loss: Tensor) -> None:
        """Compute the gradients of a batch; override it to call ``backward`` with other arguments.

        The trainer calls it for each training batch, after ``on_train_step_end``; you need not call it yourself. An
        override has to call ``super()`` or the ``backward`` method of the loss; in fp16, only ``super()`` scales the
        loss. With an override, gradients are sent to other processes after the backward pass instead of during it,
        which is slower.

        Args:
            loss: The loss of the batch, a tensor with one element, scaled to its share of the optimizer update.

        Example:
            >>> from pa_core import Trainer
            >>> class SecondOrder(Trainer):
            ...     def backward_step(self, loss):
            ...         loss.backward(create_graph=True)
        """
        # not the backward() of accelerate, which would divide the loss by its own accumulation steps
        scaler = self._setup.accelerator.scaler
        scaled: Any = loss if scaler is None else scaler.scale(loss)
        scaled.backward()

    def _clip_gradients(self) -> None:
        """Clip the gradients as the arguments of ``train()`` say, once per update, after any scaling is undone."""
        if self.run_config.gradient_clip_value is not None or self.run_config.gradient_clip_norm is not None:
            self._session.clip(self._session.parts[_OPTIMIZER].parameters)

    def optimizer_step(self) -> None:
        """Update the parameters from their gradients; override it to step the optimizer with other arguments.

        The trainer calls it once in each update, on every process, after the gradients are averaged over the processes
        and clipped; you need not call it yourself. If gradients overflowed in fp16, it is not called. An override has
        to call ``super()`` or ``self.optimizer.step(...)``. The optimizers of added modules are stepped after it.

        Example:
            >>> from pa_core import Trainer
            >>> class CountsSteps(Trainer):
            ...     num_steps = 0
            ...     def optimizer_step(self) -> None:
            ...         super().optimizer_step()
            ...         self.num_steps += 1
        """
        self.optimizer.step()

    def scheduler_step(self) -> None:
        """Step the scheduler after each update, or after each epoch with ``step_scheduler="epoch"``.

        The trainer calls it on every process if there is a scheduler, except after updates whose gradients overflowed
        in fp16; you need not call it yourself. By default, ``scheduler.step()`` is called, with the value of
        ``watch_metric`` if it needs a metric. Override it if the scheduler's ``step`` needs other arguments, and step
        ``self.scheduler`` in it; ``super()`` need not be called.

        Example:
            >>> from pa_core import Trainer
            >>> class WithUpdateNumber(Trainer):
            ...     def scheduler_step(self) -> None:
            ...         self.scheduler.step(self.num_updates_completed + 1)
        """
        if self.scheduler is not None:
            self._session.arguments.stepping.step(self.scheduler, self)

    def optimizer_zero_grad(self) -> None:
        """Clear the gradients of all parameters of the optimizer, after each update.

        The trainer calls it on every process, even after an update that was skipped in fp16; you need not call it
        yourself. Override it to keep gradients, or to clear gradients of further parameters; an override usually calls
        ``super()``.

        Example:
            >>> from pa_core import Trainer
            >>> class ZeroesGradients(Trainer):
            ...     def optimizer_zero_grad(self) -> None:
            ...         self.optimizer.zero_grad(set_to_none=False)
        """
        clear_gradients(self.optimizer)

    # The loop

    def _run_training(self) -> None:
        """Run the epochs, and call the last events of the run no matter how it stopped."""
        session = self._session
        with stopping_in_order(self._session):
            session.begin(self.training_run_start, partial(describe_start, self, session.progress))
            if session.arguments.sanity_eval_steps > 0 and session.resumption.saved is None:
                self._run_sanity_evaluation(session.arguments.sanity_eval_steps)
            for epoch in session.remaining_epochs():
                self._run_epoch(epoch)
        session.checkpointer.next_phase = None
        stopped = session.rank_sync.stop is not None  # perhaps in a step that not all processes have finished
        if stopped and session.shares_buffers:
            distributed.broadcast_buffers(self.model)
        session.finish(self.training_run_end)

    def _run_sanity_evaluation(self, num_batches: int) -> None:
        """Evaluate the first batches of each set, and restore everything afterwards."""
        try:
            with sanity_evaluation(self, self._session, num_batches, self._session.arguments.stepping.watch_metric):
                for name in self._eval_names_of_epoch():
                    with self._session.eval_sets.evaluating(self, name):
                        loader = cast("SizedIterable[BatchT]", self.eval_dataloader)
                        self._run_eval_epoch(first_batches(loader, num_batches))
        except StopTrainingError as error:
            if isinstance(error, NonFiniteLossError):
                raise
        self._session.rank_sync.stop = None  # the run has not begun

    def _run_epoch(self, epoch: int) -> None:
        """Train an epoch, unless the resumed run had already trained it, and evaluate."""
        if self._session.resumption.phase is not Phase.EVALUATION:
            self._run_train_epoch(self.train_dataloader)
        if self.eval_dataloader is not None:
            self._evaluate_after_epoch()
        self._session.finish_epoch(self.training_run_epoch_end, self._step_schedulers)

    def _evaluate_after_epoch(self) -> None:
        """Evaluate the sets that are due; a resumed run skips the sets that it had already evaluated."""
        names = self._eval_names_of_epoch()
        if self._session.resumption.phase is Phase.EVALUATION:
            names = [*(self._session.resumption.interrupted_sets(self) or names)]
        for index, name in enumerate(names):
            with self._session.interruptible_evaluation(names[index:]):
                self._evaluate_set(name)

    def _evaluate_set(self, name: str | None, **of_epoch: bool) -> None:
        """Evaluate a named set, or the only dataset, which has no name."""
        with self._session.eval_sets.evaluating(self, name, is_training=of_epoch.get("is_training", True)):
            self._run_eval_epoch(cast("SizedIterable[BatchT]", self.eval_dataloader), **of_epoch)

    def _run_train_epoch(self, train_dl: SizedIterable[BatchT]) -> None:
        """Train on each batch of the loader."""
        session = self._session
        session.start_training(train_dl, self.train_epoch_start)
        if self.num_processes > 1:
            loss = trained_loss(self.loss_func, self.optimizer, self.get_model())
            require_one_trained_module(vars(self), self.get_model(), [*self.modules.values(), *loss.values()])
        with updates_of_epoch(session, train_dl, session.parts[_OPTIMIZER], self.backward_step) as updates:
            for update in updates:
                for batch in update:
                    self._run_train_step(update, batch)
                update.step()
        session.finish_training(self.train_epoch_end, requires_loss=True)

    def _run_train_step(self, update: TrainerUpdate, batch: BatchT) -> None:
        """Calculate the loss of a batch, and add its gradients to its update."""
        if update.place.is_empty:
            with self._session.in_padding_batch():
                # The pieces of a sharded model are called, as the other processes need them.
                update.follow_others(None if batch is None else self.calculate_train_batch_loss(batch)["loss"])
            return
        try:
            output = self.calculate_train_batch_loss(batch)
        except StopTrainingError as error:
            self._session.parts[_OPTIMIZER].require_stop_elsewhere(error)
            self._session.rank_sync.request_stop(error)
            update.follow_others(None)
            return
        except Exception as error:
            step = f"training step {self._session.progress.step} of epoch {self.num_epochs_completed + 1}"
            name_step(error, step, batch, self.get_model())
            raise
        loss = update.report(batch, output)
        del output  # which would keep the outputs of the model during the backward pass
        update.backward(loss, batch)

    def _compute_gradients(self, batch: BatchT) -> Tensor:
        loss: Tensor = self.calculate_train_batch_loss(batch)["loss"]
        self.backward_step(loss)
        return loss.detach()

    def _start_trial(self) -> None:
        """Call the hooks that prepare a run for its first step."""
        self.training_run_start()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, MoveModulesToDeviceCallback):
                callback.on_training_run_start(self)

    def _try_update(self, batch: BatchT) -> None:
        """Make an update with a batch, to find out whether the batch fits into memory."""
        self.train_epoch_start()
        with self._session.means.step():
            self._compute_gradients(batch)
        for optimizer in self.named_optimizers().values():
            optimizer.step()

    def _update_weights(self, _part: Part, overflowed: bool) -> None:
        try:
            self._clip_gradients()
            if not overflowed:
                self.optimizer_step()
                for optimizer in self._setup.added.optimizers.values():
                    optimizer.step()
                if self._session.arguments.stepping.after == "update":
                    self._step_schedulers()
        except StopTrainingError:  # other processes may make further updates before they know
            self._clear_gradients()
            raise
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        self.optimizer_zero_grad()
        for optimizer in self._setup.added.optimizers.values():
            clear_gradients(optimizer)

    def _step_schedulers(self) -> None:
        if self.scheduler is not None:
            self.scheduler_step()
        for scheduler in self._setup.added.schedulers.values():
            self._session.arguments.stepping.step(scheduler, self)

    def _run_evaluation(self) -> None:
        """Run an evaluation epoch between the events of an evaluation run."""
        with stopping_in_order(self._session):
            self._session.call_together(TrainerCallback.on_evaluation_run_start, self.evaluation_run_start)
            for name in self._eval_names_of_epoch():
                self._evaluate_set(name, is_training=False)
        self.evaluation_run_end()
        self.callback_handler.call_event(TrainerCallback.on_evaluation_run_end, self)

    def _run_eval_epoch(
        self, valid_dl: SizedIterable[BatchT], is_training: bool = True, *, is_intermediate: bool = False
    ) -> None:
        """Evaluate each batch of the loader, after or within a training epoch, or on its own."""
        session = self._session
        is_own_loader = valid_dl is self.eval_dataloader
        within: dict[str, Any] = {}
        if is_intermediate:
            within = {"is_intermediate": True, "num_sets_to_come": session.num_sets_to_come}
        with session.checkpointer.evaluating(), session.evaluating(), torch.no_grad():
            session.call_together(TrainerCallback.on_eval_epoch_start, self.eval_epoch_start, **within)
            with session.rank_sync.together(place="eval_epoch_end"):
                # A callback may have limited the loader for this epoch.
                loader = self.eval_dataloader if is_own_loader and self.eval_dataloader is not None else valid_dl
                count = session.setup.loaders.count_batches(loader, "evaluation")
                for step, batch in session.batches_to_evaluate(loader, count):
                    with session.means.step():
                        self._run_eval_step(batch, step)
                    session.checkpointer.interrupt_evaluation_if_requested(self, session.call)
                if session.exchange.has_fewer_batches(loader):
                    session.checkpointer.interrupt_evaluation_if_requested(self, session.call)
            session.call_hook(self.eval_epoch_end)
            session.record_means(session.eval_sets.loss_name(is_training=is_training), count, requires_loss=True)
            session.call_together(TrainerCallback.on_eval_epoch_end, **within)

    def _run_eval_step(self, batch: BatchT, step: int) -> None:
        if self.is_padding_batch:
            self.calculate_eval_batch_loss(batch)
            return
        self._session.call(TrainerCallback.on_eval_step_start)
        try:
            output = self.calculate_eval_batch_loss(batch)
        except StopTrainingError as error:
            self._session.rank_sync.request_stop(error)
            return
        except Exception as error:
            name_step(error, f"evaluation step {step}", batch, self.get_model())
            raise
        loss = check_step_output(output, "calculate_eval_batch_loss", trained=None)
        items = count_items(output, "calculate_eval_batch_loss") if ITEMS in output else None
        samples: int = output["batch_size"]
        self._session.means.add(loss, samples if items is None else items, samples)
        self._session.call(TrainerCallback.on_eval_step_end, batch=batch, batch_output=output, step=step)

    @override
    def _check_optimizer(self, model: nn.Module, optimizer: Optimizer) -> None:
        super()._check_optimizer(model, optimizer)
        if getattr(self.optimizer_step, "__func__", None) is Trainer.optimizer_step:
            input_checks.require_step_without_closure(optimizer)

    def _start_training_together(self) -> None:
        """Register the model, and the modules trained with it, for the exchange of gradients."""
        self.model = self.get_model()  # a script that prepares the model itself may have wrapped it
        part = self._session.parts[_OPTIMIZER]
        part.optimizers = self.named_optimizers()
        warn_of_pretrained_parts(self.named_models())
        loss = trained_loss(self.loss_func, self.optimizer, self.model)
        if isinstance(self.loss_func, nn.Module):
            distributed.broadcast_weights(self.loss_func.to(self.device))
        trained: dict[str, nn.Module] = {"model": self.model, **self._setup.added.trained(self.optimizer), **loss}
        called: dict[str, nn.Module] = {**self.modules, **trained}
        if isinstance(self.loss_func, nn.Module):
            called.setdefault("loss_func", self.loss_func)
        part.start(trained)
        self._session.exchange.add(part, called, overlaps=self._setup.hooks.overlaps)
        if type(self)._run_train_epoch is not Trainer._run_train_epoch:
            if self.reproducible:
                raise UnsupportedConfigurationError(
                    f"{type(self).__qualname__}._run_train_epoch replaces the steps of a reproducible run. Override "
                    "a method that it calls, like calculate_train_batch_loss, or leave reproducible out."
                )
            self._session.exchange.average_each_pass(part)

    @override
    def run_evaluation_epoch(self, *, is_intermediate: bool = False, eval_names: Collection[str] | None = None) -> None:
        """Evaluate ``eval_dataset`` in the middle of a training run, and record its metrics.

        You call it in callbacks, on every process, for example in ``on_optimizer_step_end``; the trainer itself
        evaluates after each epoch. The random numbers of the training are not changed.

        Args:
            is_intermediate: Whether the training epoch continues afterwards. With True, the names of the metrics have
                the prefix ``intermediate_``, so that they are not mixed with the values of whole epochs, and the events
                of the evaluation epoch are passed ``is_intermediate=True``. The default is False.
            eval_names: The names of the evaluation sets to evaluate. None, the default, evaluates the sets that are
                evaluated after the current epoch; with ``is_intermediate``, the sets that are evaluated after each
                epoch.

        Raises:
            ConfigurationError: The run has no evaluation dataset, or no evaluation set with one of these names.

        Example:
            >>> from pa_core import AnyTrainer, TrainerCallback
            >>> class EvaluateOften(TrainerCallback):
            ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
            ...         if update % 100 == 0:
            ...             trainer.run_evaluation_epoch(is_intermediate=True)
        """
        input_checks.require_evaluation_loader(self.eval_dataloader)
        if eval_names is not None:
            names = self._session.eval_sets.chosen(eval_names)
        else:
            names = self._session.eval_sets.within_epoch() if is_intermediate else self._eval_names_of_epoch()
        phase = Phase.INTERMEDIATE_EVALUATION
        with recording_with_prefix(self.run_history, INTERMEDIATE_PREFIX if is_intermediate else ""):
            for index, name in enumerate(names):
                self._session.num_sets_to_come = len(names) - index - 1
                with (
                    self._session.preserved_random_numbers(),
                    self._session.checkpointer.interruptible(phase, self, names[index:])
                    if is_intermediate
                    else nullcontext(),
                ):
                    self._evaluate_set(name, is_intermediate=is_intermediate)
