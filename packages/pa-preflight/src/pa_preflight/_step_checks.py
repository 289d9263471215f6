"""What a step does, and how its loss follows from the batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pa_core import AnyTrainer, TrainerCallback
from pa_data.rng import capture_rng_state, seed_rng
from pa_preflight._findings import Finding, noticed
from pa_preflight._layer_checks import named_layers
from pa_preflight._model_checks import BATCH_NORMS, listed
from pa_preflight._observer import LossCall, tensors_in, with_tensors

_CLOSE, _ORDERED = 1e-3, 1e-3


def check_divisions(loss: Tensor, loss_calls: Sequence[LossCall], divisors: dict[str, int]) -> Iterator[Finding]:
    """Yield a finding if a step divides a mean by what the trainer or the mean has divided by already.

    Args:
        loss: The loss of the step.
        loss_calls: The calls of loss functions within it.
        divisors: Numbers that a loss may be divided by, with what they are.
    """
    values = [float(call.value) for call in loss_calls if call.value is not None and not call.value.dim()]
    if len(values) != 1 or not float(loss) or not values[0]:
        return
    ratio = values[0] / float(loss)
    for what, divisor in divisors.items():
        if divisor > 1 and abs(ratio / divisor - 1) < _CLOSE:
            yield noticed(
                "loss-divided-twice",
                f"The step returns {float(loss):.4g}, which is {loss_calls[0].name} of {values[0]:.4g} divided by "
                f"{divisor}, the {what}: gradients and reported losses are scaled down.",
                "Return the mean over the batch; the trainer divides by the accumulation steps.",
            )
            return


def check_step(
    model: nn.Module, batch: Any, calculate_loss: Callable[[Any], Tensor], loss_of: Callable[[Any], float]
) -> Iterator[Finding]:
    """Yield what is wrong with a step that is made some times more.

    Args:
        model: The model, in training.
        batch: The first batch.
        calculate_loss: Returns the loss of a batch.
        loss_of: As well, always with the same random numbers and without a graph.
    """
    yield from _check_draws(batch, calculate_loss)
    yield from _check_order(model, batch, loss_of)


class FirstModes(TrainerCallback):
    """Notes which modules are in training mode when the first step begins.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.modes: dict[int, bool] = {}

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.modes = self.modes or {id(one): one.training for one in self._model.modules()}


def check_modes(model: nn.Module, modes: Mapping[int, bool], calculate_loss: Callable[[], Tensor]) -> Iterator[Finding]:
    """Yield a finding if parts of the model are in evaluation mode where they compute the loss.

    Args:
        model: The model, as the first step has left it.
        modes: What was in training mode before the first step, by identity.
        calculate_loss: Makes the step, and returns its loss.
    """
    outputs: list[tuple[nn.Module, Any]] = []

    def note(module: nn.Module, _args: object, output: Any) -> None:
        if modes.get(id(module)) and not module.training:
            outputs.append((module, [one.grad_fn for one in tensors_in(output)]))

    hooks: list[RemovableHandle] = [one.register_forward_hook(note) for one in model.modules()]
    try:
        seed_rng(0)
        with torch.enable_grad():
            loss = calculate_loss()
    finally:
        for hook in hooks:
            hook.remove()
    graph = _graph_of(loss) if outputs else set[Any]()
    names = {id(one): name or "the model" for name, one in named_layers(model)}
    of_loss = [module for module, nodes in outputs if not graph.isdisjoint(nodes)]  # a metric has no part in the graph
    changed = {names[id(module)]: None for module in of_loss}
    if changed:
        yield noticed(
            "mode-changes-in-step",
            f"{listed([*changed])} {'is' if len(changed) == 1 else 'are'} in training mode before the step, and in "
            "evaluation mode within it: its dropout is off, and batch norm takes running statistics.",
            "Look for eval() and train(False) in forward() and in the step; frozen parts are put into evaluation mode "
            "once, before the run.",
            "note" if all(isinstance(one, BATCH_NORMS) for one in of_loss) else "warning",  # which may be meant
        )


def _graph_of(loss: Tensor) -> set[Any]:
    """Return the operations that a loss was computed by."""
    waiting: list[Any] = [loss.grad_fn]
    graph = set[Any]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in graph:
            graph.add(node)
            waiting += (other for other, _ in node.next_functions)
    return graph


def _check_draws(batch: Any, calculate_loss: Callable[[Any], Tensor]) -> Iterator[Finding]:
    states: list[Tensor] = []
    for seed in (1, 2):
        seed_rng(seed)
        with torch.enable_grad():
            calculate_loss(copy.deepcopy(batch))
        states.append(_drawn())
    if torch.equal(states[0], states[1]):
        yield noticed(
            "draws-repeat",
            "The step seeds the global random number generator: dropout, noise and the order of samples are the same "
            "after each step.",
            "Seed once, before the run.",
        )


def _drawn() -> Tensor:
    state: Tensor = capture_rng_state(torch.device("cpu"))["torch"]
    return state


def _check_order(model: nn.Module, batch: Any, loss_of: Callable[[Any], float]) -> Iterator[Finding]:
    """Compare the loss with the loss of the same samples in another order, where nothing is random."""
    tensors = tensors_in(batch)
    if len({len(one) if one.dim() else 0 for one in tensors}) != 1:
        return
    modes = [(one, one.training) for one in model.modules()]
    model.eval()
    try:
        seed_rng(0)
        before = _drawn()
        losses = [loss_of(batch), loss_of(with_tensors(batch, _flipped)), loss_of(batch)]
        is_random = not torch.equal(before, _drawn())
    finally:
        for module, is_training in modes:
            module.training = is_training
    if not is_random and losses[0] == losses[2] and abs(losses[1] - losses[0]) > _ORDERED * max(abs(losses[0]), 1e-6):
        yield noticed(
            "order-of-samples-matters",
            f"The loss is {losses[0]:.6g}, and {losses[1]:.6g} of the same samples in another order.",
            "Look for a view() instead of a transposition, which pairs outputs with targets of other samples.",
        )


def _flipped(tensor: Tensor) -> Tensor:
    return tensor.flip(0) if tensor.dim() else tensor
