"""Lengths and periods of training, in batches or in epochs."""

from __future__ import annotations

from collections.abc import Container

from typing_extensions import override


class TrainUnit:
    """The base class of ``Batch`` and ``Epoch``: a length or a period of training.

    Args:
        value: As a length, the number of steps. As a period, an int n means every n-th step, and less than 1 every
            step; a container, such as a list or a range, holds the steps themselves, counted from 1.

    Attributes:
        value: The argument.
    """

    def __init__(self, value: int | Container[int]) -> None:
        self.value: int | Container[int] = value

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class Batch(TrainUnit):
    """A number of batches of each process, or the batches after which an event is due.

    Example:
        >>> Batch(100), Batch([5, 30, 45])
        (Batch(100), Batch([5, 30, 45]))
    """


class Epoch(TrainUnit):
    """A number of epochs, or the epochs after which an event is due.

    Example:
        >>> Epoch(1), Epoch(range(10, 100, 10))
        (Epoch(1), Epoch(range(10, 100, 10)))
    """
