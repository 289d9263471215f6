"""Experiments with the first batch: what its loss depends on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_data.rng import seed_rng
from pa_preflight._findings import FILL_GAPS, Finding, noticed
from pa_preflight._loss_checks import broadcast
from pa_preflight._model_checks import BATCH_NORMS
from pa_preflight._observer import LossCall, ModelCall, is_repeated, is_same, tensors_in, with_tensors

_TARGET_KEYS = ("label", "labels", "target", "targets", "y")
_FEW = 3
_LARGE, _SMALL_CLIP, _NEARLY = 30.0, 1000.0, 0.05


@dataclass
class FirstBatch:
    """The first batch and what was seen of it.

    Attributes:
        model: The model, in training.
        batch: The batch, on the device.
        loss: Its loss.
        calculate_loss: Returns the loss of a batch.
        model_calls: The calls of the model.
        loss_calls: The calls of loss functions.
        layer_inputs: What the first layer with a matrix was called with.
        batch_size: How many samples a batch has.
        smallest_batch: How many the smallest batch of an epoch has.
        is_own_step: Whether the step is one of the script, which may need no targets.
        needs_graph: Whether the step fails without a graph, as it computes gradients.
    """

    model: nn.Module
    batch: Any
    loss: Tensor
    calculate_loss: Callable[[Any], Tensor]
    model_calls: list[ModelCall]
    loss_calls: list[LossCall]
    layer_inputs: list[Tensor]
    batch_size: int
    smallest_batch: int
    is_own_step: bool
    needs_graph: bool = False

    def loss_of(self, batch: Any) -> float:
        """Return the loss of a batch, always with the same random numbers.

        Without its graph, which would need memory, and of a copy, as a step may change a batch in place.
        """
        seed_rng(0)
        try:
            with torch.set_grad_enabled(self.needs_graph):
                return float(self.calculate_loss(copy.deepcopy(batch)).detach())
        except RuntimeError:
            if self.needs_graph:
                raise
        self.needs_graph = True
        return self.loss_of(batch)

    @property
    def call(self) -> ModelCall | None:
        """The call of the model, where there is one, whose inputs and output have a row for each sample."""
        if len(self.model_calls) != 1:
            return None
        (call,) = self.model_calls
        if call.output is None or not call.inputs or not call.output.dim():
            return None
        rows = {len(one) for one in (*call.inputs, call.output)}
        return call if len(rows) == 1 and max(rows) <= self.batch_size else None


def check_batch(first: FirstBatch, clip_norm: float | None, clip_value: float | None) -> Iterator[Finding]:
    """Yield what is wrong with the first batch.

    Args:
        first: The batch.
        clip_norm: The largest norm of the gradients that the run allows; None for any.
        clip_value: The largest element of the gradients that it allows; None for any.
    """
    inputs = [one for call in first.model_calls for one in call.inputs]
    if any(one.is_floating_point() and not bool(one.isfinite().all()) for one in inputs):
        yield noticed(
            "inputs-not-finite",
            "Inputs of the first batch are NaN or infinite.",
            FILL_GAPS,
        )
    elif not bool(first.loss.isfinite()):
        yield noticed(
            "loss-not-finite",
            f"The loss of the first batch is {float(first.loss)}, though inputs and targets are finite.",
            "Look for log(0), division by 0 or overflow; train one update with TerminateOnNaNCallback, which "
            "reports the cause.",
        )
    else:
        yield from _check_targets(first)
        yield from _check_size(first)
        yield from _check_gradients(first, clip_norm, clip_value)
    yield from _check_scale(first)
    yield from _check_outputs(first)


def _check_targets(first: FirstBatch) -> Iterator[Finding]:
    changed = _with_other_targets(first)
    inputs = [one for call in first.model_calls for one in call.inputs]
    reconstructs = any(is_same(one, call.targets) for call in first.loss_calls for one in inputs)
    if changed is None or reconstructs or (first.call is not None and _is_constant(first.call)):
        return
    if first.loss_of(changed) != first.loss_of(first.batch):
        return
    targets = tensors_in(first.batch)[-1]
    output = None if first.call is None else first.call.output
    if output is not None and 1 < output.numel() == targets.numel() and output.shape != targets.shape:
        yield broadcast(output, targets)
        return
    yield noticed(
        "targets-do-not-matter",
        "The loss is the same to the last digit when each sample gets the target of another one.",
        "Look at what calculate_train_batch_loss compares the outputs with.",
        "note" if first.is_own_step and not any(_looks_wrong(call, first) for call in first.loss_calls) else "mistake",
    )


def _looks_wrong(call: LossCall, first: FirstBatch) -> bool:
    """Whether the model's outputs have targets like the ones of the batch that are all the same, or its predictions."""
    targets = call.targets
    is_like = any(one.shape == targets.shape for one in tensors_in(first.batch)[1:])
    if not is_like or not is_of_model(call, first.model_calls):
        return False
    if bool((targets == targets.flatten()[:1]).all()):
        return True
    return call.outputs.dim() > 1 and is_same(call.outputs.argmax(1), targets)


