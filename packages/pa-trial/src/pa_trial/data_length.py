"""The number of records of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor

from pa_data.errors import ArgumentTypeError, ConfigurationError


def data_length(data: Any) -> int:
    """Return how many records a batch has: what ``PyTorchTrial.get_batch_length`` returns unless it is overridden.

    Args:
        data: A tensor or an array, whose length is returned. For a dict, a list or a tuple, it is the length of the
            first value.

    Returns:
        The number of records.

    Raises:
        ConfigurationError: A dict, a list or a tuple is empty; it is a ``ValueError``.
        ArgumentTypeError: The batch, or its first value, is something else; it is a ``TypeError``.

    Example:
        >>> import torch
        >>> data_length({"image": torch.zeros(8, 3), "label": torch.zeros(8)})
        8
    """
    if isinstance(data, Tensor | np.ndarray):
        return _length(data, cast("object", data))
    if isinstance(data, Mapping):
        values = cast("Mapping[str, Any]", data)
        return _length_of_first(list(values.values())[:1], values)
    if isinstance(data, list | tuple):
        return _length_of_first(cast("Sequence[Any]", data), cast("object", data))
    raise _not_countable(data)


def _length_of_first(values: Sequence[Any], data: object) -> int:
    if not values:
        problem = f"An empty batch has no number of records: {type(data).__name__} without a value."
        raise ConfigurationError(problem, do="Check the collate_fn of the data loader, or override get_batch_length.")
    return _length(values[0], data)


def _length(value: Any, data: object) -> int:
    try:
        return len(value)
    except TypeError as error:
        raise _not_countable(data) from error


def _not_countable(data: object) -> ArgumentTypeError:
    problem = f"The records of a batch of type {type(data).__name__} cannot be counted."
    return ArgumentTypeError(problem, do="Override get_batch_length, and return the number of records of such a batch.")
