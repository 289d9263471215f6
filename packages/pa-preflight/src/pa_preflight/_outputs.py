"""Experiments with the outputs of a model: their dependence on the inputs, and the loss of changed outputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from pa_data.rng import seed_rng
from pa_preflight._calls import FunctionCall, FunctionCalls
from pa_preflight._findings import Finding, noticed
from pa_preflight._first_batch import FirstBatch, Forward, outputs_replaced
from pa_preflight._samples import Job
from pa_preflight._tensors import flipped, is_repeated, is_same, tensors_in, with_tensors

_ROUNDED, _CLOSE, _CHANGED = 2e-6, 1e-4, 1e-3

_FEW, _PARTS, _PADDED = 4, 4, 0.2

_PART = 100_000

_FEWEST_SAMPLES = 3

_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

_SURE, _ALMOST, _OPPOSITE = 8.0, 0.98, 4.0

_MARGIN, _WORSE, _LARGER, _FLAT, _FEWEST_CLASSES = 1e-3, 0.1, 1000.0, 0.5, 4

_GROUPS, _SHARE = 20, 0.05

_DISTANCES = frozenset(
    ("Abs", "Cdist", "EuclideanDist", "Exp", "LinalgVectorNorm", "Mean", "Neg", "Norm", "Pow", "Sqrt", "Sum")
)
"""Operations whose results are distances as likely as scores, so that perfect results are not known."""


def check_dependence(first: FirstBatch) -> Iterator[Finding]:
    """Yield findings about outputs that depend on wrong inputs, or do not depend on the right inputs.

    Args:
        first: The first batch.
    """
    call = first.call
    forward = None if call is None or call.output is None else Forward(first.model, call)
    outputs = [] if forward is None else forward.outputs()
    if call is None or forward is None or not outputs or len(outputs[0]) < _FEWEST_SAMPLES:
        return
    drawn = torch.get_rng_state()  # seeding sets it, and draws change it
    turned = forward.outputs(flipped)[0]
    if _difference(outputs[0], forward.outputs()[0]) > 2 * _ROUNDED:
        yield noticed(
            "state-between-batches",
            "The model carries a state from batch to batch: in evaluation mode, the outputs of the same batch differ "
            "after another batch.",
            "Begin each batch with a new state, unless batches continue each other.",
            "warning" if _is_shuffled(first.job) else "note",
        )
        return
    size = len(call.inputs[0])
    seed_rng(0)
    if not torch.equal(drawn, torch.get_rng_state()):  # noise by position
        return
    if outputs[0].shape != (size, size) and _difference(outputs[0], flipped(turned)) > _CHANGED:
        yield noticed(
            "samples-mix",
            "In evaluation mode, the output of a sample depends on its position in the batch: the outputs change when "
            "the samples are in another order.",
            "Look for position encodings and masks that are added along dimension 0, and for views that join samples.",
            "warning",
        )
        return
    yield from _check_future(
        forward, outputs[0], [call.targets for call in first.loss_calls] + tensors_in(first.batch)[1:]
    )
    yield from _check_ignored(forward, outputs)
    yield from _check_padding(forward, outputs[0])
    yield from _check_order(forward, outputs[0])


def _is_shuffled(job: Job) -> bool:
    """Whether the samples of a batch are independent of the batch before."""
    is_set = not isinstance(job.asked["train_dataset"], (DataLoader, IterableDataset))
    return is_set and job.asked["order"] is None and job.options.get("shuffle") is not False


def _difference(before: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest number."""
    if before.shape != other.shape or not before.numel():
        return 0.0
    parts = zip(_parts(before), _parts(other), strict=True)
    largest = torch.stack([torch.stack([(a - b).abs().max(), a.abs().max()]) for a, b in parts]).amax(0)
    return float((largest[0] / largest[1].clamp(min=1e-12)).nan_to_num())


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Return parts of a tensor in double precision, as memory may not suffice for a copy of all of it."""
    rows = tensor if tensor.dim() else tensor[None]
    size = max(1, _PART * len(rows) // rows.numel())
    return (rows[start : start + size].double() for start in range(0, len(rows), size))


def _sequence(forward: Forward) -> Tensor | None:
    """Return the first input, if it has several positions."""
    first = forward.call.inputs[0]
    return first if first.dim() > 1 and first.shape[1] >= _FEW else None


def _replaced(original: Tensor, start: int, stop: int) -> Callable[[Tensor], Tensor]:
    """Return a function that gives an input the values of the sample before at some positions."""

    def change(tensor: Tensor) -> Tensor:
        if tensor is not original:
            return tensor.clone()
        changed = tensor.clone()
        changed[:, start:stop] = tensor.roll(1, 0)[:, start:stop]
        return changed

    return change


def _check_future(forward: Forward, outputs: Tensor, targets: list[Tensor]) -> Iterator[Finding]:
    """Find the next step in the targets, and check whether later inputs change the output."""
    inputs = _sequence(forward)
    if inputs is None:
        return
    shifts = [_shift_of(inputs, tensor) for tensor in targets]
    if not any(shift is not None for shift in shifts):
        return
    middle = inputs.shape[1] // 2
    changed = forward.outputs(_replaced(inputs, middle, inputs.shape[1]))[0]
    before = [_before(tensor, inputs.shape, middle) for tensor in (outputs, changed)]
    if before[0] is None or before[1] is None:
        return
    sees_later = _difference(before[0], before[1]) > _CLOSE
    if 1 in shifts and sees_later:
        yield noticed(
            "future-is-seen",
            "The model sees the future: the targets are the next steps of the inputs, and the output at a step changes "
            "with later steps of the input.",
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
    """Return by how many steps the targets are ahead of the inputs: 0 or 1; None if they are unrelated."""
    length = inputs.shape[1]
    for shift, taken in ((1, inputs[:, 1:]), (0, inputs)):
        if targets.numel() == taken.numel() and torch.equal(targets.reshape(-1), taken.reshape(-1).to(targets.dtype)):
            return shift
        if shift and targets.shape == inputs.shape and length > 1 and torch.equal(targets[:, :-1], taken):
            return shift
    return None


def _before(output: Tensor, shape: torch.Size, middle: int) -> Tensor | None:
    """Return the outputs of the first positions; None if there is no dimension for positions."""
    if output.dim() > 1 and len(output) == shape[0]:
        for dimension in range(1, output.dim()):
            if output.shape[dimension] == shape[1]:
                return output.narrow(dimension, 0, middle)
    return None


def _check_ignored(forward: Forward, outputs: list[Tensor]) -> Iterator[Finding]:
    """Swap parts of the inputs between the samples, and check whether any output changes."""
    inputs = _sequence(forward)
    if inputs is None or all(is_repeated(tensor) for tensor in outputs if tensor.dim() and tensor.numel()):
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
        if all(_difference(before, other) < _ROUNDED for before, other in zip(outputs, changed, strict=True)):
            ignored.append((start, stop))
    if ignored:
        places = ", ".join(f"{start} to {stop - 1}" for start, stop in ignored)
        yield noticed(
            "inputs-ignored",
            f"The model ignores the inputs at positions {places} of {length}: no output changes when they are replaced "
            "by the inputs of another sample.",
            "Look for an inverted mask, such as a padding mask that is True at the words, and for an index or a slice "
            "that takes a single step of a sequence, such as outputs[:, 0].",
        )


def _padding_of(tokens: Tensor) -> tuple[int, Tensor] | None:
    """Return the token that ends sequences of different lengths, and these lengths; None if there is no such token."""
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
    """Leave out the padding of the shortest sample."""
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
    except Exception:  # a model for a single length
        return
    difference = _difference(outputs[shortest : shortest + 1], alone)
    if difference > 10 * _CHANGED:
        indices = {module.padding_idx for module in forward.model.modules() if isinstance(module, nn.Embedding)}
        of_layer = next(
            (f", and the padding_idx of its embedding is {padding_idx}" for padding_idx in indices - {token, None}), ""
        )
        is_read = any(isinstance(module, (*_ATTENTION, nn.RNNBase)) for module in forward.model.modules())
        yield noticed(
            "padding-matters",
            f"Outputs depend on the padding: sequences are padded with {token}{of_layer}, and an output of "
            f"{int(lengths[shortest])} tokens changes by {difference:.2g} of its size without its padding.",
            f"Pass padding_idx={token} and a padding mask that is True at the padding, pack sequences for RNNs, and "
            "leave padding out of means.",
            "warning" if of_layer or is_read else "note",  # a mean over padding is only smaller
        )


def _check_order(forward: Forward, outputs: Tensor) -> Iterator[Finding]:
    """Reverse sequences, which attention without positions does not notice."""
    inputs = _sequence(forward)
    if inputs is None or not any(isinstance(module, _ATTENTION) for module in forward.model.modules()):
        return
    length = inputs.shape[1]
    if _padding_of(inputs) is not None or inputs.dim() > 3:  # noqa: PLR2004  # samples, positions and features
        return

    def turned(tensor: Tensor) -> Tensor:
        return tensor.flip(1) if tensor.dim() > 1 and tensor.shape[1] == length else tensor.clone()

    after = forward.outputs(turned)[0]
    for dimension in (axis for axis in range(1, outputs.dim()) if outputs.shape[axis] == length):
        after = after.flip(dimension)
    if not is_same(inputs, inputs.flip(1)) and _difference(outputs, after) < _CLOSE:
        yield noticed(
            "order-ignored",
            "The model ignores the order of the steps: its outputs are the same when all sequences are reversed, as "
            "attention does not know positions.",
            "Add position embeddings to the inputs of the attention layers, unless the inputs are sets.",
        )


def check_output_experiments(first: FirstBatch) -> Iterator[Finding]:
    """Yield findings about the loss of changed outputs.

    Args:
        first: The first batch.
    """
    call = first.call
    if call is not None and call.output is not None and call.output.is_floating_point():
        targets = _targets_of(first.batch)
        if targets is not None and len(targets) == len(call.output):
            yield from _check_direction(first, call.output, targets, call.made_by)
            yield from _check_free_targets(first, call.output, targets)
    yield from _check_range(first)


def _instead(tensor: Tensor, _output: Any) -> Tensor:
    return tensor.clone()  # a loss may change it in place


def _targets_of(batch: Any) -> Tensor | None:
    """Return the targets of a batch of inputs and targets; None for other batches, whose last part may be weights."""
    if isinstance(batch, (tuple, list)):
        parts = cast("list[Any]", batch)
        last = parts[-1] if len(parts) == 2 else None  # noqa: PLR2004  # inputs and targets
        return last if isinstance(last, Tensor) and last.dim() else None
    return None


def perfect_outputs(output: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of perfect and wrong outputs: as logits, and as probabilities or numbers.

    Args:
        output: The output of the model.
        targets: The targets that it should predict.
    """
    shape = output.shape
    if not targets.is_floating_point() and shape[:1] + shape[2:] == targets.shape and output.dim() > 1:
        is_known = int(targets.min()) >= 0 and int(targets.max()) < shape[1] > 1
        # with few classes, outputs may be features, and the loss has a layer
        if not is_known or len(set(map(int, targets.flatten()))) <= shape[1] / 2:
            return []
        hot = functional.one_hot(targets.long(), shape[1]).movedim(-1, 1).to(output)
        return [pair for number in range(1, min(3, shape[1])) for pair in _as_classes(hot, hot.roll(number, 1))]
    if targets.numel() != output.numel():
        return []
    wanted = targets.reshape(shape).to(output)
    if bool(((wanted == 0) | (wanted == 1)).all()):
        return _as_classes(wanted, 1 - wanted)
    if bool((wanted.abs() == 1).all()):
        return [(_OPPOSITE * wanted, -_OPPOSITE * wanted)]
    others = [wanted.roll(number, 0) for number in (1, 2, 3)]
    return [(wanted, other) for other in others if not torch.equal(wanted, other)]


