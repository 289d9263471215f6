"""The history that a trainer uses by default."""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from typing_extensions import override

from pa_core.errors import CheckpointError, MetricNotFoundError
from pa_core.tracking.metric_columns import MetricColumns, MetricValue, recordable
from pa_core.tracking.run_history import RunHistory

__all__ = ["InMemoryRunHistory", "MetricRecord"]


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """One value of a metric and the moment at which it was recorded.

    Attributes:
        metric: The full name, with the prefix that was set.
        value: The value.
        epoch: The epoch, counted from 1.
        update: Optimizer updates that were complete.
        samples: Training samples that had gone into them.
        seconds: Seconds since the run started.

    Example:
        >>> history = InMemoryRunHistory()
        >>> history.update_metric("accuracy", 0.5)
        >>> record = history.records()[0]
        >>> record.metric, record.value, record.epoch, record.update
        ('accuracy', 0.5, 1, 0)
    """

    metric: str
    value: float
    epoch: int
    update: int
    samples: int
    seconds: float


class InMemoryRunHistory(RunHistory):
    """A history that keeps every value in memory, at about 50 bytes a value.

    A tensor is recorded as it is at that moment: nothing of its graph or of the tensor that it was a part of
    is kept, and a later change of it changes nothing here. A tensor on an accelerator is not waited for when
    it is recorded, but when its value is first read.

    Example:
        >>> history = InMemoryRunHistory()
        >>> history.set_metric_name_prefix("ema_")
        >>> history.update_metric("accuracy", 0.5)
        >>> history.update_metric("accuracy", 0.75)
        >>> list(history.get_metric_names()), list(history.get_metric_values("ema_accuracy"))
        (['ema_accuracy'], [0.5, 0.75])
        >>> {column: history.to_dict()[column] for column in ("metric", "value", "epoch")}
        {'metric': ['ema_accuracy', 'ema_accuracy'], 'value': [0.5, 0.75], 'epoch': [1, 1]}
    """

    _prefix = ""

    @cached_property
    def _metrics(self) -> dict[str, MetricColumns]:
        return {}

    def _columns_of(self, metric_name: str) -> MetricColumns:
        if metric_name not in self._metrics:
            raise MetricNotFoundError(
                f"The metric {metric_name!r} was never recorded.",
                given=repr(metric_name),
                expected=f"one of: {', '.join(self._metrics) or 'nothing was recorded yet'}",
                do="Correct the name (a prefix is part of it), or record it with update_metric first.",
            )
        return self._metrics[metric_name]

    @override
    def get_metric_names(self) -> KeysView[str]:
        """Return the names of all metrics, as a set in the order in which they were first recorded."""
        return dict.fromkeys(self._metrics).keys()

    @override
    def get_metric_values(self, metric_name: str) -> list[MetricValue]:
        """Return all values of a metric: numbers as numbers, tensors as tensors on the CPU.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        return list(self._columns_of(metric_name).recorded())

    @override
    def count_metric_values(self, metric_name: str) -> int:
        """Return how many values of a metric were recorded.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        return len(self._columns_of(metric_name))

    @override
    def get_latest_metric(self, metric_name: str) -> MetricValue:
        """Return the last value of a metric as it was recorded, a tensor on its own device.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        return self._columns_of(metric_name).latest

    @override
    def update_metric(self, metric_name: str, metric_value: MetricValue) -> None:
        """Record a value at the present reading of the clock.

        Raises:
            ConfigurationError: The value is neither a real number nor a tensor with one real element.
        """
        name = self._prefix + metric_name
        value = recordable(name, metric_value)
        columns = self._metrics.get(name)
        if columns is None:
            columns = self._metrics[name] = MetricColumns()
        columns.append(value, self.clock)

    @property
    @override
    def metric_name_prefix(self) -> str:
        return self._prefix

    @override
    def set_metric_name_prefix(self, prefix: str = "") -> None:
        self._prefix = prefix

    @override
    def reset(self) -> None:
        """Forget every recorded value and go back to the first epoch; a prefix that was set stays."""
        self._metrics.clear()
        self.clock.reset()

    @override
    def delete_metric(self, metric_name: str) -> None:
        """Forget all values of one metric.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        self._columns_of(metric_name)
        del self._metrics[metric_name]

    def records(self, metric_name: str | None = None) -> list[MetricRecord]:
        """Return values with their moments: metric by metric, each in the order of recording.

        Args:
            metric_name: The full name of the only metric to return; None returns all.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        names = self._metrics if metric_name is None else (metric_name,)
        return [MetricRecord(name, *row) for name in names for row in self._columns_of(name).rows()]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return every value with its moment as columns of equal length, for ``pandas.DataFrame(...)``.

        The columns are the attributes of ``MetricRecord``.
        """
        names = [entry.name for entry in fields(MetricRecord)]
        table: dict[str, list[Any]] = {name: [] for name in names}
        for metric, columns in self._metrics.items():
            for row in columns.rows():
                for name, item in zip(names, (metric, *row), strict=True):
                    table[name].append(item)
        return table

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return all values, the clock and the prefix, ready for JSON."""
        return {
            **super().state_dict(),
            "metric_name_prefix": self._prefix,
            "metrics": {name: columns.state_dict() for name, columns in self._metrics.items()},
        }

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace everything by what ``state_dict`` returned; tensors come back on the CPU.

        Raises:
            CheckpointError: This is no such state; what was recorded here is left as it was.
        """
        try:
            states = state_dict["metrics"].items()
            metrics = {name: MetricColumns.from_state_dict(columns) for name, columns in states}
            prefix = str(state_dict["metric_name_prefix"])
            super().load_state_dict(state_dict)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "This is not the state of a run history.",
                given=f"a {type(state_dict).__name__} with which {type(error).__name__} came up: {error}",
                expected="what InMemoryRunHistory.state_dict returned",
                do="Resume from a training state that was written whole.",
            ) from error
        self._metrics.clear()
        self._metrics.update(metrics)
        self._prefix = prefix
