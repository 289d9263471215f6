"""What the outputs of a model depend on, and must not; and what they should depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pa_data.rng import seed_rng
from pa_preflight._findings import Finding, noticed
from pa_preflight._observer import LossCall, ModelCall, is_repeated, is_same, tensors_in, with_tensors

_ROUNDED, _CLOSE, _CHANGED = 2e-6, 1e-4, 1e-3
_FEW, _PARTS, _PADDED = 4, 4, 0.2
_PART = 100_000
_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


@dataclass
class Forward:
    """Calls the model again as the first step did, in evaluation mode and with changed inputs.

    Attributes:
        model: The model.
        call: Its call in the first step.
    """

    model: nn.Module
    call: ModelCall

    def outputs(self, change: Callable[[Tensor], Tensor] = Tensor.clone) -> list[Tensor]:
        """Return the outputs for other inputs.

        Args:
            change: Called with each input.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                seed_rng(0)
                args, kwargs = with_tensors((self.call.args, self.call.kwargs), change)
                return [one for one in tensors_in(self.model(*args, **kwargs)) if one.is_floating_point()]
        finally:
            for module, is_training in modes:
                module.training = is_training


def check_dependence(
    model: nn.Module, call: ModelCall, loss_calls: list[LossCall], batch: Any, *, is_shuffled: bool
) -> Iterator[Finding]:
    """Yield what outputs of the model depend on that they must not, or do not depend on.

    Args:
        model: The model.
        call: Its call in the first step, whose inputs and output have a row for each sample.
        loss_calls: The calls of loss functions in this step.
        batch: The batch.
        is_shuffled: Whether the samples of a batch are unrelated to the batch before.
    """
    forward = Forward(model, call)
    outputs = forward.outputs()
    if not outputs:
        return
    drawn = torch.get_rng_state()  # which seeding sets, and draws change
    flipped = forward.outputs(_flipped)[:1]
    if _difference(outputs[0], forward.outputs()[0]) > 2 * _ROUNDED:
        yield noticed(
            "state-between-batches",
            "In evaluation mode, the outputs of the same batch differ after another batch: the model carries a state "
            "from batch to batch.",
            "Begin each batch with a new state, unless batches continue each other.",
            "warning" if is_shuffled else "note",
        )
        return
    size = len(call.inputs[0])
    seed_rng(0)
    if not torch.equal(drawn, torch.get_rng_state()):  # noise by position
        return
    if outputs[0].shape != (size, size) and _difference(outputs[0], _flipped(flipped.pop())) > _CHANGED:
        yield noticed(
            "samples-mix",
            "In evaluation mode, the output of a sample depends on its position in the batch: other outputs come when "
            "the same samples are in another order.",
            "Look for position encodings and masks that are added along dimension 0, and for views that join samples.",
            "warning",
        )
        return
    yield from _check_future(forward, outputs[0], [call.targets for call in loss_calls] + tensors_in(batch)[1:])
    yield from _check_ignored(forward, outputs)
    yield from _check_padding(forward, outputs[0])
    yield from _check_order(forward, outputs[0])


