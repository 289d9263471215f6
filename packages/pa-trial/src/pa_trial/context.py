"""A trial's view of its training: models, optimizers, data, configuration and counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import profile, tensorboard_trace_handler
from typing_extensions import override

from pa_trial.checkpoint_folder import find_newest
from pa_trial.collectives import num_processes
from pa_trial.context_parts import ContextParts
from pa_trial.distributed_context import DistributedContext
from pa_trial.errors import (
    ConfigurationError,
    InternalException,
    InvalidExperimentException,
    UnsupportedConfigurationError,
)
from pa_trial.experimental import PyTorchExperimentalContext
from pa_trial.lr_scheduler import LRScheduler
from pa_trial.metric_reducers import MetricReducers, WrapsReducers
from pa_trial.processes import connect_processes, device_of
from pa_trial.progress import TrialProgress
from pa_trial.settings import (
    ExperimentSettings,
    RunSettings,
    TellsSettings,
    default_checkpoint_dir,
    is_whole,
    require_bool,
)
from pa_trial.tensorboard import TensorBoard
from pa_trial.to_device import DeviceMover
from pa_trial.trained_parts import ModelT, OptimizerT, ScalerT, SchedulerT, TrainedParts

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


_T = TypeVar("_T")
_ModelsT = TypeVar("_ModelsT", bound=nn.Module | list[Any])
_OptimizersT = TypeVar("_OptimizersT", bound=Optimizer | list[Any])


@dataclass(frozen=True)
class CoreContext:
    """The part of Determined's core context that a trial context needs: the processes of a training.

    Attributes:
        distributed: The number of processes, and the rank of this process.
    """

    distributed: DistributedContext


class PyTorchTrialContext(TellsSettings, WrapsReducers):
    """A trial's view of its training: it wraps models and optimizers, computes gradients, and returns settings.

    ``with init(...) as context`` creates it from simpler arguments, so you rarely create one yourself.
    Pass it to your trial and to ``Trainer``. After the ``with`` block of ``init``, its settings and the progress of the
    training can still be read. Methods that train or need other processes then raise ``InternalException``.

    Args:
        core_context: An object that has the ``DistributedContext``; None to detect the processes of the training.
        trial_seed: The return value of ``get_trial_seed``; None to seed nothing.
        hparams: The hyperparameters by name; None if the trial has none.
        slots_per_trial: The number of processes that ``global_batch_size`` is split over.
        num_gpus: The number of GPUs; 0 for a training on the CPU.
        exp_conf: The experiment configuration; None if the trial has none.
        aggregation_frequency: The number of batches whose gradients are accumulated for an optimizer step.
        steps_completed: The number of batches that were trained earlier.
        managed_training: Whether models are trained. With False, they stay on their device, for a trial that was
            loaded.
        debug_enabled: Not used.
        run_settings: The remaining arguments of ``init``; None for its defaults.
        device: The device of this process. By default, None, it depends on ``num_gpus``.
        enable_tensorboard_logging: Whether metrics are written for TensorBoard, by default True.

    Attributes:
        models: The wrapped models, in the order of wrapping; empty before ``wrap_model``.
        optimizers: The wrapped optimizers, in the order of wrapping.
        lr_schedulers: The wrapped schedulers, each as an ``LRScheduler``, in the order of wrapping.
        device: The device of this process, a ``torch.device``.
        distributed: The ``DistributedContext``, with the rank, the number of processes, and methods that exchange
            Python objects.
        experimental: The ``PyTorchExperimentalContext``: options for custom data and mixed precision.

    Raises:
        ArgumentTypeError: ``hparams`` or ``exp_conf`` is not a dictionary.
        InvalidExperimentException: A setting cannot work, for example an ``aggregation_frequency`` less than 1.

    Example:
        >>> import pa_trial
        >>> with pa_trial.init(hparams={"lr": 0.1, "global_batch_size": 32}) as context:
        ...     context.get_hparam("lr"), context.get_per_slot_batch_size()
        (0.1, 32)
    """

    def __init__(
        self,
        core_context: CoreContext | None,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        aggregation_frequency: int,
        steps_completed: int,
        managed_training: bool,
        debug_enabled: bool,
        *,
        run_settings: RunSettings | None = None,
        device: torch.device | None = None,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        if not is_whole(aggregation_frequency) or aggregation_frequency < 1:
            raise InvalidExperimentException(
                f"aggregation_frequency must be a whole number >= 1, got {aggregation_frequency!r}."
            )
        if core_context is not None:
            self.distributed: DistributedContext = core_context.distributed
        elif managed_training:
            found, self.distributed = connect_processes(None)
            device = found if device is None else device
        else:
            self.distributed = DistributedContext()
        if device is None:
            device = device_of(self.distributed.local_rank) if num_gpus else torch.device("cpu")
        self.device: torch.device = device
        run_settings = run_settings or RunSettings(default_checkpoint_dir(), has_own_checkpoint_dir=False)
        self.experimental: PyTorchExperimentalContext = PyTorchExperimentalContext(self)
        progress = TrialProgress(batches_trained=steps_completed, initial_batch=steps_completed)
        self._run_settings = run_settings
        self._settings = ExperimentSettings(hparams, exp_conf, slots_per_trial)
        self._parts = ContextParts(
            settings=self._settings,
            run_settings=run_settings,
            progress=progress,
            trained=TrainedParts(
                self.device,
                num_processes=self.distributed.size,
                aggregation_frequency=aggregation_frequency,
                progress=progress,
                can_train=managed_training,
            ),
            reducers=MetricReducers(),
            tensorboard=TensorBoard(run_settings.tensorboard_path, self.distributed.rank),
            mover=DeviceMover(self.device),
            distributed=self.distributed,
            experimental=self.experimental,
            aggregation_frequency=aggregation_frequency,
            trial_seed=trial_seed,
            logs_to_tensorboard=enable_tensorboard_logging,
        )
        self._is_closed = False
        self.models: list[nn.Module] = self._parts.trained.models
        self.optimizers: list[Optimizer] = self._parts.trained.optimizers
        self.lr_schedulers: list[LRScheduler] = self._parts.trained.lr_schedulers

    def wrap_model(self, model: ModelT) -> ModelT:
        """Register a model, which is moved to the device, trained on all processes, and saved in checkpoints.

        Call it in ``__init__`` of the trial, before the model's optimizer is created. On several processes, all start
        with the weights of the chief (the process of rank 0).

        Args:
            model: The model, not wrapped for distributed training. Wrapping it again changes nothing.

        Returns:
            The same model, on ``context.device``.

        Raises:
            ArgumentTypeError: ``model`` is not a ``torch.nn.Module``. The error is also a ``TypeError``.
            InternalException: ``fit`` is running, or the block of ``init`` has ended.
            InvalidExperimentException: The model is sharded or, on several processes, has lazy parameters.
            RanksDifferError: The processes wrap different models.

        Example:
            >>> import torch
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     model = context.wrap_model(torch.nn.Linear(2, 1))
            ...     context.models == [model]
            True
        """
        return self._open.trained.wrap_model(model)

    def wrap_optimizer(
        self,
        optimizer: OptimizerT,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> OptimizerT:
        """Register an optimizer, whose state is saved in checkpoints.

        Call it in ``__init__`` of the trial, after ``wrap_model``. Then call ``step_optimizer`` in ``train_batch``, in
        place of the optimizer's ``step``.

        Args:
            optimizer: An optimizer for the parameters of wrapped models.
            backward_passes_per_step: No effect, because any number of backward passes in a batch is supported.
            fp16_compression: No effect; True causes a warning on several processes.
            average_aggregated_gradients: With ``aggregation_frequency``, whether to average the gradients of the
                batches of a group (None, the default, and True) or to sum them (False).

        Returns:
            The same optimizer.

        Raises:
            ArgumentTypeError: ``optimizer`` is not a ``torch.optim.Optimizer``. The error is also a ``TypeError``.
            InternalException: ``fit`` is running, or the block of ``init`` has ended.
            InvalidExperimentException: ``backward_passes_per_step`` is less than 1.

        Example:
            >>> import torch
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     model = context.wrap_model(torch.nn.Linear(2, 1))
            ...     optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            ...     context.optimizers == [optimizer]
            True
        """
        wrap = self._open.trained.wrap_optimizer
        return wrap(optimizer, backward_passes_per_step, fp16_compression, average_aggregated_gradients)

    def wrap_lr_scheduler(
        self, lr_scheduler: SchedulerT, step_mode: LRScheduler.StepMode, frequency: int = 1
    ) -> SchedulerT:
        """Register a learning rate scheduler, which is stepped according to ``step_mode``, and saved in checkpoints.

        Call it in ``__init__`` of the trial, in this order: wrap the model, wrap the optimizer, create the scheduler,
        wrap the scheduler. Do not call the scheduler's ``step()`` yourself, except with ``MANUAL_STEP``.

        Args:
            lr_scheduler: A scheduler for a wrapped optimizer.
            step_mode: When to step it, a member of ``LRScheduler.StepMode``:
                ``STEP_EVERY_EPOCH``, after each epoch;
                ``STEP_EVERY_BATCH``, after each batch of this process, even if gradients are aggregated;
                ``STEP_EVERY_OPTIMIZER_STEP``, after each step of the optimizer;
                ``MANUAL_STEP``, never: the trial calls ``lr_scheduler.step()``, for example in ``train_batch``.
            frequency: With n, step it every n-th epoch, batch or optimizer step. The default is 1.

        Returns:
            The same scheduler.

        Raises:
            ArgumentTypeError: ``step_mode`` is not a ``LRScheduler.StepMode``.
            InternalException: ``fit`` is running, or the block of ``init`` has ended.
            InvalidExperimentException: The optimizer of the scheduler is not wrapped, ``frequency`` is less than 1, or
                a ``ReduceLROnPlateau``, which needs a metric, has a mode other than ``MANUAL_STEP``.

        Example:
            >>> import torch
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     model = context.wrap_model(torch.nn.Linear(2, 1))
            ...     optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            ...     scheduler = context.wrap_lr_scheduler(
            ...         torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5),
            ...         pa_trial.LRScheduler.StepMode.STEP_EVERY_EPOCH,
            ...         frequency=2,  # halve the rate every second epoch
            ...     )
        """
        return self._open.trained.wrap_lr_scheduler(lr_scheduler, step_mode, frequency)

    def wrap_scaler(self, scaler: ScalerT) -> ScalerT:
        """Register a gradient scaler, whose state is saved with checkpoints.

        Use it if the trial implements float16 mixed precision itself; ``context.experimental.use_amp()`` would do
        everything for you. Call it in ``__init__`` of the trial, before ``wrap_model``.

        Args:
            scaler: A ``torch.amp.GradScaler``. In ``train_batch``, call ``context.backward(scaler.scale(loss))`` and
                ``context.step_optimizer(optimizer, scaler=scaler)``. To clip gradients, pass a ``clip_grads`` that
                first calls ``scaler.unscale_(optimizer)``. Then call ``scaler.update()``, but only after the last batch
                of an aggregation group, since no other batch steps the optimizer: if ``(batch_idx + 1) %
                aggregation_frequency == 0``. With the default ``aggregation_frequency`` of 1, this is each batch. At
                other times, the scaler raises an ``AssertionError``.

        Returns:
            The same scaler; pass it to ``step_optimizer``.

        Raises:
            InternalException: The block of ``init`` has ended.
            InvalidExperimentException: There is a scaler already, or a model is wrapped.

        Example:
            >>> import torch
            >>> import pa_trial
            >>> class Half(pa_trial.PyTorchTrial):  # the loaders and the evaluation are left out
            ...     def __init__(self, context):
            ...         self.context = context
            ...         self.scaler = context.wrap_scaler(torch.amp.GradScaler())
            ...         self.model = context.wrap_model(torch.nn.Linear(4, 1))
            ...         sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
            ...         self.optimizer = context.wrap_optimizer(sgd)
            ...     def clip(self, parameters):
            ...         self.scaler.unscale_(self.optimizer)
            ...         torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            ...     def train_batch(self, batch, epoch_idx, batch_idx):
            ...         inputs, targets = batch
            ...         with torch.autocast("cuda", torch.float16):
            ...             loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
            ...         self.context.backward(self.scaler.scale(loss))
            ...         self.context.step_optimizer(self.optimizer, clip_grads=self.clip, scaler=self.scaler)
            ...         if (batch_idx + 1) % 2 == 0:  # after init(aggregation_frequency=2)
            ...             self.scaler.update()
            ...         return {"loss": loss}
        """
        return self._open.trained.wrap_scaler(scaler)

    def configure_apex_amp(
        self,
        models: _ModelsT,
        optimizers: _OptimizersT,
        enabled: bool | None = True,
        opt_level: str | None = "O1",
        cast_model_type: torch.dtype | None = None,
        patch_torch_functions: bool | None = None,
        keep_batchnorm_fp32: bool | str | None = None,
        master_weights: bool | None = None,
        loss_scale: float | str | None = None,
        cast_model_outputs: torch.dtype | None = None,
        num_losses: int | None = 1,
        verbosity: int | None = 1,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = 2.0**24,
    ) -> tuple[_ModelsT, _OptimizersT]:
        """Return models and optimizers unchanged if ``enabled=False``; Apex itself is not supported.

        It exists for scripts for Determined. Remove the call. For mixed precision, call
        ``context.experimental.use_amp()`` instead.

        Args:
            models: A wrapped model, or several.
            optimizers: A wrapped optimizer, or several.
            enabled: Must be False or None; the default is the same as in Determined.
            opt_level: No effect.
            cast_model_type: No effect.
            patch_torch_functions: No effect.
            keep_batchnorm_fp32: No effect.
            master_weights: No effect.
            loss_scale: No effect.
            cast_model_outputs: No effect.
            num_losses: No effect.
            verbosity: No effect.
            min_loss_scale: No effect.
            max_loss_scale: No effect.

        Returns:
            ``models`` and ``optimizers``, as they were passed.

        Raises:
            InternalException: The block of ``init`` has ended.
            InvalidExperimentException: Apex is enabled.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     context.configure_apex_amp("model", "optimizer", enabled=False)
            ('model', 'optimizer')
        """
        _ = self._open.trained
        if enabled:
            raise InvalidExperimentException(
                "Mixed precision with Apex is not supported: remove configure_apex_amp(), or pass enabled=False.",
                do="Call context.experimental.use_amp() before the models are wrapped.",
            )
        return models, optimizers

    def backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients, and average them over the processes if the optimizer steps after this batch.

        Call it in ``train_batch`` in place of ``loss.backward()``, and then ``step_optimizer``. All processes have to
        call it the same number of times in a batch. With ``aggregation_frequency``, gradients of several batches are
        added up, and only the last batch exchanges them.

        Args:
            loss: The tensor to differentiate, usually the mean loss of the batch. Do not divide it by
                ``aggregation_frequency``: ``step_optimizer`` averages the gradients of a group of batches.
            gradient: The gradient of the loss, of the same shape; only for a loss that is not a single number.
            retain_graph: Whether to keep the graph for another backward pass. It is freed by default, which saves
                memory.
            create_graph: Whether to build a graph of the gradients, to differentiate them again.

        Raises:
            InternalException: The block of ``init`` has ended.
            InvalidExperimentException: With ``samples_per_update``, ``step_optimizer`` was already called in this
                batch.

        Example:
            >>> def train_batch(self, batch, epoch_idx, batch_idx):  # a method of a trial
            ...     loss = self.loss_func(self.model(batch[0]), batch[1])
            ...     self.context.backward(loss)
            ...     self.context.step_optimizer(self.optimizer)
            ...     return loss
        """
        self._open.trained.backward(loss, gradient, retain_graph, create_graph)

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[list[nn.Parameter]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Step an optimizer and clear its gradients, on the last batch of an aggregation group.

        Call it in ``train_batch`` after every ``backward``, in place of ``optimizer.step()`` and
        ``optimizer.zero_grad()``. An aggregation group is ``aggregation_frequency`` consecutive batches, by default a
        single batch. On other batches of a group, the call does nothing.

        Args:
            optimizer: A wrapped optimizer.
            clip_grads: Called with a list of the optimizer's parameters before the step, to clip their gradients. By
                default, they are not clipped.
            auto_zero_grads: Whether to zero the gradients after the step, by default True. If False, call
                ``optimizer.zero_grad()`` yourself.
            scaler: The gradient scaler that you passed to ``wrap_scaler``: ``scaler.step(optimizer)`` is then called,
                which skips the step if gradients overflowed. Gradients are still scaled when ``clip_grads`` is called,
                so begin it with ``scaler.unscale_(optimizer)``. The default, None, is for trials without a scaler, and
                for trials with ``use_amp``, where gradients are unscaled before ``clip_grads``.

        Raises:
            InternalException: Training has not begun, or the block of ``init`` has ended.
            InvalidExperimentException: ``auto_zero_grads`` is False although gradients are aggregated; or, on several
                processes, the optimizer has parameters that do not belong to any wrapped model.

        Example:
            >>> import torch
            >>> def train_batch(self, batch, epoch_idx, batch_idx):  # a method of a trial
            ...     loss = self.loss_func(self.model(batch[0]), batch[1])
            ...     self.context.backward(loss)
            ...     self.context.step_optimizer(
            ...         self.optimizer, clip_grads=lambda params: torch.nn.utils.clip_grad_norm_(params, 1.0)
            ...     )
            ...     return {"loss": loss}
        """
        self._open.trained.step_optimizer(optimizer, clip_grads, auto_zero_grads, scaler)

    def to_device(self, data: _T) -> _T:
        """Move data to the device.

        Batches from the loaders are already on the device. Use this method for other data, and in
        ``evaluate_full_dataset``.

        Args:
            data: Tensors, NumPy arrays, objects with a ``to`` method, and dicts, lists and tuples of these. Anything
                else is returned unchanged, with a warning for each type.

        Returns:
            The data on the device, in the same structure; NumPy arrays become tensors.

        Example:
            >>> import torch
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     class_weights = context.to_device(torch.tensor([0.2, 0.8]))
            ...     class_weights.device == context.device
            True
        """
        return self._open.mover(data)

    def current_train_batch(self) -> int:
        """Return the index of the current batch of this process, counted from 0 over the whole training.

        ``train_batch`` is passed the same number, so use this method in helpers and models. In a validation and after
        training, it is the index of the last trained batch. With ``samples_per_update``, it counts updates.

        Raises:
            InternalException: Training has not begun.

        Example:
            >>> def warmed_up_weight(context):  # called in train_batch
            ...     return min(1.0, context.current_train_batch() / 1000)
        """
        return self._parts.progress.current_batch("context.current_train_batch()")

    def current_train_epoch(self) -> int:
        """Return the index of the current epoch, counted from 0.

        ``train_batch`` is passed the same number, so use this method in helpers and models. In a validation and after
        training, it is the epoch of the last trained batch.

        Raises:
            InternalException: Training has not begun.

        Example:
            >>> def is_frozen(context):  # called in train_batch
            ...     return context.current_train_epoch() < 2
        """
        return self._parts.progress.place("context.current_train_epoch()")[0]

    def is_epoch_start(self) -> bool:
        """Return whether the current batch is the first of its epoch.

        Call it in ``train_batch``, for example to reset a hidden state.

        Raises:
            InternalException: Training has not begun.

        Example:
            >>> def train_batch(self, batch, epoch_idx, batch_idx):  # a method of a trial
            ...     if self.context.is_epoch_start():
            ...         self.hidden = None
            ...     return self.update(batch)
        """
        return self._parts.progress.place("context.is_epoch_start()")[1] == 0

    def is_epoch_end(self) -> bool:
        """Return whether the current batch is the last of its epoch.

        Call it in ``train_batch``, for example to log once per epoch. It is always False if the training loader has no
        length.

        Raises:
            InternalException: Training has not begun.

        Example:
            >>> def train_batch(self, batch, epoch_idx, batch_idx):  # a method of a trial
            ...     loss = self.update(batch)
            ...     if self.context.is_epoch_end():
            ...         print(f"epoch {epoch_idx} ends with a loss of {loss.item()}")
            ...     return loss
        """
        progress = self._parts.progress
        return progress.place("context.is_epoch_end()")[1] == progress.batches_per_epoch - 1

    def get_initial_batch(self) -> int:
        """Return the index of the first batch that this ``fit`` trains, counted from 0.

        The index is 0 if the training starts from the beginning. Otherwise, it is the number of batches that were
        trained before the checkpoint was saved. It is known as soon as ``fit`` has read the checkpoint, for example in
        ``on_training_start`` of a callback. Until then, it is 0.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     context.get_initial_batch()  # before fit
            0
        """
        return self._parts.progress.initial_batch

    def get_experiment_id(self) -> int:
        """Return 0, because there is a single experiment without a cluster.

        It exists for scripts for Determined that use it in file names. In new code, use your own identifier instead.
        """
        return 0

    def get_trial_id(self) -> int:
        """Return 0, because there is a single trial without a cluster.

        It exists for scripts for Determined that use it in file names. In new code, use your own identifier instead.
        """
        return 0

    def get_trial_seed(self) -> int:
        """Return the seed that was passed to ``init``, for the trial's own random number generators.

        ``init`` has seeded the global generators of Python, NumPy and torch with it.

        Returns:
            The seed, an int from 0 to ``2**32 - 1``, the same on all processes.

        Raises:
            InternalException: No seed was passed.

        Example:
            >>> import torch
            >>> import pa_trial
            >>> with pa_trial.init(seed=7) as context:
            ...     generator = torch.Generator().manual_seed(context.get_trial_seed())
        """
        seed = self._parts.trial_seed
        if seed is None:
            raise InternalException("There is no seed: pass it, for example init(seed=0).")
        return seed

    def get_stop_requested(self) -> bool:
        """Return whether a stop of the training was requested on this process.

        ``set_stop_requested(True)`` and the signals in ``init(stop_on_signals=...)`` request a stop. A request on a
        different process is visible only when all processes have agreed to stop, which they do after the same batch.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     context.set_stop_requested(True)
            ...     context.get_stop_requested()
            True
        """
        return self._parts.stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Request a stop of the training; ``fit`` then saves a checkpoint and returns.

        Call it in the trial or a callback, for example to stop early when a metric is good enough. The training stops
        at the next report, validation or checkpoint. A request on any process stops all of them.

        Args:
            stop_requested: True to request it, False to withdraw the request.

        Raises:
            InternalException: The block of ``init`` has ended.
            UsageError: The value is not a bool.

        Example:
            >>> import pa_trial
            >>> class StopWhenGood(pa_trial.PyTorchCallback):
            ...     def __init__(self, context):
            ...         self.context = context
            ...     def on_validation_end(self, metrics):
            ...         if metrics["accuracy"] > 0.99:
            ...             self.context.set_stop_requested(True)
        """
        require_bool("stop_requested", stop_requested)
        self._open.stop_requested = stop_requested

    def get_latest_checkpoint(self) -> str | None:
        """Return the newest intact checkpoint in the folder of ``init(checkpoint_dir=...)``.

        Pass the returned name to ``fit`` as ``latest_checkpoint``, so that a script resumes where it was interrupted.
        Every process must call this method. Damaged checkpoints are skipped with a warning; Determined's own
        checkpoints are not found.

        Returns:
            The name of the checkpoint; None if the folder has no such checkpoint.

        Raises:
            ConfigurationError: ``init`` was called without ``checkpoint_dir``. Without it, all trainings share a
                folder, and the newest checkpoint there may belong to a different training.
            InternalException: The block of ``init`` has ended.

        Example:
            >>> import tempfile
            >>> import pa_trial
            >>> with tempfile.TemporaryDirectory() as folder, pa_trial.init(checkpoint_dir=folder) as context:
            ...     print(context.get_latest_checkpoint())  # then fit(latest_checkpoint=...)
            None
        """
        run_settings = self._open.run_settings
        if not run_settings.has_own_checkpoint_dir:
            raise ConfigurationError(
                "The newest checkpoint of this training is not known.",
                given="context.get_latest_checkpoint() after init() without checkpoint_dir, which all trainings share",
                do='Choose a folder, for example init(checkpoint_dir="checkpoints").',
            )
        return find_newest(run_settings.checkpoint_dir)

    def get_tensorboard_path(self) -> Path | None:
        """Return the folder of ``init(tensorboard_path=...)``, for example to write your own files next to the events.

        Returns:
            A ``pathlib.Path``; None if no folder was passed. TensorBoard then writes to a new folder in ``runs``.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init(tensorboard_path="events") as context:
            ...     context.get_tensorboard_path().name
            'events'
        """
        return self._parts.run_settings.tensorboard_path

    def get_tensorboard_writer(self) -> SummaryWriter:
        """Return the ``torch.utils.tensorboard.SummaryWriter`` of this training.

        Use it for images, histograms and text; metrics are written automatically. The writer is created by the first
        call, and is closed at the end of the ``init`` block. Each process has its own writer. Processes other than the
        chief write to a subfolder.

        Raises:
            InternalException: The block of ``init`` has ended.
            UnsupportedConfigurationError: TensorBoard is not installed (``pip install tensorboard``). The error is also
                a ``RuntimeError``.

        Example:
            >>> import tempfile
            >>> import pa_trial
            >>> with tempfile.TemporaryDirectory() as folder, pa_trial.init(tensorboard_path=folder) as context:
            ...     context.get_tensorboard_writer().add_text("notes", "the first training", global_step=0)
        """
        return self._open.tensorboard.writer

    def get_enable_tensorboard_logging(self) -> bool:
        """Return whether ``fit`` writes metrics for TensorBoard.

        ``init(enable_tensorboard_logging=...)`` sets this value, which is True by default, and
        ``set_enable_tensorboard_logging`` changes it.
        """
        return self._parts.logs_to_tensorboard

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Set whether ``fit`` writes metrics for TensorBoard from now on.

        Call it in the trial or a callback to change the value that was passed to ``init``. A writer that
        ``get_tensorboard_writer`` returned is not affected.

        Args:
            enable_tensorboard_logging: True to write them, False to stop.

        Raises:
            InternalException: The block of ``init`` has ended.
            UsageError: The value is not a bool.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     context.set_enable_tensorboard_logging(False)
            ...     context.get_enable_tensorboard_logging()
            False
        """
        require_bool("enable_tensorboard_logging", enable_tensorboard_logging)
        self._open.logs_to_tensorboard = enable_tensorboard_logging

    @property
    def profiler(self) -> profile | None:
        """The ``torch.profiler.profile`` that ``set_profiler`` created; None if ``set_profiler`` was not called.

        Read it, for example, to print ``context.profiler.key_averages()`` after ``fit``.
        """
        return self._parts.profiler

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Profile the training with ``torch.profiler``; traces are written to the TensorBoard folder.

        Call it in ``__init__`` of the trial, or before ``fit``, which starts the profiler and steps it after each
        batch. Without a schedule, the profiler records the whole training and needs much memory.

        Args:
            args: Positional arguments of ``torch.profiler.profile``.
            kwargs: Keyword arguments of ``torch.profiler.profile``. By default, ``on_trace_ready`` writes traces for
                TensorBoard.

        Raises:
            InternalException: The block of ``init`` has ended.

        Example:
            >>> import torch
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     context.set_profiler(
            ...         activities=[torch.profiler.ProfilerActivity.CPU],
            ...         schedule=torch.profiler.schedule(wait=5, warmup=2, active=3),
            ...     )
        """
        folder = self._open.tensorboard.path or "runs"  # the default of TensorBoard's writer
        kwargs.setdefault("on_trace_ready", tensorboard_trace_handler(str(folder)))
        self._parts.profiler = profile(*args, **kwargs)

    @property
    def _open(self) -> ContextParts:
        """The parts that may be used only within the block of ``init``."""
        if self._is_closed:
            raise InternalException(
                "The with block of init() has ended: its context, and a Trainer with it, can no longer be used.",
                do="Indent the line to be within the block: with pa_trial.init() as context: ...",
            )
        return self._parts

    def _run_parts(self) -> ContextParts:
        """Return the parts that the training loop uses.

        Raises:
            InternalException: The ``with`` block of ``init`` has ended.
            UnsupportedConfigurationError: There should be several processes, but they are not connected.
        """
        parts = self._open
        if num_processes() != parts.distributed.size:
            raise UnsupportedConfigurationError(
                "The processes that should train together are not connected.",
                given=f"{parts.distributed.size} processes by the DistributedContext, {num_processes()} by torch",
                do="Start the script with torchrun, and let init() find the processes.",
            )
        return parts

    @override
    def _reducers(self) -> MetricReducers:
        return self._open.reducers

    def _use_amp(self) -> None:
        self._open.trained.use_amp()

    def _close(self) -> None:
        """End the context and close its resources; settings and progress can still be read."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._parts.tensorboard.close()
        finally:
            self._parts.distributed.close()
