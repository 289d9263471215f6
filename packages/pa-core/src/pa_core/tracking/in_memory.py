"""The history that a trainer uses by default."""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from typing_extensions import override

from pa_core.errors import CheckpointError, MetricNotFoundError
from pa_core.tracking.metric_columns import MetricColumns
from pa_core.tracking.metric_values import Kept, as_number, numbers_of_mapping, recordable
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
    """A history that keeps every value in memory, at about 50 bytes a number.

    A value is a number, a string, a tensor or an array, or a list, a tuple, a set or a dictionary of such values, and
    is given back as it was recorded. The numbers in a dictionary that is recorded as ``name`` are also found under
    ``name_key``. What is not a number is left out of ``records``, and so of plots and tables.

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
        >>> history.update_metric("test", {"f1": 0.25, "worst": "cat"})
        >>> history.get_latest_metric("ema_test"), history.get_latest_metric("ema_test_f1")
        ({'f1': 0.25, 'worst': 'cat'}, 0.25)
        >>> history
        <InMemoryRunHistory in epoch 1: ema_accuracy=0.75, ema_test_f1=0.25>
    """

    _prefix = ""

    @cached_property
    def _metrics(self) -> dict[str, MetricColumns]:
        return {}

    @cached_property
    def _entries(self) -> dict[str, dict[str, MetricColumns]]:
        """By the metric that is a mapping: its numbers, under their full names."""
        return {}

    @override
    def __repr__(self) -> str:
        numbers = {name: as_number(self.get_latest_metric(name)) for name in sorted(self.get_metric_names())}
        latest = ", ".join(f"{name}={number:.6g}" for name, number in numbers.items() if number is not None)
        return f"<{type(self).__name__} in epoch {self.current_epoch}: {latest or 'nothing recorded'}>"

    def _find(self, metric_name: str) -> MetricColumns | None:
        """The values under a name; one that was recorded under it hides the entry of a mapping."""
        found = self._metrics.get(metric_name)
        if found is None:
            of_mappings = (entries[metric_name] for entries in self._entries.values() if metric_name in entries)
            found = next(of_mappings, None)
        return found

    def _columns_of(self, metric_name: str) -> MetricColumns:
        columns = self._find(metric_name)
        if columns is None:
            names = ", ".join(self.get_metric_names())
            raise MetricNotFoundError(
                f"The metric {metric_name!r} was never recorded. Recorded were: {names or 'none so far'}. Correct the "
                "name (a prefix is part of it), or record it with update_metric first."
            )
        return columns

    @override
    def get_metric_names(self) -> KeysView[str]:
        """Return the names of all metrics, as a set in the order in which they were first recorded."""
        return {full_name: None for name in self._metrics for full_name in (name, *self._entries.get(name, ()))}.keys()

    @override
    def get_metric_values(self, metric_name: str) -> list[Any]:
        """Return all values of a metric as they were recorded, numbers on the CPU; none if it never was."""
        columns = self._find(metric_name)
        return [] if columns is None else list(columns.recorded())

    @override
    def count_metric_values(self, metric_name: str) -> int:
        """Return how many values of a metric were recorded."""
        columns = self._find(metric_name)
        return 0 if columns is None else len(columns)

    @override
    def get_latest_metric(self, metric_name: str) -> Any:
        """Return the last value of a metric as it was recorded, a tensor on its own device.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        return self._columns_of(metric_name).latest

    @override
    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a value at the present reading of the clock, and the numbers in a mapping under ``name_key`` too.

        Raises:
            ConfigurationError: The value, or something in it, is not plain.
        """
        name = self._prefix + metric_name
        value = metric_value if type(metric_value) is float else recordable(name, metric_value)
        columns = self._metrics.get(name)
        if columns is None:
            columns = self._metrics[name] = MetricColumns()
        columns.append(value, self.clock)
        if isinstance(value, Kept):
            self._record_entries(name, value.value)

    def _record_entries(self, name: str, value: object) -> None:
        for full_name, number in numbers_of_mapping(name, value):
            columns = self._entries.setdefault(name, {}).setdefault(full_name, MetricColumns())
            columns.append(recordable(full_name, number), self.clock)

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
        self._entries.clear()
        self.clock.reset()

    @override
    def delete_metric(self, metric_name: str) -> None:
        """Forget all values of one metric, and the values that its mappings have under separate names.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        self._columns_of(metric_name)
        if self._metrics.pop(metric_name, None) is not None:
            self._entries.pop(metric_name, None)
        else:
            for entries in self._entries.values():
                entries.pop(metric_name, None)

    def records(self, metric_name: str | None = None) -> list[MetricRecord]:
        """Return the values that are numbers with their moments: metric by metric, in the order of recording.

        Args:
            metric_name: The full name of the only metric to return; None returns all.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        names = self.get_metric_names() if metric_name is None else (metric_name,)
        return [MetricRecord(name, *row) for name in names for row in self._columns_of(name).rows()]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return every number with its moment as columns of equal length, for ``pandas.DataFrame(...)``.

        The columns are the attributes of ``MetricRecord``.
        """
        records = self.records()
        return {entry.name: [getattr(record, entry.name) for record in records] for entry in fields(MetricRecord)}

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return all values, the clock and the prefix: ready for JSON where all values are numbers."""
        entries = {name: _states(entries) for name, entries in self._entries.items()}
        return {
            **super().state_dict(),
            "metric_name_prefix": self._prefix,
            "metrics": _states(self._metrics),
            **({"entries": entries} if entries else {}),
        }

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace everything by what ``state_dict`` returned; tensors come back on the CPU.

        Raises:
            CheckpointError: This is not the state of a history; what was recorded here is kept.
        """
        try:
            metrics = _from_states(state_dict["metrics"])
            entries = {name: _from_states(states) for name, states in state_dict.get("entries", {}).items()}
            prefix = str(state_dict["metric_name_prefix"])
            super().load_state_dict(state_dict)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"This is not the state of a run history: loading it raised {type(error).__name__}: {error}. Resume "
                "from a training state that was written whole."
            ) from error
        self._metrics.clear()
        self._metrics.update(metrics)
        self._entries.clear()
        self._entries.update(entries)
        self._prefix = prefix


def _states(metrics: Mapping[str, MetricColumns]) -> dict[str, dict[str, Any]]:
    return {name: columns.state_dict() for name, columns in metrics.items()}


def _from_states(states: Mapping[str, Mapping[str, Any]]) -> dict[str, MetricColumns]:
    return {name: MetricColumns.from_state_dict(state) for name, state in states.items()}
