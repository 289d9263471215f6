"""What a trainer expects of the place where metrics are recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pa_core.tracking.clock import RunClock

__all__ = ["RunHistory"]


class RunHistory(ABC):
    """Where a trainer and its callbacks record metrics, and read them back.

    A custom history implements the abstract methods. The count of the epochs and the clock are here, and work even if
    ``super().__init__()`` is never called.

    Example:
        >>> from pa_core.tracking import RunHistory
        >>> class LastValues(RunHistory):
        ...     def __init__(self):
        ...         self.values, self.prefix = {}, ""
        ...     def get_metric_names(self):
        ...         return set(self.values)
        ...     def get_metric_values(self, metric_name):
        ...         return [self.values[metric_name]]
        ...     def get_latest_metric(self, metric_name):
        ...         return self.values[metric_name]
        ...     def update_metric(self, metric_name, metric_value):
        ...         self.values[self.prefix + metric_name] = metric_value
        ...     @property
        ...     def metric_name_prefix(self):
        ...         return self.prefix
        ...     def set_metric_name_prefix(self, prefix=""):
        ...         self.prefix = prefix
        ...     def reset(self):
        ...         self.values = {}
        >>> history = LastValues()
        >>> history.update_metric("accuracy", 0.5)
        >>> history.get_latest_metric("accuracy"), history.current_epoch
        (0.5, 1)
    """

    @cached_property
    def clock(self) -> RunClock:
        """How far the run has come; the trainer advances it."""
        return RunClock()

    @property
    def current_epoch(self) -> int:
        """The number of the current epoch, counted from 1."""
        return self.clock.epoch

    def increment_epoch(self) -> None:
        """Begin the next epoch; the trainer calls this when all events of an epoch are over."""
        self._increment_epoch()

    def _increment_epoch(self) -> None:
        """The name that histories written for pytorch-accelerated override."""
        self.clock.epoch += 1

    @abstractmethod
    def get_metric_names(self) -> Iterable[str]:
        """Return the names of all metrics that were recorded, each once."""

    @abstractmethod
    def get_metric_values(self, metric_name: str) -> Iterable[Any]:
        """Return all values of a metric, in the order in which they were recorded; none if it never was.

        Args:
            metric_name: The full name, with the prefix it was recorded under.
        """

    def count_metric_values(self, metric_name: str) -> int:
        """Return how many values of a metric were recorded, by default by iterating over them.

        Override it where the history can count faster.

        Args:
            metric_name: The full name, with the prefix it was recorded under.
        """
        return sum(1 for _ in self.get_metric_values(metric_name))

    @abstractmethod
    def get_latest_metric(self, metric_name: str) -> Any:
        """Return the value of a metric that was recorded last.

        Args:
            metric_name: The full name, with the prefix it was recorded under.
        """

    @abstractmethod
    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a value.

        Args:
            metric_name: The name, without prefix.
            metric_value: Any plain value. Plots, tables, trackers and callbacks that watch a metric use those that
                are numbers, or tensors with one element, and leave out the rest.
        """

    @property
    @abstractmethod
    def metric_name_prefix(self) -> str:
        """What is put before the name of each metric that is recorded."""

    @abstractmethod
    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Set what is put before the name of each metric that is recorded from now on.

        Args:
            prefix: The prefix; the default takes it away.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget every recorded value."""

    def delete_metric(self, metric_name: str) -> None:
        """Forget all values of one metric.

        Args:
            metric_name: The full name, with the prefix it was recorded under.

        Raises:
            NotImplementedError: This kind of history cannot delete.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot delete {metric_name!r}: override delete_metric to allow it."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues from, ready for JSON: here the clock.

        Override this and ``load_state_dict`` where recorded values are to survive an interruption too.
        """
        return {"clock": self.clock.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""
        self.clock.load_state_dict(state_dict["clock"])
