"""The values of one metric, kept small: columns of numbers instead of an object for each value."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pa_core.errors import ConfigurationError
from pa_core.tracking.clock import RunClock

__all__ = ["MetricColumns", "MetricValue", "recordable"]

MetricValue: TypeAlias = float | Tensor


def recordable(name: str, value: object) -> MetricValue:
    """Return the value without its graph and its storage, or refuse it."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.detach().reshape(()).clone()
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise ConfigurationError(
        f"The value for the metric {name!r} cannot be recorded.",
        given=f"{what} of type {getattr(value, 'dtype', type(value).__name__)}",
        expected="a real number, or a tensor with one real element",
        do="Reduce it to one number, or record each of its elements under a name of its own.",
    )


class MetricColumns:
    """The values of one metric and their moments, without a Python object for each."""

    # reading tensors of an accelerator waits for it, so rarely; holding them costs its memory
    _MAX_UNREAD = 512

    def __init__(self) -> None:
        self.latest: MetricValue = float("nan")
        # float, int or the dtype of a tensor; float where several of them were mixed
        self._kind: type[int] | type[float] | torch.dtype | None = None
        self._values = array("d")
        self._unread: dict[int, Tensor] = {}
        self._epochs, self._updates, self._samples = array("q"), array("q"), array("q")
        self._seconds = array("d")

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: MetricValue, clock: RunClock) -> None:
        """Add a value that is recorded now."""
        kind = value.dtype if isinstance(value, Tensor) else type(value)
        self._kind = kind if self._kind in (None, kind) else float
        if isinstance(value, Tensor) and not value.is_cpu:
            self._unread[len(self._values)] = value
            value_now = float("nan")
        else:
            value_now = float(value)
        self._values.append(value_now)
        self._epochs.append(clock.epoch)
        self._updates.append(clock.update)
        self._samples.append(clock.samples)
        self._seconds.append(clock.seconds)
        self.latest = value
        if len(self._unread) >= self._MAX_UNREAD:
            self._read()

    def _read(self) -> None:
        for index, tensor in self._unread.items():
            self._values[index] = float(tensor)
        self._unread.clear()

    def recorded(self) -> Iterator[MetricValue]:
        """Yield the values in the type that they were recorded in."""
        self._read()
        return map(self._restored, self._values)

    def _restored(self, value: float) -> MetricValue:
        if isinstance(self._kind, torch.dtype):
            return torch.tensor(value, dtype=self._kind)
        return int(value) if self._kind is int else value

    def rows(self) -> Iterator[tuple[float, int, int, int, float]]:
        """Yield value, epoch, update, samples and seconds of each record."""
        self._read()
        return zip(self._values, self._epochs, self._updates, self._samples, self._seconds, strict=True)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as names and lists of numbers."""
        self._read()
        kind = self._kind.__name__ if isinstance(self._kind, type) else str(self._kind).removeprefix("torch.")
        return {
            "kind": kind,
            "value": self._values.tolist(),
            "epoch": self._epochs.tolist(),
            "update": self._updates.tolist(),
            "samples": self._samples.tolist(),
            "seconds": self._seconds.tolist(),
        }

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> MetricColumns:
        """Return the columns that ``state_dict`` was taken of."""
        columns = cls()
        names = ("value", "epoch", "update", "samples", "seconds")
        if len({len(state_dict[name]) for name in names}) != 1 or not state_dict["value"]:
            raise ValueError(f"the columns {names} are empty or not equally long")
        columns._kind = _kind_named(state_dict["kind"])
        columns._values.extend(state_dict["value"])
        columns._epochs.extend(state_dict["epoch"])
        columns._updates.extend(state_dict["update"])
        columns._samples.extend(state_dict["samples"])
        columns._seconds.extend(state_dict["seconds"])
        columns.latest = columns._restored(columns._values[-1])
        return columns


def _kind_named(name: str) -> type[int] | type[float] | torch.dtype:
    """Return the Python type or the torch dtype of that name."""
    if name in ("float", "int"):
        return float if name == "float" else int
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no type of a number")
    return dtype