def _as_classes(right: Tensor, wrong: Tensor) -> list[tuple[Tensor, Tensor]]:
    pairs = (right, wrong)
    logits = [_SURE * (2 * output - 1) for output in pairs]
    probabilities = [(1 - _ALMOST) / 2 + _ALMOST * output for output in pairs]
    return [(logits[0], logits[1]), (probabilities[0], probabilities[1])]


def _check_direction(first: FirstBatch, output: Tensor, targets: Tensor, made_by: str) -> Iterator[Finding]:
    if bool((targets == targets[:1]).all()) or made_by in _DISTANCES:
        return
    compared: list[tuple[float, float]] = []
    for pair in perfect_outputs(output, targets):
        losses: list[float] = []
        for replacement in pair:
            with outputs_replaced(first.model, partial(_instead, replacement)):
                losses.append(first.loss_of(first.batch))
        if all(map(math.isfinite, losses)):
            compared.append((losses[0], losses[1]))
    if compared and all(right > wrong + _WORSE * max(abs(right), abs(wrong)) for right, wrong in compared):
        yield noticed(
            "loss-prefers-wrong-outputs",
            f"Training makes the model worse: the loss is {compared[0][0]:.4g} for perfect outputs, made from the "
            f"targets, and {compared[0][1]:.4g} for outputs that are all wrong.",
            "Change the sign of the loss: 1 - x or -x for a quantity x to maximise.",
        )