def is_of_model(call: LossCall, model_calls: list[ModelCall]) -> bool:
    """Whether a loss was given what the model has returned, perhaps in another shape.

    Args:
        call: The call of the loss function.
        model_calls: The calls of the model.
    """
    return any(one.output is not None and one.output.data_ptr() == call.outputs.data_ptr() for one in model_calls)


def _with_other_targets(first: FirstBatch) -> Any:
    """Return the batch with its targets in another order; None if they are not known, or all the same."""
    batch = first.batch
    if isinstance(batch, Mapping):
        named = cast("Mapping[str, Any]", batch)
        rolled = {key: _rolled(named[key]) for key in _TARGET_KEYS if isinstance(named.get(key), Tensor)}
        return {**named, **rolled} if rolled and None not in rolled.values() else None
    if type(batch) not in (list, tuple):
        return None
    parts = cast("list[Any]", batch)
    inputs = [one for call in first.model_calls for one in call.inputs]
    others = [_rolled(part) if isinstance(part, Tensor) else None for part in parts[1:]]
    are_inputs = [any(is_same(part, one) for one in inputs) for part in parts[1:] if isinstance(part, Tensor)]
    if len(are_inputs) < len(others) or any(
        one is None for one, skip in zip(others, are_inputs, strict=True) if not skip
    ):
        return None
    changed = [part if skip else one for part, one, skip in zip(parts[1:], others, are_inputs, strict=True)]
    return type(parts)((parts[0], *changed)) if not all(are_inputs) else None


def _rolled(tensor: Tensor) -> Tensor | None:
    if not tensor.dim() or len(tensor) < _FEW:
        return None
    rolled = tensor.roll(1, 0)
    return None if is_same(rolled, tensor) else rolled


