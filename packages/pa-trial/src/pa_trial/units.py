"""Lengths and periods of training, in batches or in epochs."""

from __future__ import annotations

from collections.abc import Container

from typing_extensions import override


class TrainUnit:
    """The base class of ``Batch`` and ``Epoch``: a length or a period of training. Create one of the two instead.

    ``Trainer.fit`` takes lengths (``max_length``) and periods (``validation_period`` and others).

    Args:
        value: As a length, the number of steps. As a period, an int n means every n-th step, and less than 1 every
            step; a container, such as a list or a range, holds the steps themselves, counted from 1.

    Attributes:
        value: The argument.

    Example:
        >>> from pa_trial import Batch, Epoch, TrainUnit
        >>> units: list[TrainUnit] = [Epoch(10), Batch(100), Epoch([1, 2, 4, 8])]
        >>> units[0].value
        10
    """

    def __init__(self, value: int | Container[int]) -> None:
        self.value: int | Container[int] = value

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class Batch(TrainUnit):
    """A number of batches of each process, or the batches after which an event is due.

    ``fit(max_length=Batch(100))`` trains 100 batches on each process; ``validation_period=Batch(100)`` validates after
    every 100th batch, and ``Batch([5, 30, 45])`` after the batches 5, 30 and 45, counted from 1.

    Example:
        >>> Batch(100), Batch([5, 30, 45])
        (Batch(100), Batch([5, 30, 45]))
    """


class Epoch(TrainUnit):
    """A number of epochs, or the epochs after which an event is due.

    ``fit(max_length=Epoch(90))`` trains 90 epochs; ``checkpoint_period=Epoch(1)`` saves after each epoch, and
    ``Epoch(range(10, 100, 10))`` after the epochs 10, 20 and so on, counted from 1.

    Example:
        >>> Epoch(1), Epoch(range(10, 100, 10))
        (Epoch(1), Epoch(range(10, 100, 10)))
    """
