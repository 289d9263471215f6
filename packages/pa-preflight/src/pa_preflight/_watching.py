"""Watches the first steps of a run: the inputs of the model and the losses, and the changes of updates."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, StopTrainingError, TrainerCallback
from pa_preflight._calls import LOSSES, FunctionCall, FunctionCalls, made_by
from pa_preflight._findings import Finding, noticed
from pa_preflight._losses import WATCHED
from pa_preflight._models import named_layers, they_are
from pa_preflight._tensors import parameters_of, tensors_in
from pa_preflight._torch import is_in_backward

_ROWS, _COLUMNS = 64, 256

_WATCHED_STEPS, _ENOUGH, _MOST_LAYERS = 6, 4, 30


@dataclass
class ModelCall:
    """A call to the model.

    Attributes:
        args: The positional arguments.
        kwargs: The keyword arguments.
        output: The first tensor of its output; None if it has no tensor.
        made_by: The operation that computed it, such as "Sigmoid"; empty without a graph.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor | None
    made_by: str = ""

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among the arguments that have a row for each sample."""
        return [tensor for tensor in tensors_in((self.args, self.kwargs)) if tensor.dim()]


class Observer(TrainerCallback):
    """Records the first steps of a run, and keeps the tensors of the first and the last step.

    Args:
        model: The model.
        optimizers: The optimizers that train it.
        at_first_batch: Called with the first batch, when its loss is known and nothing was changed.
        num_updates: The number of updates after which the run ends; its schedule has all of them.
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
        self.loss_calls: list[FunctionCall] = []
        self.function_calls: list[FunctionCall] = []  # of the first step
        self.model_calls: list[ModelCall] = []
        self.losses: list[Tensor] = []
        self._of_first = 0, 0
        self._of_step = 0, 0
        self.rows: list[tuple[Tensor, Tensor]] = []  # in each step, the inputs of the model and the targets of the loss
        self.rates: list[list[float]] = []  # of the parameter groups, before each update
        self.called: list[nn.Module] = [model]
        self.stepped: set[int] = set()  # parameters that optimizers step and that have a gradient, by identity
        self.with_gradient: set[int] = set()
        self.is_training: list[bool] = []
        self.first_inputs: list[Tensor] = []
        self.first_modes: dict[int, bool] = {}  # of modules by their identity, when the first step begins
        self.in_training: set[type[nn.Module]] = set()
        self.over_lengths: set[type[nn.Module]] = set()  # layers that take means over more than samples
        self.reached_outside = False  # whether a parameter that is in no optimizer got a gradient
        self.keeps_gradients = False
        self.fetching: list[float] = []
        self.computing: list[float] = []
        self._updated: float | None = None
        self._started = 0.0
        self._stack = ExitStack()

    def close(self) -> None:
        """Remove the hooks from the model and its optimizers."""
        self._stack.close()

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.close()
        hooks = [module.register_forward_hook(self._note_call, with_kwargs=True) for module in self.called]
        layers = [
            module for module in self.model.modules() if any(own.dim() > 1 for own in module.parameters(recurse=False))
        ]
        hooks += [layer.register_forward_pre_hook(self._note_inputs) for layer in layers]
        norms = [module for module in self.model.modules() if isinstance(module, nn.BatchNorm1d)]
        hooks += [module.register_forward_pre_hook(self._note_norm) for module in norms]
        hooks += [optimizer.register_step_pre_hook(self._note_update) for optimizer in self.optimizers]
        for hook in hooks:
            self._stack.callback(hook.remove)

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self._updated is not None:
            self.fetching.append(time.perf_counter() - self._updated)
        self.on_train_epoch_end(trainer)
        self._started = time.perf_counter()
        self.is_training.append(any(module.training for module in self.model.modules()))
        self.first_modes = self.first_modes or {id(module): module.training for module in self.model.modules()}
        self.in_training = {type(module) for module in self.model.modules() if module.training}
        for call in self.loss_calls[self._of_first[0] :]:
            call.shorten()
        for index in range(self._of_first[1], len(self.model_calls)):
            self.model_calls[index] = ModelCall((), {}, None)
        self._stack.enter_context(FunctionCalls(self.loss_calls, LOSSES))
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
        gradients = [parameter.grad for parameter in parameters_of(self.optimizers)]
        self.keeps_gradients |= any(gradient is not None and bool(gradient.count_nonzero()) for gradient in gradients)
        if update >= self._num_updates:
            raise StopTrainingError("That is enough.")

    def _note_rows(self) -> None:
        (losses, models), self._of_step = self._of_step, (len(self.loss_calls), len(self.model_calls))
        of_losses, of_models = self.loss_calls[losses:], self.model_calls[models:]
        if len(of_losses) != 1 or len(of_models) != 1 or not of_losses[0].targets.dim():
            return
        targets, inputs = of_losses[0].targets, of_models[0].inputs
        if inputs and all(len(tensor) == len(targets) and tensor.is_floating_point() for tensor in inputs):
            table = torch.cat(
                [tensor.detach().reshape(len(tensor), -1)[:_ROWS, :_COLUMNS].cpu() for tensor in inputs], dim=1
            )
            self.rows.append((table, targets[:_ROWS].cpu().clone()))

    def _note_call(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        first = next(iter(tensors_in(output)), None)
        kept = None if first is None else first.detach()  # a graph would keep the activations of each step
        self.model_calls.append(ModelCall(args, kwargs, kept, "" if first is None else made_by(first)))

    def _note_inputs(self, _layer: nn.Module, args: tuple[Any, ...]) -> None:
        """Keep the inputs of the first layer with a matrix, after the model may have normalised them."""
        if not self.first_inputs:
            self.first_inputs = tensors_in(args)[:1]

    def _note_norm(self, norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args and args[0].dim() > 2 and args[0].shape[2] > 1:  # noqa: PLR2004  # samples, channels and length
            self.over_lengths.add(type(norm))

    def _note_update(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        parameters = [parameter for parameter in parameters_of([optimizer]) if parameter.requires_grad]
        trained = set(map(id, parameters_of(self.optimizers)))
        outside = (parameter for parameter in self.model.parameters() if id(parameter) not in trained)
        self.reached_outside |= any(parameter.grad is not None for parameter in outside)
        self.rates.append([float(group["lr"]) for group in optimizer.param_groups])
        self.stepped.update(map(id, parameters))
        self.with_gradient.update(id(parameter) for parameter in parameters if parameter.grad is not None)


class _LayerWatch(TrainerCallback):
    """Has hooks of layers as long as it watches them."""

    def __init__(self) -> None:
        self.hooks: list[RemovableHandle] = []

    def close(self) -> None:
        """Remove the hooks from the layers."""
        while self.hooks:
            self.hooks.pop().remove()


class _Marker:
    """An object that a node of a graph holds as long as the graph exists."""

    def __call__(self, *_gradients: object) -> None:
        """Return gradients unchanged."""


class KeptGraphs(_LayerWatch):
    """Marks the graphs of the first steps, and finds out which still exist.

    Args:
        model: The model, whose layers' outputs are marked.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._layers = [module for module in model.modules() if not any(True for _ in module.children())][:_MOST_LAYERS]
        self._steps: list[list[weakref.ref[_Marker]]] = []
        self.count = 0

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.count += 1
        self.close()
        if len(self._steps) < _WATCHED_STEPS:
            self._steps.append([])
            self.hooks = [layer.register_forward_hook(self._mark_output) for layer in self._layers]

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        if self.hooks:
            self._mark(batch_output["loss"])
        self.close()

    def _mark_output(self, _layer: nn.Module, _args: object, output: Any) -> None:
        for tensor in tensors_in(output)[:1]:
            self._mark(tensor)

    def _mark(self, tensor: Any) -> None:
        if tensor.grad_fn is not None:
            marker = _Marker()
            tensor.grad_fn.register_hook(marker)
            self._steps[-1].append(weakref.ref(marker))

    def check(self) -> Iterator[Finding]:
        """Yield a finding if graphs of several steps are kept."""
        self.close()
        if self.count <= _WATCHED_STEPS or self._kept() < _ENOUGH:
            return
        gc.collect()  # objects in reference cycles
        if self._kept() >= _ENOUGH:
            yield noticed(
                "graphs-kept",
                f"Memory grows with each step: after {self.count} steps, the graphs of {self._kept()} of the first "
                f"{_WATCHED_STEPS} are still in memory, with their activations.",
                "Look for losses and outputs that are added up or put into a list: keep value.detach(), or log them.",
            )

    def _kept(self) -> int:
        return sum(any(marker() is not None for marker in markers) for markers in self._steps)


class RecomputedNorms(_LayerWatch):
    """Records which layers with running statistics are called in the backward passes of the first update.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in named_layers(model)}
        self._norms = [
            module for module in model.modules() if isinstance(getattr(module, "running_mean", None), Tensor)
        ]
        self._has_begun = False
        self._called: dict[str, None] = {}

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.hooks = [module.register_forward_hook(self._note) for module in self._norms]

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self.close()

    def _note(self, norm: nn.Module, _args: object, _output: object) -> None:
        if norm.training and is_in_backward():
            self._called[self._names[id(norm)] or "The model"] = None

    def check(self) -> Iterator[Finding]:
        """Yield a finding if there were such layers."""
        self.close()
        if self._called:
            names = [*self._called]
            yield noticed(
                "statistics-move-twice",
                f"{they_are(names)} computed again in the backward pass: each batch "
                "moves the running statistics twice, and evaluations give other losses.",
                "Build these layers with momentum=1 - math.sqrt(1 - m) in place of m, or leave them out of the "
                "checkpointed blocks.",
            )


class Routing(_LayerWatch):
    """Records the number of rows of the layers of lists in each step, to find lists that are not used as a whole.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        lists = {
            name: module for name, module in named_layers(model) if isinstance(module, (nn.ModuleList, nn.ModuleDict))
        }
        self._lists = {name: [*layers.children()] for name, layers in lists.items()}
        self._of_step: dict[int, list[int]] = {}
        self._of_layer: dict[tuple[int, tuple[tuple[int, ...], ...]], set[tuple[int, ...]]] = {}

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.close()
        layers = {id(layer): layer for each in self._lists.values() for layer in each}
        self._of_step = {identity: [] for identity in layers}
        self.hooks = [layer.register_forward_pre_hook(self._note, with_kwargs=True) for layer in layers.values()]

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        self.close()
        shapes = tuple(tuple(tensor.shape) for tensor in tensors_in(batch))
        for identity, rows in self._of_step.items():
            self._of_layer.setdefault((identity, shapes), set()).add(tuple(rows))

    def _note(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next((tensor for tensor in tensors_in((args, kwargs)) if tensor.dim()), None)
        self._of_step.setdefault(id(layer), []).append(0 if given is None else len(given))

    def may_leave_out(self, parameter: str) -> bool:
        """Whether batches of the same shape have used the layers of the parameter's list differently.

        Args:
            parameter: The name of the parameter.
        """
        differing = {identity for (identity, _), rows in self._of_layer.items() if len(rows) > 1}
        holding = (layers for name, layers in self._lists.items() if parameter.startswith(f"{name}." if name else ""))
        return any(id(layer) in differing for layers in holding for layer in layers)
