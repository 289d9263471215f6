"""Values of metrics: kept without waiting in a step, read together when a workload ends, as numbers or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pa_trial.errors import ArgumentTypeError, CheckFailedError, NoMetricsError
from pa_trial.types import Array, Metrics, rebuilt

_MAX_ELEMENTS_ON_DEVICE = 1024
_NUMERIC_KINDS = "biuf"


def metrics_by_name(returned: object, method: str) -> Metrics:
    """Return the metrics that a method of a trial returned, if these are metrics by name.

    Args:
        returned: Its return value.
        method: Its name, for the message.

    Raises:
        NoMetricsError: The value is not a mapping.
    """
    if isinstance(returned, Mapping):
        return dict(cast("Mapping[str, Any]", returned))
    raise NoMetricsError(
        f"{method} returned no metrics, but {'None' if returned is None else type(returned).__name__}.",
        do=f'Return {{"loss": loss}}, or other metrics by name, at the end of {method}.',
    )


def agreed_names(method: str, metrics: Mapping[str, Metrics | Mapping[str, object]]) -> list[str]:
    """Return the names of metrics that have to be the same everywhere, in the order of the first metrics.

    Args:
        method: The method that returned them, for the message.
        metrics: The metrics, by a description of their origin.

    Raises:
        CheckFailedError: The names are not the same.
    """
    first = next(iter(metrics), "")
    names = list(metrics.get(first, {}))
    for where, others in metrics.items():
        if others.keys() != set(names):
            raise CheckFailedError(
                f"{method} did not return metrics of the same names in all batches and on all processes.",
                given=f"{names} {first}, {list(others)} {where}",
                do="Return each metric in every batch; in train_batch, None if a batch has no value for it.",
            )
    return names


def hold(value: Any) -> Any:
    """Return a value with copies of its tensors, so that no later step changes them; do not wait for the device.

    Small tensors stay on their device. Large tensors are on their way to the host: call ``to_host`` before reading
    them.

    Args:
        value: A metric, or lists, tuples and dictionaries of metrics.
    """
    if isinstance(value, Tensor):
        if value.numel() > _MAX_ELEMENTS_ON_DEVICE:
            return value.detach().to("cpu", non_blocking=value.is_cuda, copy=True)
        return value.detach().clone()
    return copy(rebuilt(value, hold)) if isinstance(value, (dict, list, tuple, np.ndarray)) else value


def to_host(value: Any) -> Any:
    """Return a value that ``hold`` returned, with its tensors on the CPU; this waits for the device.

    Args:
        value: The return value of ``hold``.
    """
    if isinstance(value, Tensor):
        if value.numel() > _MAX_ELEMENTS_ON_DEVICE and value.is_pinned():
            torch.cuda.synchronize()  # large tensors are on their way
        return value.detach().cpu()
    return rebuilt(value, to_host)


def on_host(batches: list[Metrics]) -> list[Metrics]:
    """Return the metrics of each batch on the host, with NumPy arrays in place of tensors; scalars are arrays, too.

    Args:
        batches: The return value of ``hold`` for each batch.
    """
    return [{name: to_numpy(value) for name, value in batch.items()} for batch in to_host(batches)]


def to_numpy(value: Any) -> Any:
    """Return a tensor on the CPU as a NumPy array (a scalar as an array of shape ()), and anything else unchanged.

    Args:
        value: A metric.
    """
    if not isinstance(value, Tensor):
        return value
    try:
        return value.detach().numpy()
    except TypeError:  # NumPy has no bfloat16, for example
        return value.detach().float().numpy()


def to_result(value: Any) -> Any:
    """Return a metric that is the result of a reduction, with NumPy in place of a tensor on the CPU.

    A scalar becomes a NumPy scalar rather than an array of shape (). A float becomes ``np.float64``, which is also a
    Python float.

    Args:
        value: The metric.
    """
    if not isinstance(value, Tensor):
        return value
    array: Array = to_numpy(value)
    if array.shape != ():
        return array
    return np.float64(array) if array.dtype.kind == "f" else array[()]


def numbers_of(value: Any) -> Array | None:
    """Return a metric as an array of numbers; None for anything else, such as a string.

    Args:
        value: The metric, on the host.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # a ragged list
        return None
    return array if array.dtype.kind in _NUMERIC_KINDS else None


def number_of(value: Any) -> float | None:
    """Return a metric that is a single number, of Python or NumPy or in an array; None for anything else.

    Args:
        value: The metric, on the host.
    """
    numbers = numbers_of(value)
    return None if numbers is None or numbers.size != 1 else float(numbers.item())


def require_json(value: Any, name: str) -> None:
    """Raise an error for a metric that JSON cannot hold; NaN and infinities are fine.

    Args:
        value: The metric, or containers of metrics.
        name: Its name, for the message.

    Raises:
        ArgumentTypeError: The metric, or something in it, has no counterpart in JSON.
    """
    untyped = value
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = untyped = untyped.tolist()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in untyped):
        items = {f"{name}[{key!r}]": item for key, item in untyped.items()}
    elif isinstance(value, (list, tuple)):
        items = {f"{name}[{index}]": item for index, item in enumerate(untyped)}
    elif value is None or isinstance(value, (bool, int, float, str)):
        return
    else:
        raise ArgumentTypeError(
            f"The metric {name!r} cannot be written as JSON: {type(untyped).__name__} {untyped!r}.",
            do="Return numbers, strings, None, tensors, NumPy arrays, or lists and dictionaries (with string keys).",
        )
    for place, item in items.items():
        require_json(item, place)
