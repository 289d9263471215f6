"""The first dimensions of a batch, and the lists of numbers in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, cast

from torch import Tensor

from pa_data.batches import is_mapping, keys_of

__all__ = ["first_dimensions", "lists_of_numbers"]


def first_dimensions(value: object) -> Iterator[int]:
    """Iterate over the first dimensions of the tensors in a batch that have one.

    Example:
        >>> import torch
        >>> list(first_dimensions({"ids": [7, 8], "pixels": (torch.zeros(()), torch.zeros(4, 3)), "y": torch.ones(4)}))
        [4, 4]
    """
    parts: Iterable[object] = ()
    if isinstance(value, Tensor):
        if value.dim() > 0:
            yield len(value)
    elif is_mapping(value):
        parts = (value[key] for key in keys_of(value))
    elif isinstance(value, list | tuple):
        parts = cast("Iterable[object]", value)
    elif dataclasses.is_dataclass(value):
        parts = (getattr(value, field.name) for field in dataclasses.fields(value))
    for part in parts:
        yield from first_dimensions(part)


def lists_of_numbers(batch: object) -> list[Any]:
    """Return the keys of a mapping under which each sample had a list of numbers.

    Torch's collation makes of them a list of tensors, one for each position in the lists.

    Example:
        >>> import torch
        >>> lists_of_numbers({"ids": [torch.tensor([7, 1]), torch.tensor([8, 2])], "label": torch.tensor([0, 1])})
        ['ids']
    """
    if not is_mapping(batch):
        return []
    return [key for key in keys_of(batch) if _are_vectors(batch[key])]


def _are_vectors(value: object) -> bool:
    if not isinstance(value, list):
        return False
    values = cast("list[object]", value)
    return bool(values) and all(isinstance(one, Tensor) and one.dim() == 1 for one in values)