def _flipped(tensor: Tensor) -> Tensor:
    return tensor.flip(0) if tensor.dim() else tensor


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    if one.shape != other.shape or not one.numel():
        return 0.0
    parts = zip(_parts(one), _parts(other), strict=True)
    largest = torch.stack([torch.stack([(a - b).abs().max(), a.abs().max()]) for a, b in parts]).amax(0)
    return float((largest[0] / largest[1].clamp(min=1e-12)).nan_to_num())


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Parts of a tensor in double precision, as there may be no memory for a copy of all of it."""
    rows = tensor if tensor.dim() else tensor[None]
    size = max(1, _PART * len(rows) // rows.numel())
    return (rows[start : start + size].double() for start in range(0, len(rows), size))


def _sequence(forward: Forward) -> Tensor | None:
    """The first input, if it has several positions."""
    first = forward.call.inputs[0]
    return first if first.dim() > 1 and first.shape[1] >= _FEW else None


def _replaced(one: Tensor, start: int, stop: int) -> Callable[[Tensor], Tensor]:
    """Return what gives one of the inputs the values that the sample before has at some positions."""

    def change(tensor: Tensor) -> Tensor:
        if tensor is not one:
            return tensor.clone()
        changed = tensor.clone()
        changed[:, start:stop] = tensor.roll(1, 0)[:, start:stop]
        return changed

    return change


def _check_future(forward: Forward, outputs: Tensor, targets: list[Tensor]) -> Iterator[Finding]:
    """Predict the next step, and see whether what comes later makes a difference."""
    inputs = _sequence(forward)
    if inputs is None:
        return
    shifts = [_shift_of(inputs, one) for one in targets]
    if not any(shift is not None for shift in shifts):
        return
    middle = inputs.shape[1] // 2
    changed = forward.outputs(_replaced(inputs, middle, inputs.shape[1]))[0]
    before = [_before(one, inputs.shape, middle) for one in (outputs, changed)]
    if before[0] is None or before[1] is None:
        return
    sees_later = _difference(before[0], before[1]) > _CLOSE
    if 1 in shifts and sees_later:
        yield noticed(
            "future-is-seen",
            "The targets are the next steps of the inputs, and the output at a step changes with later steps of the "
            "input: the answer is among what the model sees.",
            "Pass a causal mask, is_causal=True, or pad convolutions on the left only.",
        )
    elif 1 not in shifts and not sees_later and not inputs.is_floating_point():
        yield noticed(
            "targets-not-shifted",
            "The output at a step depends on no later step, and its target is the input at the same step, which the "
            "model sees.",
            "Predict the next step: inputs[:, :-1] and targets[:, 1:].",
        )


def _shift_of(inputs: Tensor, targets: Tensor) -> int | None:
    """By how many steps the targets are ahead of the inputs: 1 or 0; None if they are something else."""
    length = inputs.shape[1]
    for shift, taken in ((1, inputs[:, 1:]), (0, inputs)):
        if targets.numel() == taken.numel() and torch.equal(targets.reshape(-1), taken.reshape(-1).to(targets.dtype)):
            return shift
        if shift and targets.shape == inputs.shape and length > 1 and torch.equal(targets[:, :-1], taken):
            return shift
    return None


def _before(output: Tensor, shape: torch.Size, middle: int) -> Tensor | None:
    """The outputs of the first positions; None if there is no dimension for positions."""
    if output.dim() > 1 and len(output) == shape[0]:
        for dimension in range(1, output.dim()):
            if output.shape[dimension] == shape[1]:
                return output.narrow(dimension, 0, middle)
    return None


def _check_ignored(forward: Forward, outputs: list[Tensor]) -> Iterator[Finding]:
    """Exchange parts of the inputs among the samples, and see whether any output changes."""
    inputs = _sequence(forward)
    if inputs is None or all(is_repeated(one) for one in outputs if one.dim() and one.numel()):
        return
    length = inputs.shape[1]
    step = max(1, length // _PARTS)
    ignored: list[tuple[int, int]] = []
    for start in range(0, step * _PARTS, step):
        stop = length if start == step * (_PARTS - 1) else start + step
        part = inputs[:, start:stop]
        if is_same(part, part.roll(1, 0)):
            continue
        changed = forward.outputs(_replaced(inputs, start, stop))
        if all(_difference(one, other) < _ROUNDED for one, other in zip(outputs, changed, strict=True)):
            ignored.append((start, stop))
    if ignored:
        places = ", ".join(f"{start} to {stop - 1}" for start, stop in ignored)
        yield noticed(
            "inputs-ignored",
            f"No output changes when the inputs at positions {places} of {length} are exchanged for the ones of "
            "another sample: the model does not depend on them.",
            "Look for a mask that is inverted, such as a padding mask that is True at the words, and for an index or a "
            "slice that takes one step of a sequence, as outputs[:, 0].",
        )


def _padding_of(tokens: Tensor) -> tuple[int, Tensor] | None:
    """The token that ends sequences of different lengths, and these lengths; None if there is none."""
    if tokens.is_floating_point() or tokens.dim() != 2:  # noqa: PLR2004  # samples and positions
        return None
    last = int(tokens[:, -1].mode().values)
    lengths = (tokens != last).long().cumsum(1).argmax(1) + 1
    is_padded = (tokens[:, -1] == last) & (tokens[:, -2] == last)
    inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    if float(is_padded.double().mean()) < _PADDED or bool((inside & (tokens == last)).any()):
        return None
    return (last, lengths) if int(lengths.max() - lengths.min()) > 1 else None


def _check_padding(forward: Forward, outputs: Tensor) -> Iterator[Finding]:
    """Leave the padding of the shortest sample away."""
    tokens = _sequence(forward)
    padding = None if tokens is None else _padding_of(tokens)
    if tokens is None or padding is None or tokens.shape[1] in outputs.shape[1:]:
        return
    token, lengths = padding
    shortest, total = int(lengths.argmin()), tokens.shape[1]

    def trimmed(tensor: Tensor) -> Tensor:
        row = tensor[shortest : shortest + 1] if tensor.dim() else tensor
        return row[:, : int(lengths[shortest])] if row.dim() > 1 and row.shape[1] == total else row.clone()

    try:
        alone = forward.outputs(trimmed)[0]
    except Exception:  # of a model for one length
        return
    difference = _difference(outputs[shortest : shortest + 1], alone)
    if difference > 10 * _CHANGED:
        indices = {one.padding_idx for one in forward.model.modules() if isinstance(one, nn.Embedding)}
        of_layer = next((f", and the padding_idx of its embedding is {one}" for one in indices - {token, None}), "")
        is_read = any(isinstance(one, (*_ATTENTION, nn.RNNBase)) for one in forward.model.modules())
        yield noticed(
            "padding-matters",
            f"Sequences are padded with {token}{of_layer}; the output of a sample of {int(lengths[shortest])} tokens "
            f"changes by {difference:.2g} of its size without its padding.",
            f"Pass padding_idx={token} and a padding mask that is True at the padding, pack sequences for RNNs, and "
            "leave padding out of means.",
            "warning" if of_layer or is_read else "note",  # a mean over padding is only smaller
        )


def _check_order(forward: Forward, outputs: Tensor) -> Iterator[Finding]:
    """Turn sequences around, which attention without positions does not notice."""
    inputs = _sequence(forward)
    if inputs is None or not any(isinstance(one, _ATTENTION) for one in forward.model.modules()):
        return
    length = inputs.shape[1]
    if _padding_of(inputs) is not None or inputs.dim() > 3:  # noqa: PLR2004  # samples, positions and features
        return

    def turned(tensor: Tensor) -> Tensor:
        return tensor.flip(1) if tensor.dim() > 1 and tensor.shape[1] == length else tensor.clone()

    after = forward.outputs(turned)[0]
    for dimension in (one for one in range(1, outputs.dim()) if outputs.shape[one] == length):
        after = after.flip(dimension)
    if not is_same(inputs, inputs.flip(1)) and _difference(outputs, after) < _CLOSE:
        yield noticed(
            "order-ignored",
            "The outputs are the same when all sequences are turned around: attention does not know positions.",
            "Add position embeddings to the inputs of the attention layers, unless these are sets.",
        )
