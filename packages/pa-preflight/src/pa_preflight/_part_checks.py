"""The parts of a batch: those that no step uses, and two that are one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from pa_data.rng import seed_rng
from pa_preflight._batch_checks import FirstBatch
from pa_preflight._findings import Finding, noticed
from pa_preflight._observer import is_same, tensors_in, with_tensors
from pa_preflight._tables import TARGET_KEYS

_FEWEST_PARTS, _FEWEST_SAMPLES, _USED, _VIEWS = 3, 3, 2, 2


def check_parts(first: FirstBatch, evaluate: Callable[[Any], object] | None) -> Iterator[Finding]:
    """Yield what is wrong with the parts of the first batch, such as the elements of a tuple.

    Args:
        first: The batch.
        evaluate: The step of evaluations, where the script has its own.
    """
    parts = _parts_of(first.batch)
    if len(parts) >= _FEWEST_PARTS:
        yield from _check_unused(first, parts, evaluate)
    if first.is_own_step:
        yield from _check_views(first, parts)


def _parts_of(batch: Any) -> dict[Hashable, Tensor]:
    """Return the tensors of a batch with a row for each sample, by their position or key."""
    parts: dict[Hashable, Any] = {}
    if isinstance(batch, Mapping):
        parts = dict(cast("Mapping[Hashable, Any]", batch))
    elif isinstance(batch, (list, tuple)):
        parts = dict(enumerate(cast("Sequence[Any]", batch)))
    tensors = {key: part for key, part in parts.items() if isinstance(part, Tensor) and part.dim() and len(part)}
    sizes = {len(part) for part in tensors.values()}
    return tensors if len(sizes) == 1 and min(sizes) >= _FEWEST_SAMPLES else {}


class _Used(TorchFunctionMode):
    """Notes which tensors are given to any function of torch, attributes included."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: set[int] = set()

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.tensors.update(map(id, tensors_in((list(args), dict(kwargs or {})))))
        return func(*args, **(kwargs or {}))


def _used_parts(batch: Any, step: Callable[[Any], object]) -> set[Hashable]:
    """Return the parts of a batch that a step reads."""
    copied = with_tensors(batch, Tensor.clone)
    parts = _parts_of(copied)
    seed_rng(0)
    with _Used() as used:
        step(copied)
    return {key for key, part in parts.items() if id(part) in used.tensors}


def _check_unused(
    first: FirstBatch, parts: dict[Hashable, Tensor], evaluate: Callable[[Any], object] | None
) -> Iterator[Finding]:
    before = first.loss_of(first.batch)
    used = _used_parts(first.batch, lambda batch: _loss_with(first, batch))
    unused = [key for key, part in parts.items() if key not in used and not _identifies(part)]
    if len(used) < _USED or not unused:
        return
    if first.loss_of(first.batch) == before:  # else the step changes what it depends on, such as a second network
        unused = [key for key in unused if first.loss_of(_exchanged(first.batch, key)) == before]
    evaluated: set[Hashable] = set()
    if evaluate is not None:
        with contextlib.suppress(Exception), torch.no_grad():  # of a step that takes other batches
            evaluated = _used_parts(first.batch, evaluate)
    for key in unused:
        is_meant = not first.is_own_step or key in evaluated or key in TARGET_KEYS or not _is_flag(parts[key])
        yield noticed(
            "part-of-batch-not-used",
            f"batch[{key!r}] differs between samples, and is not used by the step: its loss does not depend on it.",
            "Use it in calculate_train_batch_loss, such as a flag that an episode has ended, a mask or a weight; or "
            "leave it out of the samples.",
            "note" if is_meant else "warning",
        )
        return


def _identifies(part: Tensor) -> bool:
    """Whether a part says nothing that a loss could need: it is the same for all samples, or a number of each."""
    if is_same(part, part[:1].expand_as(part)):
        return True
    return not part.is_floating_point() and part.numel() == len(part) == len(set(map(int, part.flatten())))


def _is_flag(part: Tensor) -> bool:
    """Whether a part says yes or no: other numbers that are not used may well be labels or measurements."""
    return part.dtype == torch.bool or (part.is_floating_point() and bool(((part == 0) | (part == 1)).all()))


def _exchanged(batch: Any, key: Any) -> Any:
    """Return a batch in which each sample has a part of the sample before."""
    kind = cast("Any", type(batch))
    if isinstance(batch, Mapping):
        named: dict[Any, Any] = dict(cast("Any", batch))
        return kind({**named, key: named[key].roll(1, 0)})
    parts = [part.roll(1, 0) if number == key else part for number, part in enumerate(cast("list[Any]", batch))]
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _loss_with(first: FirstBatch, batch: Any) -> Tensor:
    """Return the loss of a batch, which the step may change, without its graph."""
    with torch.set_grad_enabled(first.needs_graph):
        return first.calculate_loss(batch)


@dataclass
class _Inputs:
    """What a model is called with in a step.

    Attributes:
        model: The model.
        tensors: Its inputs.
        rows: How many rows the first inputs of its calls have.
    """

    model: nn.Module
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    rows: int = 0

    def note(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call."""
        tensors = [one.detach().clone() for one in tensors_in((args, kwargs)) if one.dim()]
        self.rows += len(tensors[0]) if tensors else 0
        self.tensors += tensors


def _inputs_in(first: FirstBatch, batch: Any) -> _Inputs:
    inputs = _Inputs(first.model)
    hook = first.model.register_forward_pre_hook(inputs.note, with_kwargs=True)
    try:
        first.loss_of(batch)
    finally:
        hook.remove()
    return inputs


def _check_views(first: FirstBatch, parts: dict[Hashable, Tensor]) -> Iterator[Finding]:
    """Look for two parts that are equal, though the model gets both as if they were two samples."""
    numbers = {key: part for key, part in parts.items() if part.is_floating_point() and part[0].numel() > 1}
    equal = [(key, other) for key, other in combinations(numbers, 2) if is_same(numbers[key], numbers[other])]
    pairs = [(key, other) for key, other in equal if not _identifies(numbers[key])]
    if not pairs:
        return
    key, other = pairs[0]
    before = _inputs_in(first, first.batch)
    is_random = _draws(first)
    reaches = [_differ(before, _inputs_in(first, _exchanged(first.batch, one))) for one in (key, other)]
    if before.rows >= _VIEWS * len(numbers[key]) and all(reaches):
        yield noticed(
            "views-are-equal",
            f"batch[{key!r}] and batch[{other!r}] are identical in each sample, and the model gets both: two views of "
            "a sample that do not differ, so to tell that they belong together is trivial.",
            "Look at __getitem__ and collate_fn: draw other random numbers for each view.",
            "note" if is_random else "warning",
        )


def _draws(first: FirstBatch) -> bool:
    """Whether the step draws random numbers, which may make different ones of equal views."""
    devices = {torch.device("cpu"), first.loss.device}
    drawn: list[list[float]] = []
    for step in (lambda: 0.0, lambda: _loss_with(first, with_tensors(first.batch, Tensor.clone))):
        seed_rng(0)
        step()
        drawn.append([float(torch.rand((), device=device)) for device in devices])
    return drawn[0] != drawn[1]


def _differ(one: _Inputs, other: _Inputs) -> bool:
    if len(one.tensors) != len(other.tensors):
        return True
    return any(not is_same(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))
