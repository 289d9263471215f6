"""The types of batches and metrics, and how containers of them are rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeVar

from pa_data.batches import rebuilt_mapping, rebuilt_sequence

TorchData: TypeAlias = dict[str, Tensor] | Sequence[Tensor] | Tensor
"""The usual kinds of batches that a data loader yields, for annotations of ``train_batch``."""

Array: TypeAlias = NDArray[Any]

BatchT = TypeVar("BatchT", default=Any)
"""The type of the batches of a trial, as its data loaders yield them."""

Metrics: TypeAlias = dict[str, Any]
"""Metrics by name, such as ``{"loss": 0.5}``: numbers, or tensors and arrays of numbers. A plain ``dict``."""

TrainingMetrics: TypeAlias = Tensor | Metrics
"""The return value of ``train_batch``: metrics by name, or the loss alone as a tensor, which is named "loss"."""


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a mapping, a list or a tuple of the same class with changed items; anything else unchanged.

    Args:
        value: Anything.
        change: Called with each item of a container.
    """
    container: Any = value
    if isinstance(value, Mapping):
        return rebuilt_mapping(container, change)
    return rebuilt_sequence(container, change) if isinstance(value, list | tuple) else value
