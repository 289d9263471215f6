"""Watches the first steps of a run: what the model and the losses are called with, and what updates change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, StopTrainingError, Trainer, TrainerCallback
from pa_preflight._function_calls import FunctionCall, FunctionCalls, made_by
from pa_preflight._loss_calls import WATCHED

_LOSSES: Final = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
)

_KEPT = 1000
_ROWS, _COLUMNS = 64, 256
_ROUNDED = 1e-6


@dataclass
class LossCall:
    """A call of a loss function of torch.

    Attributes:
        name: The function in ``torch.nn.functional``.
        outputs: Its first argument.
        targets: Its second argument.
        options: The others.
        value: What it returned; None if it raised an error.
    """

    name: str
    outputs: Tensor
    targets: Tensor
    options: Mapping[str, Any]
    value: Tensor | None = None

    def shorten(self) -> None:
        """Keep a few numbers."""
        self.outputs, self.targets = (one.flatten()[:_KEPT].clone() for one in (self.outputs, self.targets))


class _Losses(TorchFunctionMode):
    """Notes the calls of loss functions, from wherever they come."""

    def __init__(self, calls: list[LossCall]) -> None:
        super().__init__()
        self._calls = calls
        self._names: dict[Callable[..., Any], str] = {getattr(functional, name): name for name in _LOSSES}

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        given = [*args, *(options.pop(name) for name in ("input", "target") if name in options and func in self._names)]
        if func not in self._names or len(given) < 2 or not all(isinstance(one, Tensor) for one in given[:2]):  # noqa: PLR2004  # outputs and targets
            return func(*args, **(kwargs or {}))
        call = LossCall(self._names[func], given[0].detach(), given[1].detach(), options)
        self._calls.append(call)
        value = func(*args, **(kwargs or {}))
        call.value = value.detach()
        return value


@dataclass
class ModelCall:
    """A call of the model.

    Attributes:
        args: The positional arguments.
        kwargs: The others.
        output: The first tensor of its output; None without one.
        made_by: The operation that made it, such as "Sigmoid"; empty without a graph.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor | None
    made_by: str = ""

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among the arguments that have a row for each sample."""
        return [one for one in tensors_in((self.args, self.kwargs)) if one.dim()]


class Observer(TrainerCallback):
    """Notes what the first steps of a run do, and keeps the tensors of the first and the last one.

    Args:
        model: The model.
        optimizers: What trains it.
        at_first_batch: Called with the first batch, when its loss is known and nothing was changed.
        num_updates: After how many updates the run ends; its schedule has all of them.
        after_first_step: Called when the first step is over, and its graph is gone.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Iterable[Optimizer],
        at_first_batch: Callable[[Any, Tensor], None],
        num_updates: int,
        after_first_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model
        self.optimizers = list(optimizers)
        self._at_first_batch = at_first_batch
        self._after_first_step = [after_first_step]
        self._num_updates = num_updates
        self.loss_calls: list[LossCall] = []
        self.function_calls: list[FunctionCall] = []  # of the first step
        self.model_calls: list[ModelCall] = []
        self.losses: list[Tensor] = []
        self._of_first = 0, 0
        self._of_step = 0, 0
        self.rows: list[tuple[Tensor, Tensor]] = []  # what the model got in each step, and what the loss compared with
        self.rates: list[list[float]] = []  # of the parameter groups, before each update
        self.called: list[nn.Module] = [model]
        self.stepped: set[int] = set()  # parameters by their identity: those that optimizers step, and with a gradient
        self.with_gradient: set[int] = set()
        self.is_training: list[bool] = []
        self.first_inputs: list[Tensor] = []
        self.in_training: set[type[nn.Module]] = set()
        self.over_lengths: set[type[nn.Module]] = set()  # layers that take means over more than samples
        self.reached_outside = False  # whether parameters that no optimizer has got a gradient
        self.keeps_gradients = False
        self.fetching: list[float] = []
        self.computing: list[float] = []
        self._updated: float | None = None
        self._started = 0.0
        self._stack = ExitStack()

    def close(self) -> None:
        """Let the model and its optimizers be."""
        self._stack.close()

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.close()
        hooks = [one.register_forward_hook(self._note_call, with_kwargs=True) for one in self.called]
        layers = [one for one in self.model.modules() if any(own.dim() > 1 for own in one.parameters(recurse=False))]
        hooks += [one.register_forward_pre_hook(self._note_inputs) for one in layers]
        norms = [one for one in self.model.modules() if isinstance(one, nn.BatchNorm1d)]
        hooks += [one.register_forward_pre_hook(self._note_norm) for one in norms]
        hooks += [one.register_step_pre_hook(self._note_update) for one in self.optimizers]
        for hook in hooks:
            self._stack.callback(hook.remove)

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self._updated is not None:
            self.fetching.append(time.perf_counter() - self._updated)
        self.on_train_epoch_end(trainer)
        self._started = time.perf_counter()
        self.is_training.append(any(module.training for module in self.model.modules()))
        self.in_training = {type(module) for module in self.model.modules() if module.training}
        for call in self.loss_calls[self._of_first[0] :]:
            call.shorten()
        for index in range(self._of_first[1], len(self.model_calls)):
            self.model_calls[index] = ModelCall((), {}, None)
        self._stack.enter_context(_Losses(self.loss_calls))
        if not self.losses:
            self._stack.enter_context(FunctionCalls(self.function_calls, WATCHED))

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        self.close()
        self._updated = None
        self._note_rows()
        self.losses.append(batch_output["loss"].detach())
        if len(self.losses) == 1:
            self._of_first = len(self.loss_calls), len(self.model_calls)
            self._at_first_batch(batch, batch_output["loss"])
        self.on_train_epoch_start(trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self.losses and self._after_first_step:
            self.close()
            self._after_first_step.pop()()
            self.on_train_epoch_start(trainer)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self._updated = time.perf_counter()
        self.computing.append(self._updated - self._started)
        trained = [one for optimizer in self.optimizers for group in optimizer.param_groups for one in group["params"]]
        self.keeps_gradients |= any(one.grad is not None and bool(one.grad.count_nonzero()) for one in trained)
        if update >= self._num_updates:
            raise StopTrainingError("That is enough.")

    def _note_rows(self) -> None:
        (losses, models), self._of_step = self._of_step, (len(self.loss_calls), len(self.model_calls))
        of_losses, of_models = self.loss_calls[losses:], self.model_calls[models:]
        if len(of_losses) != 1 or len(of_models) != 1 or not of_losses[0].targets.dim():
            return
        targets, inputs = of_losses[0].targets, of_models[0].inputs
        if inputs and all(len(one) == len(targets) and one.is_floating_point() for one in inputs):
            table = torch.cat([one.detach().reshape(len(one), -1)[:_ROWS, :_COLUMNS].cpu() for one in inputs], dim=1)
            self.rows.append((table, targets[:_ROWS].cpu().clone()))

    def _note_call(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        first = next(iter(tensors_in(output)), None)
        kept = None if first is None else first.detach()  # a graph would keep the activations of each step
        self.model_calls.append(ModelCall(args, kwargs, kept, "" if first is None else made_by(first)))

    def _note_inputs(self, _layer: nn.Module, args: tuple[Any, ...]) -> None:
        """Take what the first layer with a matrix gets, normalised where the model does it."""
        if not self.first_inputs:
            self.first_inputs = tensors_in(args)[:1]

    def _note_norm(self, norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args and args[0].dim() > 2 and args[0].shape[2] > 1:  # noqa: PLR2004  # samples, channels and length
            self.over_lengths.add(type(norm))

    def _note_update(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        trained = {id(one) for other in self.optimizers for group in other.param_groups for one in group["params"]}
        outside = (one for one in self.model.parameters() if id(one) not in trained)
        self.reached_outside |= any(one.grad is not None for one in outside)
        self.rates.append([float(group["lr"]) for group in optimizer.param_groups])
        self.stepped.update(map(id, parameters))
        self.with_gradient.update(id(one) for one in parameters if one.grad is not None)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in tuples, lists and mappings, in their order.

    Args:
        value: A batch, an output or arguments.
    """
    if isinstance(value, Tensor):
        return [value]
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = _items(cast("object", value)).values()
    elif isinstance(value, (list, tuple)):
        parts = cast("list[Any]", value)
    return [one for part in parts for one in tensors_in(part)]


def _items(value: object) -> dict[Any, Any]:
    return dict(cast("Mapping[Any, Any]", value))


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch of the same structure whose tensors were changed.

    Args:
        value: A batch or arguments.
        change: Called with each tensor.
    """
    if isinstance(value, Tensor):
        return change(value)
    kind = cast("Any", type(value))
    if isinstance(value, Mapping):
        return kind({key: with_tensors(part, change) for key, part in _items(cast("object", value)).items()})
    if isinstance(value, (list, tuple)):
        parts = [with_tensors(part, change) for part in cast("list[Any]", value)]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return value


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, type and values, NaN included.

    Args:
        one: A tensor.
        other: Another one.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def is_repeated(tensor: Tensor) -> bool:
    """Whether all rows of a tensor are the same but for rounding; without a copy, for which there may be no memory.

    Args:
        tensor: At least one row of real numbers.
    """
    highest, lowest = tensor.amax(0).double(), tensor.amin(0).double()
    return bool((highest - lowest).max() <= _ROUNDED * torch.maximum(highest.abs(), lowest.abs()).max())


def is_overridden(trainer: object, name: str) -> bool:
    """Whether a subclass of Trainer overrides a method.

    Args:
        trainer: The trainer.
        name: The name of the method.
    """
    return getattr(type(trainer), name) is not getattr(Trainer, name)


def ignore(*_args: object, **_kwargs: object) -> None:
    """Stands for what logs a value."""
