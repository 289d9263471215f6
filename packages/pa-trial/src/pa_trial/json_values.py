"""Metrics as JSON: tensors and NumPy values become numbers and lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from pa_data.errors import ArgumentTypeError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""What JSON can hold; numbers may also be NaN or infinite."""


def to_json(value: Any, name: str) -> JsonValue:
    """Return a metric as JSON can hold it. NaN and infinities are kept.

    Args:
        value: The metric, or containers of such.
        name: Its name, for the message.

    Raises:
        ArgumentTypeError: The metric, or something in it, has no counterpart in JSON.

    Example:
        >>> to_json({"matrix": np.eye(2), "best": np.float32(0.5), "why": None}, "details")
        {'matrix': [[1.0, 0.0], [0.0, 1.0]], 'best': 0.5, 'why': None}
    """
    untyped = value
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = untyped = untyped.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in untyped):
            return {key: to_json(item, f"{name}[{key!r}]") for key, item in untyped.items()}
    elif isinstance(value, (list, tuple)):
        return [to_json(item, f"{name}[{index}]") for index, item in enumerate(untyped)]
    raise ArgumentTypeError(
        f"The metric {name!r} cannot be written as JSON: {type(untyped).__name__} {untyped!r}.",
        do="Return numbers, strings, None, tensors, NumPy arrays, or lists and dictionaries (with string keys).",
    )
