"""The types of batches and metrics, and how containers of them are rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeVar

from pa_data.batches import rebuilt_mapping, rebuilt_sequence

TorchData: TypeAlias = dict[str, Tensor] | Sequence[Tensor] | Tensor
"""The usual kinds of batches that a data loader yields: a tensor, a sequence of tensors, or a dictionary of tensors.

Use it to annotate the ``batch`` argument of ``train_batch`` and ``evaluate_batch``. Batches of other classes work too.
"""

Array: TypeAlias = NDArray[Any]

BatchT = TypeVar("BatchT", default=Any)
"""The type of the batches of a trial, as its data loaders yield them."""

Metrics: TypeAlias = dict[str, Any]
"""Metrics by name, such as ``{"loss": 0.5}``: a dictionary of numbers, or of tensors and arrays of numbers.

Use it to annotate the return value of ``evaluate_batch`` and the arguments of callbacks.
"""

TrainingMetrics: TypeAlias = Tensor | Metrics
"""The return type of ``train_batch``: metrics by name, or the loss alone as a tensor, which is reported as "loss".

Use it to annotate your ``train_batch``.
"""


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