def _check_size(first: FirstBatch) -> Iterator[Finding]:
    """Compare the loss of half of the batch with the loss of the same samples twice."""

    def half(tensor: Tensor) -> Tensor:
        return tensor[: max(2, len(tensor) // 2)] if tensor.dim() else tensor

    def twice(tensor: Tensor) -> Tensor:
        return torch.cat([half(tensor), half(tensor)]) if tensor.dim() else tensor

    def thrice(tensor: Tensor) -> Tensor:
        return torch.cat([half(tensor), half(tensor), half(tensor)]) if tensor.dim() else tensor

    try:
        once, double = (first.loss_of(with_tensors(first.batch, change)) for change in (half, twice))
        ratio = double / once if once else 1.0
        if abs(ratio - 2) < _NEARLY:  # by chance, as a loss of pairs may
            ratio = first.loss_of(with_tensors(first.batch, thrice)) / once - 1
    except Exception:  # a step that works for batches of one size
        return
    if abs(ratio - 2) < _NEARLY:
        yield noticed(
            "loss-follows-batch-size",
            f"The loss of some samples is {once:.4g}, and {double:.4g} of the same samples twice: gradients grow "
            "with the batch, and the last batch of an epoch counts less.",
            'Use reduction="mean", or divide by the number of samples.',
            "note" if first.smallest_batch == first.batch_size else "mistake",
        )


def _check_gradients(first: FirstBatch, clip_norm: float | None, clip_value: float | None) -> Iterator[Finding]:
    if clip_norm is None and clip_value is None:
        return
    parameters = [one for one in first.model.parameters() if one.requires_grad]
    seed_rng(0)
    loss = first.calculate_loss(copy.deepcopy(first.batch))
    gradients = cast("tuple[Tensor | None, ...]", torch.autograd.grad(loss, parameters, allow_unused=True))
    norm = math.sqrt(sum(float(one.double().square().sum()) for one in gradients if one is not None))
    largest = max(float(one.abs().max()) for one in gradients if one is not None)
    for name, size, clip in (("norm", norm, clip_norm), ("largest element", largest, clip_value)):
        if clip is not None and size > _SMALL_CLIP * clip:
            yield noticed(
                "clipping-too-low",
                f"The {name} of the gradients of the first batch is {size:.3g}, and is clipped to {clip:.3g}.",
                "Clip where most updates stay below, such as a norm of 1.",
            )


def _check_scale(first: FirstBatch) -> Iterator[Finding]:
    for one in (one for one in first.layer_inputs if one.is_floating_point()):
        values = one.double()
        mean, largest = float(values.mean()), float(values.abs().max())
        deviation = float(values.std()) if values.numel() > 1 else 0.0
        if max(abs(mean), deviation) > _LARGE:
            yield noticed(
                "inputs-not-normalised",
                f"Inputs of shape {tuple(one.shape)} have a mean of {mean:.3g} and a standard deviation of "
                f"{deviation:.3g}; the largest is {largest:.3g}.",
                "Subtract the mean of the training data and divide by its standard deviation, for each feature or "
                "channel.",
            )
            return


def _check_outputs(first: FirstBatch) -> Iterator[Finding]:
    call = first.call
    if call is None or call.output is None or len(call.output) < _FEW:
        return
    if not _is_constant(call):
        yield from _check_mixing(first.model, call)


def check_outputs(model_calls: list[ModelCall], num_losses: int) -> Iterator[Finding]:
    """Yield a finding if the outputs of a model that each step calls once say nothing of its inputs.

    Args:
        model_calls: The calls of the model.
        num_losses: How many steps there were.
    """
    if len(model_calls) == num_losses > 0 and _is_constant(model_calls[-1]):
        yield noticed(
            "inputs-do-not-matter",
            "All samples of a batch have the same output, though their inputs differ.",
            "Look for a layer whose outputs are all zero, as a ReLU of negative numbers, or one that is multiplied "
            "by zero, and for a mask that hides all, such as a padding mask that is True at the words.",
        )


def _is_constant(call: ModelCall) -> bool:
    """Whether all samples have the same output, though their inputs differ."""
    if call.output is None or not call.output.dim() or len(call.output) < _FEW:
        return False
    if call.output.is_complex() or not call.output.numel():
        return False
    return is_repeated(call.output) and any(not is_same(one, one[:1].expand_as(one)) for one in call.inputs)


def _check_mixing(model: nn.Module, call: ModelCall) -> Iterator[Finding]:
    """Compare the outputs of the last sample in this batch, and in a batch with copies of the first one.

    The first sample would not do: a layer that goes from sample to sample starts with it.
    """
    size = len(call.inputs[0])
    if call.output is not None and call.output.shape == (size, size):
        return  # similarities of all pairs

    def beside_copies(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:1].expand(size - 1, *tensor.shape[1:]), tensor[-1:]]) if tensor.dim() else tensor

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            outputs: list[Tensor] = []
            for change in (Tensor.clone, beside_copies):
                seed_rng(0)
                args, kwargs = with_tensors((call.args, call.kwargs), change)
                outputs += tensors_in(model(*args, **kwargs))[:1]
    finally:
        for module, is_training in modes:
            module.training = is_training
    if len(outputs) != 2:  # noqa: PLR2004  # of both
        return
    one, other = (output[-1].double() for output in outputs)
    scale = float(one.abs().max()) + 1e-12
    difference = float((one - other).abs().max()) / scale
    if difference > 1e-3:  # noqa: PLR2004  # what kernels round differently is a thousand times less
        yield noticed(
            "samples-mix",
            f"In evaluation mode, the output of a sample changes by {difference:.2g} of its size when the other "
            "samples of the batch are exchanged.",
            "Look for a softmax, a mean or a norm over dimension 0, for a view that joins samples, and for "
            "batch_first=True.",
            "note"
            if any(isinstance(one, BATCH_NORMS) and one.running_mean is None for one in model.modules())
            else "mistake",
        )
