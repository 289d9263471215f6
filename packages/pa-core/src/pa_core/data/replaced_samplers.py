"""Samplers that an order of the trainer replaces, and what is gained by it."""

from __future__ import annotations

import re
from types import NoneType
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pa_core.data.custom_loader import loader_parts

__all__ = ["describe_replacement"]

_OF_LIKE_LENGTH = re.compile(r"length|bucket|max_?tokens", re.IGNORECASE)
_BALANCED = re.compile(r"balance", re.IGNORECASE)


def describe_replacement(loader: object) -> str | None:
    """Return a line that says what replaces the sampler of a training loader; None where nothing does.

    Samplers of other libraries are known by their names.

    Args:
        loader: A custom data loader.

    Example:
        >>> from torch.utils.data import DataLoader, WeightedRandomSampler
        >>> describe_replacement(DataLoader(range(3), sampler=WeightedRandomSampler([1.0, 2.0, 2.0], 3)))[:65]
        'An order can replace WeightedRandomSampler: pass the dataset, and'
        >>> describe_replacement(DataLoader(range(3), shuffle=True)) is None
        True
    """
    parts = loader_parts(loader)
    batch_sampler = parts.get("loader.batch_sampler")
    decides = parts.get("loader.sampler") if type(batch_sampler) in (BatchSampler, NoneType) else batch_sampler
    instead = _replacement(decides)
    if instead is None:
        return None
    return (
        f"An order can replace {type(decides).__name__}: pass the dataset, and {instead}. Updates are then the same on "
        "any number of processes and workers, and a run resumes at its exact sample."
    )


def _replacement(sampler: object) -> str | None:
    """What to pass next to the dataset."""
    kind = type(sampler)
    if kind.__module__.startswith("torch."):
        return _replacement_of_torch(sampler)
    if _OF_LIKE_LENGTH.search(kind.__name__):
        return "order=TokenBudget(lengths, max_tokens=...)"
    return "order=ClassBalanced(labels)" if _BALANCED.search(kind.__name__) else None


def _replacement_of_torch(sampler: Any) -> str | None:
    if isinstance(sampler, WeightedRandomSampler):
        without = "" if sampler.replacement else ", replacement=False"
        return f"order=Weighted(weights{without}, num_samples={sampler.num_samples})"
    if isinstance(sampler, RandomSampler) and sampler.replacement:
        return f"order=Weighted([1.0] * len(dataset), num_samples={sampler.num_samples})"
    if isinstance(sampler, SubsetRandomSampler):
        return "as the dataset Subset(dataset, indices), which is shuffled"
    if isinstance(sampler, DistributedSampler):
        what = "no sampler" if sampler.shuffle else "order=Sequential()"
        return f"{what}: the trainer divides the samples over the processes, and repeats none"
    return None
