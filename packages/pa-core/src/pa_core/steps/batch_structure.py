"""The number of samples in a batch, and lists of numbers in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, cast

from torch import Tensor

from pa_core.errors import ConfigurationError
from pa_core.user_warnings import warn_user
from pa_data.batches import describe_batch, is_mapping

_HAVE_SAMPLES_FIRST = "input_ids", "labels"
"""Keys whose values surely have a row for each sample in models of transformers."""


def count_samples(batch: object, *, may_differ: bool = False) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor.

    Args:
        batch: A batch of a data loader.
        may_differ: Whether tensors may differ in this dimension without a warning, as in a list of images.

    Raises:
        ConfigurationError: There is no tensor with a first dimension.

    Example:
        >>> import torch
        >>> count_samples({"pixels": torch.zeros(4, 3), "names": ["a", "b", "c", "d"]})
        4
    """
    numbers = list(_first_dimensions(batch))
    if not numbers:
        raise ConfigurationError(
            "The number of samples in the batch is not known.",
            given=describe_batch(batch),
            do="Return tensors from the dataset or from collate_fn, or pass a dataset instead of the loader.",
        )
    if len(set(numbers)) > 1 and not may_differ:
        # The same text for each batch, so that the warning is shown once.
        warn_user(
            "The tensors in a batch of the loader differ in their first dimension, and the first tensor's "
            "counts as the number of samples, with which losses and metrics are weighted. Pass the dataset instead of "
            "the loader, or num_items with the loss."
        )
    return numbers[0]


def _first_dimensions(value: object) -> Iterator[int]:
    parts: Iterable[object] = ()
    if isinstance(value, Tensor):
        if value.dim() > 0:
            yield len(value)
    elif is_mapping(value):
        parts = (value[key] for key in sorted([*value.keys()], key=lambda key: key not in _HAVE_SAMPLES_FIRST))
    elif isinstance(value, list | tuple):
        parts = cast("Iterable[object]", value)
    elif dataclasses.is_dataclass(value):
        parts = (getattr(value, field.name) for field in dataclasses.fields(value))
    for part in parts:
        yield from _first_dimensions(part)


def lists_of_numbers(batch: object) -> list[Any]:
    """Return the keys of a mapping whose values were lists of numbers in each sample.

    Torch's collation converts them to a list of tensors, with a tensor for each position in the lists.

    Example:
        >>> import torch
        >>> lists_of_numbers({"ids": [torch.tensor([7, 1]), torch.tensor([8, 2])], "label": torch.tensor([0, 1])})
        ['ids']
    """
    if not is_mapping(batch):
        return []
    return [key for key in [*batch.keys()] if _are_vectors(batch[key])]


def _are_vectors(value: object) -> bool:
    if not isinstance(value, list):
        return False
    values = cast("list[object]", value)
    return bool(values) and all(isinstance(item, Tensor) and item.dim() == 1 for item in values)
