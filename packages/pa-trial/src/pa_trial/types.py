"""The types of batches and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeVar

TorchData: TypeAlias = dict[str, Tensor] | Sequence[Tensor] | Tensor
"""The usual kinds of batches."""

Array: TypeAlias = NDArray[Any]

BatchT = TypeVar("BatchT", default=Any)
"""The batches of a trial, as its data loaders yield them."""

Metrics: TypeAlias = dict[str, Any]
"""Metrics by name."""

TrainingMetrics: TypeAlias = Tensor | Metrics
"""The return value of ``train_batch``: metrics by name, or the loss alone."""
