"""Experiments with what a model returns: what a loss says of outputs that are perfect, opposite, larger or equal."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pa_data.rng import seed_rng
from pa_preflight._batch_checks import FirstBatch
from pa_preflight._findings import Finding, noticed
from pa_preflight._function_calls import FunctionCall, FunctionCalls
from pa_preflight._observer import with_tensors

_SURE, _ALMOST, _OPPOSITE = 8.0, 0.98, 4.0
_MARGIN, _WORSE, _LARGER, _FLAT, _FEW = 1e-3, 0.1, 1000.0, 0.5, 4
_GROUPS, _SHARE = 20, 0.05
_DISTANCES = frozenset(
    ("Abs", "Cdist", "EuclideanDist", "Exp", "LinalgVectorNorm", "Mean", "Neg", "Norm", "Pow", "Sqrt", "Sum")
)
"""Operations whose results are distances as likely as scores, so that nobody knows what a perfect one is."""


def check_output_experiments(first: FirstBatch) -> Iterator[Finding]:
    """Yield what is wrong with how the loss follows from the outputs of the model.

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


@contextmanager
def outputs_replaced(model: nn.Module, change: Callable[[Any], Any]) -> Generator[None]:
    """Let a model return something else.

    Args:
        model: The model.
        change: Called with what it returns.
    """
    handle = model.register_forward_hook(lambda _model, _args, output: change(output))
    try:
        yield
    finally:
        handle.remove()


def _instead(tensor: Tensor, _output: Any) -> Tensor:
    return tensor.clone()  # which a loss may change in place


def _targets_of(batch: Any) -> Tensor | None:
    """Return the targets of a batch of inputs and targets; None of others, whose last part may be weights."""
    if isinstance(batch, (tuple, list)):
        parts = cast("list[Any]", batch)
        last = parts[-1] if len(parts) == 2 else None  # noqa: PLR2004  # inputs and targets
        return last if isinstance(last, Tensor) and last.dim() else None
    return None


def perfect_outputs(output: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of outputs, perfect ones and wrong ones: as logits, and as probabilities or numbers.

    Args:
        output: What the model returns.
        targets: What it should tell.
    """
    shape = output.shape
    if not targets.is_floating_point() and shape[:1] + shape[2:] == targets.shape and output.dim() > 1:
        is_known = int(targets.min()) >= 0 and int(targets.max()) < shape[1] > 1
        # of few classes, outputs may be features, and the loss has a layer
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
    logits = [_SURE * (2 * one - 1) for one in pairs]
    probabilities = [(1 - _ALMOST) / 2 + _ALMOST * one for one in pairs]
    return [(logits[0], logits[1]), (probabilities[0], probabilities[1])]


def _check_direction(first: FirstBatch, output: Tensor, targets: Tensor, made_by: str) -> Iterator[Finding]:
    if bool((targets == targets[:1]).all()) or made_by in _DISTANCES:
        return
    compared: list[tuple[float, float]] = []
    for pair in perfect_outputs(output, targets):
        losses: list[float] = []
        for one in pair:
            with outputs_replaced(first.model, partial(_instead, one)):
                losses.append(first.loss_of(first.batch))
        if all(map(math.isfinite, losses)):
            compared.append((losses[0], losses[1]))
    if compared and all(right > wrong + _WORSE * max(abs(right), abs(wrong)) for right, wrong in compared):
        yield noticed(
            "loss-prefers-wrong-outputs",
            f"The loss of perfect outputs, made of the targets, is {compared[0][0]:.4g}, and of outputs that are all "
            f"wrong {compared[0][1]:.4g}: training makes the model worse.",
            "Turn the sign of the loss: 1 - x or -x of what is to be maximised.",
        )


def _check_free_targets(first: FirstBatch, output: Tensor, targets: Tensor) -> Iterator[Finding]:
    """Look for targets whose samples get no gradient for any outputs."""
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
                f"The {int(rows.sum())} samples of the first batch whose target is {value:g} get no gradient for any "
                "outputs: they cost nothing, and are not learnt.",
                "Look at which targets the loss needs, such as -1 and 1 in place of 0 and 1, and at weights of 0.",
            )
            return


def _check_range(first: FirstBatch) -> Iterator[Finding]:
    """Compare the logits of a cross entropy with what larger outputs make of them: a norm keeps them in a range."""
    if all(call.name != "cross_entropy" for call in first.loss_calls):
        return
    given = _logits_of(first, lambda output: output)
    if given is None or given.dim() != 2 or given.shape[1] < _FEW:  # noqa: PLR2004  # samples and classes
        return
    if any(one.numel() == 1 and one.requires_grad for one in first.model.parameters()):
        return  # a temperature that is learnt
    larger = _logits_of(first, lambda output: with_tensors(output, lambda one: _LARGER * one))
    if larger is None or not torch.allclose(given, larger, rtol=_MARGIN, atol=_MARGIN * float(given.abs().max())):
        return
    same = _logits_of(first, _same_rows)
    if same is None or not bool(same.isfinite().all()):
        return
    highest, classes = float(same.median()), given.shape[1]
    if not torch.allclose(same, same[:1, :1].expand_as(same), rtol=_MARGIN, atol=_MARGIN * abs(highest)):
        return  # outputs are compared with something else, such as weights of the loss
    floor = math.log(1 + (classes - 1) * math.exp(-2 * abs(highest)))
    if floor > _FLAT * math.log(classes):
        yield noticed(
            "logits-too-flat",
            f"The logits of cross_entropy are made of normalised outputs, and always lie between {-abs(highest):.3g} "
            f"and {abs(highest):.3g}: the loss cannot fall below {floor:.3g}, where equal chances have "
            f"log({classes}) = {math.log(classes):.3g}.",
            "Divide the similarities by a temperature such as 0.07, which makes them larger.",
        )


def _same_rows(output: Any) -> Any:
    tensors: list[Tensor] = []

    def change(one: Tensor) -> Tensor:
        tensors.append(one)
        row = tensors[0][:1] if tensors[0].shape == one.shape else one[:1]
        return row.expand_as(one)

    return with_tensors(output, change)


def _logits_of(first: FirstBatch, change: Callable[[Any], Any]) -> Tensor | None:
    calls: list[FunctionCall] = []
    with outputs_replaced(first.model, change), FunctionCalls(calls, ["cross_entropy"]):
        first.loss_of(first.batch)
    given: Mapping[str, Any] = calls[0].arguments if calls else {}
    logits = given.get("input")
    return logits if isinstance(logits, Tensor) else None
