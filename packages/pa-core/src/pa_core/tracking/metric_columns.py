"""The values of one metric, kept small: columns of numbers instead of an object for each value."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pa_core.tracking.clock import RunClock
from pa_core.tracking.metric_values import Kept, MetricValue, as_number

__all__ = ["MetricColumns"]


# The type of each column, as ``array`` names it.
_COLUMNS = {"value": "d", "epoch": "q", "update": "q", "samples": "q", "seconds": "d"}


class MetricColumns:
    """The values of one metric and their moments, without a Python object for each that is a number."""

    # reading tensors of an accelerator waits for it, so rarely; holding them costs its memory
    _MAX_UNREAD = 512

    def __init__(self) -> None:
        self.latest: Any = float("nan")
        # by index: what is not a number, or not exactly one that the column can hold
        self._kept: dict[int, Any] = {}
        # float, int or the dtype of a tensor; float where several of them were mixed
        self._kind: type[int] | type[float] | torch.dtype | None = None
        self._unread: dict[int, Tensor] = {}
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in _COLUMNS.items()}
        self._values: array[float] = self._columns["value"]

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: MetricValue | Kept, clock: RunClock) -> None:
        """Add a value that is recorded now."""
        number = float("nan")
        if isinstance(value, Kept):
            self._kept[len(self._values)] = self.latest = value.value
        else:
            self.latest = value
            kind = value.dtype if isinstance(value, Tensor) else type(value)
            self._kind = kind if self._kind in (None, kind) else float
            if isinstance(value, Tensor) and not value.is_cpu:
                self._unread[len(self._values)] = value
            else:
                number = float(value)
        row = (number, clock.epoch, clock.update, clock.samples, clock.seconds)
        for column, cell in zip(self._columns.values(), row, strict=True):
            column.append(cell)
        if len(self._unread) >= self._MAX_UNREAD:
            self._read()

    def _read(self) -> None:
        for index, tensor in self._unread.items():
            self._values[index] = float(tensor)
        self._unread.clear()

    def recorded(self) -> Iterator[Any]:
        """Yield the values as they were recorded."""
        self._read()
        return map(self._recorded_at, range(len(self._values)))

    def _recorded_at(self, index: int) -> Any:
        if index in self._kept:
            return self._kept[index]
        value = self._values[index]
        if isinstance(self._kind, torch.dtype):
            return torch.tensor(value, dtype=self._kind)
        return int(value) if self._kind is int else value

    def rows(self) -> Iterator[tuple[float, int, int, int, float]]:
        """Yield value, epoch, update, samples and seconds of each record whose value is a number."""
        self._read()
        for index, (value, *moment) in enumerate(zip(*self._columns.values(), strict=True)):
            number = as_number(self._kept[index]) if index in self._kept else value
            if number is not None:
                epoch, update, samples, seconds = moment
                yield number, epoch, update, samples, seconds

    def state_dict(self) -> dict[str, Any]:
        """Return everything as names and lists of numbers, with the values that are kept as they are."""
        self._read()
        kind = str(self._kind).removeprefix("torch.") if isinstance(self._kind, torch.dtype) else _name_of(self._kind)
        return {
            "kind": kind,
            **{name: column.tolist() for name, column in self._columns.items()},
            **({"kept": [[index, value] for index, value in self._kept.items()]} if self._kept else {}),
        }

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> MetricColumns:
        """Return the columns that ``state_dict`` was taken of."""
        columns = cls()
        if len({len(state_dict[name]) for name in _COLUMNS}) != 1 or not state_dict["value"]:
            raise ValueError(f"the columns {tuple(_COLUMNS)} are empty or not equally long")
        columns._kind = _kind_named(state_dict["kind"])
        for name, column in columns._columns.items():
            column.extend(state_dict[name])
        columns._kept = {range(len(columns))[index]: value for index, value in state_dict.get("kept", ())}
        columns.latest = columns._recorded_at(len(columns) - 1)
        return columns


def _name_of(kind: type[int] | type[float] | None) -> str:
    return "float" if kind is None else kind.__name__


def _kind_named(name: str) -> type[int] | type[float] | torch.dtype:
    """Return the Python type or the torch dtype of that name."""
    if name in ("float", "int"):
        return float if name == "float" else int
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not the type of a number")
    return dtype
