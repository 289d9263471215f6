"""The metrics of many batches, by name: read from the device together, and cheap to send to other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pa_trial.metric_values import to_host, to_numpy, wait_for_large
from pa_trial.types import Metrics

__all__ = ["Column", "columns_of", "rows_of", "value_at"]

Array: TypeAlias = NDArray[Any]
Column: TypeAlias = Array | list[Any]
"""A metric batch by batch: an array with a first dimension for the batches if all values have one type and shape."""

_PLAIN_KINDS = frozenset({bool, int, float, str, type(None)})


def columns_of(batches: Sequence[Metrics]) -> dict[str, Column]:
    """Return the metrics of batches by name, on the host, with NumPy arrays in place of tensors.

    Args:
        batches: What ``hold`` returned for each of them; all have the same names.
    """
    names = batches[0] if batches else {}
    return {name: _column([batch[name] for batch in batches]) for name in names}


def rows_of(columns: dict[str, Column], num_batches: int) -> list[Metrics]:
    """Return the metrics of each batch; a scalar of an array is an array of shape ().

    Args:
        columns: The metrics by name.
        num_batches: How many batches there are, even without metrics.
    """
    if not columns:
        return [{} for _ in range(num_batches)]
    values = [[value_at(column, index) for index in range(num_batches)] for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def value_at(column: Column, index: int) -> Any:
    """Return the value of one batch.

    Args:
        column: The metric.
        index: The index of the batch in it.
    """
    return column[index, ...] if isinstance(column, np.ndarray) else column[index]


def _column(values: list[Any]) -> Column:
    kinds: set[type[Any]] = {type(value) for value in values}
    if kinds <= _PLAIN_KINDS:
        return values
    if kinds == {Tensor} and len({(value.dtype, value.shape, value.device) for value in values}) == 1:
        wait_for_large(values[:1])
        stacked: Array = to_numpy(torch.stack(values).cpu())
        return stacked
    values = [to_numpy(value) for value in to_host(values)]
    arrays: list[Array] = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == len(values) and len({(array.dtype, array.shape) for array in arrays}) == 1:
        return np.stack(arrays)
    return values
