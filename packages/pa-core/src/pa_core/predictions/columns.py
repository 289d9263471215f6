"""Predictions as columns: a value for each sample, under a name; a column of ids may precede them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from pa_core.errors import BatchOutputError, ConfigurationError
from pa_data.batches import describe_batch, is_array, is_mapping

Column: TypeAlias = "Tensor | Sequence[Any]"
"""A value for each sample of a batch: a tensor whose first dimension is the samples, or a list."""

_NAME = "prediction"
_ID = "id"


def columns_of(predictions: object, num_samples: int) -> dict[str, Column]:
    """Return the columns of the predictions for a batch.

    Args:
        predictions: The result of ``predict_batch``: a mapping, a dataclass or a named tuple, in which each item is a
            column; a plain tuple of columns, which get the names ``prediction_0`` and so on; or a single column.
        num_samples: The number of samples in the batch.

    Raises:
        BatchOutputError: An item does not have a value for each sample.

    Example:
        >>> columns_of({"label": torch.tensor([3, 1]), "name": ["cat", "dog"]}, 2)
        {'label': tensor([3, 1]), 'name': ['cat', 'dog']}
        >>> columns_of((torch.zeros(2), torch.ones(2)), 2)
        {'prediction_0': tensor([0., 0.]), 'prediction_1': tensor([1., 1.])}
    """
    return {name: _column(name, value, num_samples, predictions) for name, value in _named(predictions).items()}


def _named(predictions: Any) -> dict[str, Any]:
    if is_mapping(predictions):
        keys = [*predictions.keys()]
        require_names_once([str(key) for key in keys])
        return {str(key): predictions[key] for key in keys}
    if dataclasses.is_dataclass(predictions):
        fields = {field.name: getattr(predictions, field.name) for field in dataclasses.fields(predictions)}
        return {name: value for name, value in fields.items() if value is not None}
    if issubclass(predictions.__class__, tuple):
        names: Any = getattr(predictions, "_fields", [f"{_NAME}_{number}" for number in range(len(predictions))])
        return dict(zip(names, predictions, strict=True))
    return {_NAME: predictions}


def _column(name: str, value: Any, num_samples: int, predictions: object) -> Column:
    column = torch.as_tensor(value) if is_array(value) else value
    is_column = column.dim() > 0 if isinstance(column, Tensor) else isinstance(column, list | tuple)
    if not is_column or len(column) != num_samples:
        raise BatchOutputError(
            "The predictions for a batch cannot be written as columns with a value for each sample.",
            given=f"{describe_batch(predictions)} for {num_samples} samples; {name!r} is not a column",
            do="Override predict_batch(self, batch), and return the values to write: tensors whose first dimension "
            "is the samples, lists with an item for each, or a mapping of them.",
        )
    if isinstance(column, Tensor) and column.is_floating_point() and column.dtype.itemsize < torch.float32.itemsize:
        return column.float()  # the same values in a type that files support
    return cast("Column", column)


def plain(value: Any) -> Any:
    """Convert a value to plain Python, including tensors, arrays and items of containers."""
    if is_array(value):
        return value.tolist()
    if is_mapping(value):
        return {key: plain(value[key]) for key in [*value.keys()]}
    return [plain(item) for item in value] if issubclass(value.__class__, list | tuple) else value


def require_names_once(names: Sequence[str]) -> None:
    """Raise an error if columns share a name, because the file would contain only the last of them.

    Args:
        names: The names of the columns.

    Raises:
        BatchOutputError: Two names are the same.
    """
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise BatchOutputError(
            "Two columns of the predictions have the same name.",
            given=f"columns {', '.join(names)}; {', '.join(twice)} more than once",
            do="Return them from predict_batch under different names.",
        )


def require_same_columns(names: Sequence[str], others: Sequence[str]) -> None:
    """Raise an error if batches of a table have different columns.

    Args:
        names: The columns of some batches.
        others: The columns of other batches.

    Raises:
        BatchOutputError: The columns differ.
    """
    if list(names) != list(others):
        raise BatchOutputError(
            "The predictions for two batches have different columns.",
            given=f"{', '.join(names)}; and {', '.join(others)}",
            do="Return the same names from predict_batch each time, or write to a .jsonl file.",
        )


class Ids:
    """A value for each sample, by its position.

    Args:
        values: A value for each sample.
        num_samples: The number of samples.

    Raises:
        ConfigurationError: There are more or fewer values than samples.

    Example:
        >>> Ids(["a.png", "b.png", "c.png"], 3).beside({"label": [7, 0]}, range(1, 3))
        {'id': ['b.png', 'c.png'], 'label': [7, 0]}
    """

    def __init__(self, values: Sequence[Any] | Tensor, num_samples: int) -> None:
        self._values: Sequence[Any] | Tensor = torch.as_tensor(values) if is_array(values) else values
        is_list = self._values.dim() == 1 if isinstance(self._values, Tensor) else isinstance(values, Sequence)
        if isinstance(values, str) or not is_list or len(self._values) != num_samples:
            raise ConfigurationError(
                "The ids of the samples are not a value for each of them.",
                given=f"ids of type {type(values).__name__}{_describe_length(values)} for {num_samples} samples",
                do="Pass a list or a tensor of one dimension in the order of the dataset, or range(len(dataset)) for "
                "the positions.",
            )

    def digest(self) -> str:
        """Return a digest of the ids."""
        digest = hashlib.sha256()
        for value in plain(self._values):
            digest.update(repr(value).encode(errors="surrogatepass") + b"\0")
        return digest.hexdigest()

    def beside(self, columns: Mapping[str, Column], positions: range) -> dict[str, Column]:
        """Return the columns of a batch, after the column of the ids of its samples.

        Args:
            columns: Columns by name.
            positions: The positions of the samples in the dataset.

        Raises:
            BatchOutputError: A column has the name of the ids.
        """
        require_names_once([_ID, *columns])
        own = self._values[positions.start : positions.stop]
        return {_ID: own if isinstance(own, Tensor) else list(own), **columns}


def _describe_length(values: Any) -> str:
    return f" and length {len(values)}" if hasattr(values, "__len__") else ""
