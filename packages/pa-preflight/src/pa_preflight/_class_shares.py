"""Which classes samples to evaluate have, next to training samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pa_preflight._findings import Finding, noticed

_CLASSES, _COMMON, _CHANCE, _CUT = 50, 0.1, 1e-8, 0.8


def check_classes(train: Tensor, evaluated: Tensor) -> Iterator[Finding]:
    """Yield a finding if a class that is common in one of two sets does not occur in the other one.

    Args:
        train: Targets of training samples from all over their set, in its order.
        evaluated: Targets of samples to evaluate.
    """
    if not _are_classes(train) or not _are_classes(evaluated):
        return
    classes, others = train.flatten().long(), evaluated.flatten().long()
    for one, other, what, of_which in (
        (classes, others, "training samples", "samples to evaluate"),
        (others, classes, "samples to evaluate", "training samples"),
    ):
        lacking = _lacking(one, other)
        if lacking:
            yield noticed(
                "classes-of-one-set",
                f"{sum(lacking.values()):.0%} of the {what} have classes that do not occur among {len(other)} "
                f"{of_which}, such as {next(iter(lacking))}: the distribution of classes differs, as if samples were "
                "sorted before they were divided.",
                "Shuffle before the samples are divided, for example with torch.utils.data.random_split, or divide "
                "each class.",
                "warning" if _is_cut(classes, others) else "note",
            )
            return


def _are_classes(targets: Tensor) -> bool:
    if targets.numel() != len(targets):
        return False
    distinct = set(map(float, targets.flatten()))
    if targets.is_floating_point():
        return distinct <= {0.0, 1.0}
    return targets.dtype != torch.bool and len(distinct) <= _CLASSES


def _lacking(classes: Tensor, others: Tensor) -> dict[int, float]:
    """Return the classes that are common in one set and do not occur in another, which is not by chance."""
    shares = {one: float((classes == one).double().mean()) for one in sorted(set(map(int, classes)))}
    missing = {one: share for one, share in shares.items() if share >= _COMMON and not bool((others == one).any())}
    return {one: share for one, share in missing.items() if len(shares) * (1 - share) ** len(others) < _CHANCE}


def _is_cut(train: Tensor, evaluated: Tensor) -> bool:
    """Whether both are pieces of one sorted list: where one ends, the other begins, and it has the rest of a class."""
    if not all(_is_sorted(one) for one in (train, evaluated)):
        return False
    is_after, is_before = bool(train[-1] == evaluated[0]), bool(evaluated[-1] == train[0])
    if is_after == is_before:
        return False
    classes = set(map(int, evaluated))
    share = float(torch.isin(train, evaluated).double().mean())
    return share < _CUT * len(classes) / len(set(map(int, train)))


def _is_sorted(classes: Tensor) -> bool:
    """Whether all samples of a class follow each other."""
    changes = int((classes[1:] != classes[:-1]).sum())
    return changes + 1 == len(set(map(int, classes)))
