"""What tells the samples of a file of predictions apart: a value for each, in a separate column."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pa_core import ConfigurationError
from pa_data.batches import is_array
from pa_predictions._columns import Column, plain, require_names_once

_NAME = "id"


class Ids:
    """A value for each sample, by its position.

    Args:
        values: One for each sample.
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
                given=f"ids of type {type(values).__name__}{_length_of(values)} for {num_samples} samples",
                do="Pass a list or a tensor of one dimension in the order of the dataset, or range(len(dataset)) for "
                "the positions.",
            )

    def digest(self) -> str:
        """Return what differs for other ids."""
        digest = hashlib.sha256()
        for value in plain(self._values):
            digest.update(repr(value).encode(errors="surrogatepass") + b"\0")
        return digest.hexdigest()

    def beside(self, columns: Mapping[str, Column], positions: range) -> dict[str, Column]:
        """Return the columns of a batch, the ids of its samples before them.

        Args:
            columns: Columns by name.
            positions: Where the samples are in the dataset.

        Raises:
            BatchOutputError: A column has the name of the ids.
        """
        require_names_once([_NAME, *columns])
        own = self._values[positions.start : positions.stop]
        return {_NAME: own if isinstance(own, Tensor) else list(own), **columns}


def _length_of(values: Any) -> str:
    return f" and length {len(values)}" if hasattr(values, "__len__") else ""
