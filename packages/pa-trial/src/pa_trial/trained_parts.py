"""The models, optimizers, schedulers and the scaler of a trial, and their work in each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler as TorchScheduler
from torch.utils.hooks import RemovableHandle

from pa_checkpoint.torch_states import incompatibility
from pa_distributed import require_same
from pa_trial import part_checks
from pa_trial._torch import foreach, is_unscaled
from pa_trial.chief_buffers import ChiefBuffers, broadcast
from pa_trial.errors import InternalException, InvalidCheckpointException, InvalidExperimentException
from pa_trial.lr_scheduler import LRScheduler
from pa_trial.mixed_precision import AutocastHooks, create_scaler
from pa_trial.part_checks import parameters_of
from pa_trial.progress import TrialProgress
from pa_trial.trial_gradients import TrialGradients
from pa_trial.user_warnings import warn_user

ModelT = TypeVar("ModelT", bound=nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
SchedulerT = TypeVar("SchedulerT", bound=TorchScheduler)
ScalerT = TypeVar("ScalerT", bound=GradScaler)


class TrainedParts:
    """Wraps the models, optimizers, schedulers and the scaler of a trial, and takes part in the training of each batch.

    Models are not wrapped in other modules. On several processes, ``backward`` and ``step_optimizer`` exchange
    their gradients.

    Args:
        device: The device of this process.
        num_processes: The number of processes that train together.
        aggregation_frequency: The number of batches whose gradients are accumulated for an optimizer step.
        progress: The counters, with the index of the batch that is being trained.
        can_train: Whether models are trained. With False, they stay on their device, for a trial that was loaded.

    Attributes:
        models: The wrapped models, in the order of wrapping.
        optimizers: The wrapped optimizers, in the same order.
        lr_schedulers: The wrapped schedulers, in the same order.
        scaler: The scaler that was wrapped, or the scaler of automatic mixed precision.
        leave_agreed: Whether all processes know that a process has requested a stop, and stop after the same batch.

    Example:
        >>> import torch
        >>> progress = TrialProgress(batch_idx=0)
        >>> parts = TrainedParts(torch.device("cpu"), num_processes=1, aggregation_frequency=1, progress=progress)
        >>> model = parts.wrap_model(torch.nn.Linear(1, 1, bias=False))
        >>> optimizer = parts.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        >>> before = model.weight.item()
        >>> parts.backward(model(torch.ones(1, 1)).sum())
        >>> parts.step_optimizer(optimizer)
        >>> round(before - model.weight.item(), 3)
        1.0
    """

    def __init__(
        self,
        device: torch.device,
        *,
        num_processes: int,
        aggregation_frequency: int,
        progress: TrialProgress,
        can_train: bool = True,
    ) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.scaler: GradScaler | None = None
        self.leave_agreed: bool = False
        self._device = device
        self._num_processes = num_processes
        self._aggregation_frequency = aggregation_frequency
        self._progress = progress
        self._can_train = can_train
        self._averages: dict[int, bool] = {}  # by the id of an optimizer
        self._unwrapped: list[Optimizer] = []
        self._autocast: AutocastHooks | None = None
        self._autocast_handles: list[RemovableHandle] = []
        self._scales = False
        self._must_update_scale = False
        self._asks_to_leave = False
        self._is_training = self._has_stepped = False
        self._weight: float | None = None  # of a piece of an update
        self._is_last = True
        self._exchange: TrialGradients | None = None
        self._exchanges_now = False
        self._buffers: ChiefBuffers | None = None
        self._step_handles: list[RemovableHandle] = []
        self._num_checked: dict[int, int] = {}  # parameters of an optimizer, by its id

    def wrap_model(self, model: ModelT) -> ModelT:
        """Move a model to the device, give it the weights of the chief, and return it.

        Args:
            model: The model; wrapping it again changes nothing.

        Raises:
            ArgumentTypeError: The argument is not a module.
            InternalException: The training has begun.
            InvalidExperimentException: The model is sharded or, on several processes, has parameters without a shape.
            RanksDifferError: The processes wrap models with different parameters.
        """
        part_checks.require_model(model)
        if any(model is known for known in self.models):
            return model
        self._require_before_training("model")
        if self._can_train:
            model = model.to(self._device)
            if self._num_processes > 1:
                part_checks.require_initialized(model)
                require_same({f"model {len(self.models)}": model})
                broadcast((*model.parameters(), *model.buffers()), self._device)
        self.models.append(model)
        self._register_autocast(model)
        return model

    def wrap_optimizer(
        self,
        optimizer: OptimizerT,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> OptimizerT:
        """Register an optimizer, and return it.

        Args:
            optimizer: The optimizer, of parameters of wrapped models; wrapping it again changes nothing else.
            backward_passes_per_step: Only checked, because any number of backward passes is supported.
            fp16_compression: Ignored, because gradients keep their dtype. True causes a warning on several
                processes.
            average_aggregated_gradients: Whether the gradients of a group of batches are averaged (None, the default)
                or added up.

        Raises:
            ArgumentTypeError: The argument is not an optimizer.
            InternalException: The training has begun.
            InvalidExperimentException: ``backward_passes_per_step`` is less than 1.
        """
        part_checks.require_optimizer(optimizer)
        if backward_passes_per_step < 1:
            problem = f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}."
            raise InvalidExperimentException(problem, do="Leave it out: any number of backward passes works.")
        if fp16_compression and self._num_processes > 1:
            warn_user("fp16_compression=True has no effect: gradients are exchanged in their own dtype. Leave it out.")
        if id(optimizer) not in self._averages:
            self._require_before_training("optimizer")
            self.optimizers.append(optimizer)
        self._averages[id(optimizer)] = average_aggregated_gradients is not False
        return optimizer

    def wrap_lr_scheduler(
        self, lr_scheduler: SchedulerT, step_mode: LRScheduler.StepMode, frequency: int = 1
    ) -> SchedulerT:
        """Register a scheduler, which is stepped during training, and return it.

        Args:
            lr_scheduler: The scheduler, of a wrapped optimizer.
            step_mode: When it is stepped.
            frequency: With n, it is stepped only every n-th time.

        Raises:
            ArgumentTypeError: ``step_mode`` is not a ``LRScheduler.StepMode``.
            InternalException: The training has begun.
            InvalidExperimentException: Its optimizer is not wrapped, or it needs a metric and is not stepped manually.
        """
        wrapped = LRScheduler(lr_scheduler, step_mode, frequency)
        optimizer: object = getattr(lr_scheduler, "optimizer", None)
        if id(optimizer) not in self._averages:
            problem = f"The optimizer of a {type(lr_scheduler).__name__} is not wrapped: {type(optimizer).__name__}."
            raise InvalidExperimentException(problem, do="Wrap it first, then create the scheduler with it.")
        self._require_before_training("lr_scheduler")
        self.lr_schedulers.append(wrapped)
        return lr_scheduler

    def wrap_scaler(self, scaler: ScalerT) -> ScalerT:
        """Keep the state of a scaler in checkpoints, and return it; the trial scales, unscales and updates.

        Args:
            scaler: The scaler. ``step_optimizer`` uses it where it is passed again.

        Raises:
            InvalidExperimentException: There is a scaler already, or a model is wrapped.
        """
        if self.scaler is not None:
            raise InvalidExperimentException("A trial has a single scaler: call wrap_scaler() or use_amp(), once.")
        if self.models:
            raise InvalidExperimentException("Call wrap_scaler() and use_amp() before the first model is wrapped.")
        self.scaler = scaler
        return scaler

    def use_amp(self) -> None:
        """Compute forward passes under autocast, and scale losses and gradients; only on CUDA.

        Raises:
            InvalidExperimentException: As ``wrap_scaler``.
        """
        self.wrap_scaler(create_scaler(self._device))
        self._scales = True
        if self._device.type == "cuda":
            self._autocast = AutocastHooks(self._device.type)

    def require_trainable(self) -> None:
        """Check that the wrapped parts can be trained.

        Raises:
            InvalidExperimentException: No model or optimizer is wrapped; the trial was loaded to be inspected; or, on
                several processes, an optimizer has parameters that no model has. A single process only warns about
                these.
        """
        if not self._can_train:
            raise InvalidExperimentException(
                "A trial that was loaded from a checkpoint cannot be trained.",
                do="Make the trial within init(), and pass latest_checkpoint= or warm_start= to fit().",
            )
        part_checks.require_some(self.models, self.optimizers)
        for optimizer in self.optimizers:
            part_checks.check_parameters(optimizer, self.models, self._num_processes)

    def set_training(self, training: bool) -> None:
        """Put all models in training mode, or in eval mode with the buffers of the chief; every process must call this.

        Args:
            training: True for training mode.
        """
        for model in self.models:
            model.train(training)
        if self._buffers is not None:
            self._buffers.find()
            if not training:
                self._buffers.follow_chief()

    def start_training(self) -> None:
        """Begin to train; ``end_training`` ends it."""
        self._is_training = True
        self.leave_agreed = self._must_update_scale = False
        if not self._autocast_handles:
            for model in self.models:
                self._register_autocast(model)
        if self._num_processes > 1:
            parameters = list(dict.fromkeys(parameter for model in self.models for parameter in model.parameters()))
            broadcast(parameters, self._device)  # the trial may have changed them after they were wrapped
            self._exchange = TrialGradients(self.models, self._device)
            self._note_unfinished(self._exchange)
            self._buffers = ChiefBuffers(self.models, self._device)
            self._step_handles = [
                optimizer.register_step_pre_hook(self._require_exchanged) for optimizer in self.optimizers
            ]

    def end_training(self) -> None:
        """Remove all hooks of this class from models and optimizers, even after an exception."""
        self._is_training = self._exchanges_now = self._asks_to_leave = False
        for handle in (*self._step_handles, *self._autocast_handles):
            handle.remove()
        self._step_handles.clear()
        self._autocast_handles.clear()
        exchange, self._exchange, self._buffers = self._exchange, None, None
        if exchange is not None:
            exchange.close()

    def start_batch(self, weight: float | None = None, *, is_last: bool = True) -> None:
        """Begin a batch, or a piece of it; every process must call this. The progress has the index of the batch.

        On several processes, the buffers of all models follow the chief's when a piece or a group of batches begins.

        Args:
            weight: The weight of a piece's loss in the mean over the processes; None for a whole batch.
            is_last: Whether no other piece of the batch follows.
        """
        self._weight, self._is_last, self._has_stepped = weight, is_last, False
        if self._exchange is None or self._buffers is None:
            return
        batch_idx = cast("int", self._progress.batch_idx)
        if batch_idx % self._aggregation_frequency == 0:
            self._buffers.follow_chief()
        self._exchanges_now = is_last and (batch_idx + 1) % self._aggregation_frequency == 0
        self._exchange.start_batch(batch_idx)

    def finish_batch(self) -> None:
        """End a batch; if optimizers step after it, update the scale, and step the schedulers that are due."""
        batch_idx = cast("int", self._progress.batch_idx)
        self._exchanges_now = False
        if (batch_idx + 1) % self._aggregation_frequency or not self._is_last:
            return
        if self._must_update_scale and self.scaler is not None:
            self.scaler.update()
            self._must_update_scale = False
        for scheduler in self.lr_schedulers:
            due = scheduler.steps_due(batch_idx, self._aggregation_frequency, self._progress.batches_per_epoch)
            for _ in range(due):
                scheduler.step()
        if self._asks_to_leave and self._num_processes == 1:
            self.leave_agreed = True

    def ask_to_leave(self) -> None:
        """Let all processes leave after the same batch, at the end of a group; ``leave_agreed`` is then set."""
        self._asks_to_leave = True

    def backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients; on several processes, exchange them if optimizers step after the batch.

        Args:
            loss: The tensor to differentiate. With ``use_amp``, it is scaled here. A trial with its own scaler has
                already scaled it.
            gradient: The gradient of the loss, for a loss that is not a single number.
            retain_graph: Whether another backward pass will use the graph.
            create_graph: Whether gradients of the gradients should be computed; retains the graph.

        Raises:
            InvalidExperimentException: The batch is a piece of an update, and ``step_optimizer`` was already called in
                it.
        """
        if self._weight is not None and self._has_stepped:
            raise InvalidExperimentException("With samples_per_update, call backward() before step_optimizer().")
        loss = loss if self._weight is None else loss * self._weight
        scaled: Any = self.scaler.scale(loss) if self._scales and self.scaler is not None else loss
        exchange = self._exchange if self._exchanges_now else None
        if exchange is not None:
            exchange.start_pass()
        scaled.backward(gradient, retain_graph=retain_graph or create_graph, create_graph=create_graph)
        if exchange is not None:
            self.leave_agreed |= exchange.average(asks=self._asks_to_leave)

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[list[nn.Parameter]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: GradScaler | None = None,
    ) -> None:
        """Step an optimizer if the batch is the last of its group; do nothing otherwise.

        Gradients are averaged over the group, clipped, applied and zeroed.

        Args:
            optimizer: The optimizer.
            clip_grads: Called with the list of the optimizer's parameters. If ``use_amp`` has scaled their gradients,
                they are already unscaled.
            auto_zero_grads: Whether to zero the gradients; if False, the trial zeroes them.
            scaler: Steps the optimizer; needed if the trial has scaled the loss itself.

        Raises:
            InternalException: The training has not begun.
            InvalidExperimentException: Gradients are aggregated, and not zeroed; or the processes would diverge.
        """
        aggregation = self._aggregation_frequency
        if (aggregation > 1 or self._weight is not None) and not auto_zero_grads:
            raise InvalidExperimentException("The step zeroes aggregated gradients: leave out auto_zero_grads=False.")
        batch_idx = self._progress.current_batch("context.step_optimizer()")
        self._has_stepped = True
        if (batch_idx + 1) % aggregation or not self._is_last:
            return
        self._warn_if_unwrapped(optimizer)
        if self._exchange is not None:
            self._finish_exchange(self._exchange, optimizer, scaler)
        if aggregation > 1 and self._averages.get(id(optimizer), True):
            _divide_gradients(optimizer, aggregation)
        scales = self._scales and (scaler is None or scaler is self.scaler)
        if scales:
            scaler, self._must_update_scale = self.scaler, True
        if clip_grads is not None:
            if scales and scaler is not None:
                scaler.unscale_(optimizer)
            clip_grads(cast("list[nn.Parameter]", [*parameters_of(optimizer)]))
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
        if auto_zero_grads:
            optimizer.zero_grad()

    def gradients_in_progress(self) -> bool:
        """Whether the batches that are complete end within a group whose gradients are still being collected."""
        return self._progress.batches_trained % self._aggregation_frequency != 0

    def unfinished_gradients(self) -> list[dict[str, Tensor]]:
        """Return the gradients of this process that no step has used up, by the names of parameters, model by model."""
        seen, unfinished = set[int](), list[dict[str, Tensor]]()
        for model in self.models:
            own = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in seen}
            unfinished.append(
                {name: parameter.grad.detach() for name, parameter in own.items() if parameter.grad is not None}
            )
            seen |= set(map(id, own.values()))
        return unfinished

    def load_unfinished_gradients(self, gradients: list[dict[str, Tensor]]) -> None:
        """Continue with gradients that ``unfinished_gradients`` returned.

        Args:
            gradients: Its return value.

        Raises:
            InvalidCheckpointException: They do not belong to the wrapped models. Nothing was loaded.
        """
        pairs = list(zip(self.models, gradients, strict=False))
        found = [
            incompatibility(model, {**model.state_dict(), **of_model}, source="checkpoint") for model, of_model in pairs
        ]
        if len(gradients) != len(self.models) or any(found):
            raise InvalidCheckpointException(
                "The gradients of an unfinished group of batches belong to other models.",
                given="; ".join(filter(None, found)) or f"{len(gradients)} models, not {len(self.models)}",
                do="Resume with the trial that saved the checkpoint.",
            )
        for model, of_model in pairs:
            for name, gradient in of_model.items():
                parameter = model.get_parameter(name)
                parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
        if self._exchange is not None:
            self._note_unfinished(self._exchange)

    def _require_before_training(self, part: str) -> None:
        if self._is_training:
            raise InternalException(f"Call wrap_{part}() before fit(), in __init__ of the trial, not during training.")

    def _register_autocast(self, model: nn.Module) -> None:
        if self._autocast is not None:
            self._autocast_handles.extend(self._autocast.register(model))

    def _note_unfinished(self, exchange: TrialGradients) -> None:
        """Count the gradients of an unfinished group as due, so that they are exchanged at its end."""
        if self.gradients_in_progress():
            parameters = (parameter for model in self.models for parameter in model.parameters())
            exchange.note_reached(parameter for parameter in parameters if parameter.grad is not None)

    def _warn_if_unwrapped(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._averages and not any(optimizer is known for known in self._unwrapped):
            self._unwrapped.append(optimizer)
            warn_user(
                f"step_optimizer() steps an optimizer that is not wrapped: {type(optimizer).__name__}. Checkpoints do "
                "not contain its state, so a resumed training starts it from scratch. Wrap it with "
                "context.wrap_optimizer()."
            )

    def _finish_exchange(self, exchange: TrialGradients, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        """Exchange the gradients that ``backward`` has not exchanged."""
        number = sum(len(group["params"]) for group in optimizer.param_groups)
        if number != self._num_checked.get(id(optimizer)):  # groups that were added in training are new
            if foreign := exchange.unknown(parameters_of(optimizer)):
                raise part_checks.apart_from_others(foreign)
            self._num_checked[id(optimizer)] = number
        if self._exchanges_now and exchange.is_due:
            if scaler is not None and is_unscaled(scaler, optimizer) and exchange.is_pending(parameters_of(optimizer)):
                raise InvalidExperimentException(
                    "Gradients were unscaled before they were exchanged, so the processes may not agree on whether to "
                    "step.",
                    do="Call context.backward(scaler.scale(loss)) before scaler.unscale_(optimizer).",
                )
            self.leave_agreed |= exchange.average(asks=self._asks_to_leave)

    def _require_exchanged(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Raise an error for a step with gradients of this process alone."""
        if self._exchange is not None and self._exchange.is_pending(parameters_of(optimizer)):
            raise InvalidExperimentException(
                "An optimizer was stepped with the gradients of one process alone, so the processes would diverge.",
                do="Call context.backward(loss) and context.step_optimizer(optimizer) instead of loss.backward() and "
                "optimizer.step(). With aggregated gradients, they also wait for the end of a group.",
            )


def _divide_gradients(optimizer: Optimizer, number: int) -> None:
    gradients = [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
    if gradients:
        foreach("div_", gradients, number)
