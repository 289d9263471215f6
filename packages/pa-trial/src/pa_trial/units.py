"""Lengths and periods of training, in batches or in epochs."""

from __future__ import annotations

from collections.abc import Container

from typing_extensions import override


class TrainUnit:
    """The base class of ``Batch`` and ``Epoch``: a length or a period of training.

    Use it in annotations, and create a ``Batch`` or an ``Epoch``. ``Trainer.fit`` accepts a length (``max_length``) and
    periods (``validation_period``, ``checkpoint_period`` and ``reporting_period``).

    Args:
        value: For a length, the number of batches or epochs. For a period, an int n means after every n-th batch or
            epoch, and an int less than 1 means after each; a container, such as a list or a range, holds the numbers of
            the batches or epochs, counted from 1.

    Attributes:
        value: As passed.

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
    """A number of batches on each process, or the batches after which an event is due.

    Pass it to ``Trainer.fit``. ``fit(max_length=Batch(100))`` trains 100 batches on each process.
    ``validation_period=Batch(100)`` validates after every 100th batch, and ``Batch([5, 30, 45])`` after the batches 5,
    30 and 45, counted from 1 over the whole training. With ``init(samples_per_update=...)``, a batch is an update.
    ``Epoch`` counts epochs.

    Args:
        value: The number of batches; or, for periods only, a container of batch numbers. A period less than 1 means
            after each batch.

    Attributes:
        value: As passed.

    Example:
        >>> from pa_trial import Batch
        >>> def train(trainer):
        ...     trainer.fit(max_length=Batch(1000), validation_period=Batch(100), checkpoint_period=Batch([250, 750]))
        >>> Batch(100).value, Batch([250, 750])
        (100, Batch([250, 750]))
    """


class Epoch(TrainUnit):
    """A number of epochs, or the epochs after which an event is due.

    Pass it to ``Trainer.fit``. ``fit(max_length=Epoch(90))`` trains 90 epochs. ``checkpoint_period=Epoch(1)`` saves
    after each epoch, and ``Epoch(range(10, 100, 10))`` after the epochs 10, 20 and so on, counted from 1. In an epoch,
    each batch of the training loader is used once. ``Batch`` counts batches.

    Args:
        value: The number of epochs; or, for periods only, a container of epoch numbers. A period less than 1 means
            after each epoch.

    Attributes:
        value: As passed.

    Example:
        >>> from pa_trial import Epoch
        >>> def train(trainer):
        ...     trainer.fit(max_length=Epoch(90), checkpoint_period=Epoch(range(10, 100, 10)))
        >>> Epoch(1).value, Epoch(range(10, 100, 10))
        (1, Epoch(range(10, 100, 10)))
    """
