"""What may be recorded as the value of a metric, and what of it is a number."""

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

_LOSS = re.compile(r"(.+_)?loss(_epoch)?")
_STORABLE = (Tensor, nn.Parameter)  # of another class, one element is recorded without its shape


def recordable(name: str, value: object) -> Any:
    """Return a copy of a value, which nothing changes any more, or raise an error.

    Args:
        name: The metric, for messages.
        value: What is to be recorded.

    Raises:
        ConfigurationError: The value is not plain: it, or something in it, could not be part of a training state.
    """
    if isinstance(value, Tensor) and _is_number(value) and (value.dim() == 0 or type(value) not in _STORABLE):
        return value.detach().reshape(()).clone()
    if isinstance(value, bool):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, defaultdict):
        value = dict(cast("defaultdict[object, object]", value))  # what makes its missing values is not plain
    try:
        Writer.check({name: value})
    except CheckpointError as error:
        raise ConfigurationError(
            f"The value for the metric {name!r} cannot be recorded.",
            given=error.given,
            expected="a number, a string, a tensor, an array, or lists, tuples, sets and dictionaries of them",
            do="Record what is to be read of it: a number, such as float(...), a string, or several in a dictionary.",
        ) from error
    return _copy(value)


def as_number(value: object) -> float | None:
    """Return a value of a metric as a number, or None if it is something else; waits for an accelerator.

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
    except OverflowError:  # of an integer that is larger than any double
        return None


def numbers_of_mapping(name: str, value: object) -> Iterator[tuple[str, MetricValue]]:
    """Yield the numbers of a mapping, and of mappings in it, under their own names; nothing of other values.

    Args:
        name: What the mapping was recorded under.
        value: What was recorded.

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
