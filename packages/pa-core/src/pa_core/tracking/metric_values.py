"""Checking and copying values of metrics, and converting them to numbers."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias, cast

import numpy as np
from torch import Tensor, nn

from pa_checkpoint import Writer
from pa_core.errors import CheckpointError, ConfigurationError

MetricValue: TypeAlias = float | Tensor
"""The type of a value that ``trainer.log`` and ``LossTracker.update`` accept: a number, or a tensor with one element.

Use it to annotate your own functions that log values. A tensor may be on any device; it is not read when it is logged.
"""

_LOSS = re.compile(r"(.+_)?loss(_epoch)?")
_STORABLE = (Tensor, nn.Parameter)  # tensors of other classes are recorded as a number


def recordable(name: str, value: object) -> Any:
    """Return a copy of a value that later changes do not affect.

    Args:
        name: The name of the metric, for messages.
        value: The value to record.

    Raises:
        ConfigurationError: The value is not plain: it, or an object in it, could not be part of a training state.
    """
    if isinstance(value, Tensor) and _is_number(value) and (value.dim() == 0 or type(value) not in _STORABLE):
        return value.detach().reshape(()).clone()
    if isinstance(value, bool):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, defaultdict):
        value = dict(cast("defaultdict[object, object]", value))  # its default factory is not plain
    try:
        Writer.check({name: value})
    except CheckpointError as error:
        raise ConfigurationError(
            f"The value for the metric {name!r} cannot be recorded.",
            given=error.given,
            expected="a number, a string, a tensor, an array, or lists, tuples, sets and dictionaries of them",
            do="Record plain values of it: a number, for example float(...), a string, or several in a dictionary.",
        ) from error
    return _copy(value)


def as_number(value: object) -> float | None:
    """Return a value of a metric as a number, or None if it is not a number; waits for an accelerator.

    Args:
        value: A value that was recorded.

    Example:
        >>> import torch
        >>> as_number(torch.tensor([0.5])), as_number(True), as_number({"accuracy": 0.5}), as_number("high")
        (0.5, 1.0, None, None)
    """
    if not _is_number(value):
        return None
    try:
        return float(cast("Any", value))
    except OverflowError:  # an integer larger than any double
        return None


def numbers_of_mapping(name: str, value: object) -> Iterator[tuple[str, MetricValue]]:
    """Yield the numbers in a mapping, and in nested mappings, with their names; other values yield nothing.

    Args:
        name: The name of the metric.
        value: The recorded value.

    Example:
        >>> list(numbers_of_mapping("eval", {"accuracy": 0.5, "per_class": {"cat": 0.25}, "best": "cat"}))
        [('eval_accuracy', 0.5), ('eval_per_class_cat', 0.25)]
    """
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            if _is_number(item):
                yield f"{name}_{key}", cast("MetricValue", item)
            else:
                yield from numbers_of_mapping(f"{name}_{key}", item)


def _copy(value: object) -> Any:
    build = cast("Callable[[object], Any]", type(value))
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return build({key: _copy(item) for key, item in cast("dict[object, object]", value).items()})
    if isinstance(value, list | tuple | set):
        return build([_copy(item) for item in cast("Collection[object]", value)])
    return cast("Any", value).item() if isinstance(value, np.generic) else copy.copy(value)


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Real)


def is_loss(metric_name: str) -> bool:
    """Return whether a metric is a loss by its name.

    Example:
        >>> [is_loss(name) for name in ("eval_val_loss_epoch", "evaluation_loss", "lossless")]
        [True, True, False]
    """
    return _LOSS.fullmatch(metric_name) is not None
