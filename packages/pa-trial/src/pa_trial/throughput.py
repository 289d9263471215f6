"""How many records a workload trains, and how long it takes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from pa_core import ArgumentTypeError, ConfigurationError
from pa_trial.trial import PyTorchTrial

__all__ = ["Throughput"]


class Throughput:
    """Counts the records of the batches of a workload, as ``get_batch_length`` tells them, and its seconds.

    Batches of a kind that the stock ``get_batch_length`` cannot count do not fail: they count 0.

    Args:
        trial: The trial.
    """

    def __init__(self, trial: PyTorchTrial[Any]) -> None:
        own = trial.get_batch_length
        self._count = own
        self._may_fail = getattr(own, "__func__", own) is PyTorchTrial.get_batch_length
        self._is_known = True
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """The time since the workload began."""
        return perf_counter() - self._began

    def start(self) -> None:
        """Begin a workload."""
        self._began = perf_counter()

    def records_of(self, batch: Any) -> int:
        """Return the number of records of a batch; 0 if it cannot be told.

        Args:
            batch: What the training loader yielded.
        """
        if not self._is_known:
            return 0
        try:
            return self._count(batch)
        except (ArgumentTypeError, ConfigurationError):
            if not self._may_fail:
                raise
            self._is_known = False
            return 0