def _check_free_targets(first: FirstBatch, output: Tensor, targets: Tensor) -> Iterator[Finding]:
    """Look for targets whose samples get no gradient, for any outputs."""
    if targets.numel() != len(targets):
        return
    flat = targets.flatten()
    values = sorted(set(map(float, flat)))
    if not 1 < len(values) <= _GROUPS:
        return
    gets_none = torch.ones(len(flat), dtype=torch.bool)
    for number in range(3):
        seed_rng(number)
        leaf = (torch.randn(output.shape) * (1 + 2 * number)).to(output).requires_grad_()
        with torch.enable_grad(), outputs_replaced(first.model, partial(_instead, leaf)):
            loss = first.calculate_loss(copy.deepcopy(first.batch))
            (gradient,) = torch.autograd.grad(loss, [leaf], allow_unused=True) if loss.requires_grad else (None,)
        if gradient is None:
            return
        gets_none &= (gradient.flatten(1) == 0).all(1).cpu() if gradient.dim() > 1 else (gradient == 0).cpu()
    if bool(gets_none.all()):
        return
    for value in values:
        rows = (flat == value).cpu()
        if value >= 0 and float(rows.double().mean()) > _SHARE and bool(gets_none[rows].all()):
            yield noticed(
                "samples-cost-nothing",
                f"The {int(rows.sum())} samples of the first batch whose target is {value:g} never get a gradient "
                "for any outputs, so they are not learnt.",
                "Check which targets the loss needs, such as -1 and 1 instead of 0 and 1, and look for weights of 0.",
            )
            return


