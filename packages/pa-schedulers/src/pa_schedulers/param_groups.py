"""Reading and writing a field of all parameter groups of an optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Number
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from pa_core import ConfigurationError


def read_field(optimizer: Optimizer, field: str) -> list[float]:
    """Return the value of a field in each parameter group.

    Raises:
        ConfigurationError: A group does not have the field, or its value is not a single number.
    """
    return [_read(optimizer, index, group, field) for index, group in enumerate(optimizer.param_groups)]


def _read(optimizer: Optimizer, index: int, group: dict[str, Any], field: str) -> float:
    if field not in group:
        raise ConfigurationError(
            f"Parameter group {index} has no field {field!r}, but {', '.join(sorted(group.keys() - {'params'}))}. "
            f"Correct the name, or use another optimizer than {type(optimizer).__name__}."
        )
    value = plain_number(group[field])
    if not isinstance(value, Number):
        raise ConfigurationError(
            f"The field {field!r} of parameter group {index} must be a single number, got {value!r}."
        )
    return cast("float", value)


def write_field(optimizer: Optimizer, field: str, values: Sequence[float]) -> None:
    """Set a field in each parameter group; a tensor is changed in place, because a captured CUDA graph reads it."""
    for group, value in zip(optimizer.param_groups, values, strict=True):
        current = group[field]
        if isinstance(current, Tensor):
            current.fill_(value)
        else:
            # torch.load(weights_only=True) rejects a checkpoint whose groups hold numbers of numpy.
            group[field] = plain_number(value)


def plain_number(value: Any) -> Any:
    """Return a Python number for a number of numpy or torch, and any other value unchanged."""
    return value.item() if hasattr(value, "item") and math.prod(value.shape) == 1 else value
