"""Moves batches to the device: tensors, NumPy arrays, and anything else with a ``to`` method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pa_trial.types import rebuilt
from pa_trial.user_warnings import warn_user

_DataT = TypeVar("_DataT")
_KINDS_OF_NUMBERS = frozenset("fciub")


class DeviceMover:
    """Moves data to a device, and warns once about each type that cannot be moved.

    Args:
        device: The device to move data to.
        warned_types: The types that already had a warning, to which more are added.

    Attributes:
        device: As passed.

    Example:
        >>> move = DeviceMover("cpu")
        >>> move({"image": torch.zeros(2)})
        {'image': tensor([0., 0.])}
    """

    def __init__(self, device: torch.device | str | int, warned_types: set[type] | None = None) -> None:
        self.device: torch.device = torch.device(device)
        self._warned_types: set[type] = set() if warned_types is None else warned_types
        # A copy from memory that is not pinned ends before the call returns, so it is always safe.
        self._non_blocking: bool = self.device.type == "cuda"

    def __call__(self, data: _DataT) -> _DataT:
        """Return the data on the device; see ``to_device``.

        Args:
            data: A batch, or a part of a batch.
        """
        batch: Any = data
        kind = batch.__class__
        values = batch.values() if kind is dict else batch if kind in (list, tuple) else [batch]
        # Most batches consist of tensors on the device only.
        if [value for value in values if value.__class__ is not Tensor or value.device != self.device]:
            batch = self._move(batch)
        return cast("_DataT", batch)

    def _move(self, value: Any) -> Any:
        kind: type[Any] = value.__class__
        if issubclass(kind, Tensor):
            return value.to(self.device, non_blocking=self._non_blocking)
        if callable(getattr(value, "to", None)):
            return self._move_by_method(value)
        if issubclass(kind, Mapping | list | tuple):
            return rebuilt(value, self._move)
        tensor = _tensor_of(value)
        if tensor is not None:
            return tensor.to(self.device, non_blocking=self._non_blocking)
        self._warn(kind)
        return value

    def _move_by_method(self, value: Any) -> Any:
        if not self._non_blocking:
            return value.to(self.device)
        try:
            return value.to(self.device, non_blocking=True)
        except TypeError:  # the methods of many libraries take only the device
            return value.to(self.device)

    def _warn(self, kind: type) -> None:
        if kind in self._warned_types:
            return
        self._warned_types.add(kind)
        warn_user(
            f"Data of type {kind.__name__} cannot be moved to {self.device}, so they are not moved. Give the type a "
            "method to(device), leave such data out of the batch, or move batches yourself after "
            "context.experimental.disable_auto_to_device()."
        )


def to_device(data: _DataT, device: torch.device | str | int, warned_types: set[type] | None = None) -> _DataT:
    """Move data to a device, in any nesting of dicts, lists and tuples.

    In a trial, call ``context.to_device`` instead, which does the same for the device of the trial; batches from the
    loaders are already on it. Tensors are moved, NumPy arrays of numbers or booleans become tensors on the device, and
    other objects are moved by their ``to`` method. Everything else is returned unchanged, with a warning for each type.

    Args:
        data: A batch, or a part of a batch.
        device: The device to move it to: a ``torch.device``, a name such as "cuda:0", or the index of a GPU.
        warned_types: Types for which no further warning is given. The call adds the types for which it has given a
            warning. Pass the same set to each call, so that each type causes only one warning. By default, each call
            gives its own warnings.

    Returns:
        Data of the same structure; the same object if nothing has to be moved.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from pa_trial import to_device
        >>> to_device([torch.zeros(2), np.ones(2)], "cpu")
        [tensor([0., 0.]), tensor([1., 1.], dtype=torch.float64)]
    """
    return DeviceMover(device, warned_types)(data)


def _tensor_of(value: object) -> Tensor | None:
    """Return a tensor that shares the memory of an array of numbers, if torch supports it; None for anything else."""
    if not isinstance(value, np.ndarray):
        return None
    array = cast("NDArray[Any]", value)
    if array.dtype.kind not in _KINDS_OF_NUMBERS:
        return None
    if not array.flags.writeable or not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    try:
        return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it
    except TypeError:  # numbers of a size that torch does not have
        return None