def _check_range(first: FirstBatch) -> Iterator[Finding]:
    """Compare the logits of a cross entropy with the logits of larger outputs: a norm keeps them in a range."""
    if all(call.name != "cross_entropy" for call in first.loss_calls):
        return
    given = _logits_of(first, lambda output: output)
    if given is None or given.dim() != 2 or given.shape[1] < _FEWEST_CLASSES:  # noqa: PLR2004  # samples and classes
        return
    if any(parameter.numel() == 1 and parameter.requires_grad for parameter in first.model.parameters()):
        return  # the temperature is learnt
    larger = _logits_of(first, lambda output: with_tensors(output, lambda tensor: _LARGER * tensor))
    if larger is None or not torch.allclose(given, larger, rtol=_MARGIN, atol=_MARGIN * float(given.abs().max())):
        return
    same = _logits_of(first, _same_rows)
    if same is None or not bool(same.isfinite().all()):
        return
    highest, classes = float(same.median()), given.shape[1]
    if not torch.allclose(same, same[:1, :1].expand_as(same), rtol=_MARGIN, atol=_MARGIN * abs(highest)):
        return  # outputs are compared with weights of the loss, for example
    floor = math.log(1 + (classes - 1) * math.exp(-2 * abs(highest)))
    if floor > _FLAT * math.log(classes):
        yield noticed(
            "logits-too-flat",
            f"The logits of cross_entropy come from normalised outputs, and always lie between {-abs(highest):.3g} "
            f"and {abs(highest):.3g}: the loss cannot fall below {floor:.3g}, compared with "
            f"log({classes}) = {math.log(classes):.3g} for equal probabilities.",
            "Divide the similarities by a temperature such as 0.07, which makes them larger.",
        )


def _same_rows(output: Any) -> Any:
    tensors: list[Tensor] = []

    def change(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0:  # the loss of a model that computes it itself
            return tensor
        tensors.append(tensor)
        row = tensors[0][:1] if tensors[0].shape == tensor.shape else tensor[:1]
        return row.expand_as(tensor)

    return with_tensors(output, change)


def _logits_of(first: FirstBatch, change: Callable[[Any], Any]) -> Tensor | None:
    calls: list[FunctionCall] = []
    with outputs_replaced(first.model, change), FunctionCalls(calls, ["cross_entropy"]):
        first.loss_of(first.batch)
    given: Mapping[str, Any] = calls[0].arguments if calls else {}
    logits = given.get("input")
    return logits if isinstance(logits, Tensor) else None
