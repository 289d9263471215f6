"""The metrics that a run records, as a history and as columns, and the clock that they are recorded by."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Generator, Iterable, KeysView, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from torch import Tensor
from typing_extensions import override

from pa_core.errors import CheckpointError, MetricNotFoundError
from pa_core.tracking.metric_values import as_number, numbers_of_mapping, recordable

INTERMEDIATE_PREFIX = "intermediate_"
"""What is recorded in an evaluation within a training epoch has it, so that other names have one value an epoch."""


class RunClock:
    """How far a run has come, in each of the units that a metric can be plotted over.

    The trainer advances it; code that records a metric reads it. Time runs from the moment when the clock was made or
    last reset, without the spans between ``stop`` and ``start``.

    Attributes:
        epoch: The current epoch, counted from 1.
        update: Optimizer updates that are complete.
        samples: Training samples of all processes that went into them.

    Example:
        >>> clock = RunClock()
        >>> clock.update += 1
        >>> clock.samples += 32
        >>> clock
        RunClock(epoch=1, update=1, samples=32)
        >>> 0 <= clock.seconds < 60
        True
    """

    epoch: int
    update: int
    samples: int

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Go back to the beginning of a run, with the time running."""
        self.epoch, self.update, self.samples = 1, 0, 0
        self._seconds_before = 0.0
        self._started_at: float | None = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds that have passed, on a clock that is never set back."""
        running = 0.0 if self._started_at is None else time.monotonic() - self._started_at
        return self._seconds_before + running

    def stop(self) -> None:
        """Let no more time pass; does nothing when stopped already."""
        self._seconds_before = self.seconds
        self._started_at = None

    def start(self) -> None:
        """Start or restart the clock; does nothing when it is running."""
        if self._started_at is None:
            self._started_at = time.monotonic()

    def state_dict(self) -> dict[str, float]:
        """Return the readings."""
        return {name: getattr(self, name) for name in _MOMENT}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the readings that ``state_dict`` returned; a clock that runs keeps running."""
        epoch, update, samples = (int(state_dict[unit]) for unit in ("epoch", "update", "samples"))
        self._seconds_before = float(state_dict["seconds"])
        self.epoch, self.update, self.samples = epoch, update, samples
        if self._started_at is not None:
            self._started_at = time.monotonic()

    @override
    def __repr__(self) -> str:
        return f"RunClock(epoch={self.epoch}, update={self.update}, samples={self.samples})"


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
        ...     def get_latest_metric(self, metric_name, default=...):
        ...         return self.values[metric_name] if default is ... else self.values.get(metric_name, default)
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
    def get_latest_metric(self, metric_name: str, default: Any = ...) -> Any:
        """Return the value of a metric that was recorded last.

        Args:
            metric_name: The full name, with the prefix it was recorded under.
            default: What to return if it was never recorded, which is an error without a default.
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
    """A history that keeps every value in memory, at about 70 bytes a number.

    A value is a number, a string, a tensor or an array, or a list, a tuple, a set or a dictionary of such values. The
    numbers in a dictionary that is recorded as ``name`` are also recorded as ``name_key``. What is not a number is left
    out of ``records``, and so of plots and tables.

    A tensor is recorded as it is at that moment: nothing of its graph or of the tensor that it was a part of
    is kept, and a later change of it changes nothing here. The latest value is given back as it was recorded; in the
    list of all values, and after a resume, a scalar tensor is a plain number. A tensor on an accelerator is not waited
    for when it is recorded, but when its value is first read.

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
    def _metrics(self) -> dict[str, _Series]:
        return {}

    @override
    def __repr__(self) -> str:
        numbers = {name: as_number(self.get_latest_metric(name)) for name in sorted(self.get_metric_names())}
        latest = ", ".join(f"{name}={number:.6g}" for name, number in numbers.items() if number is not None)
        return f"<{type(self).__name__} in epoch {self.current_epoch}: {latest or 'nothing recorded'}>"

    def _series_of(self, metric_name: str) -> _Series:
        if metric_name not in self._metrics:
            raise MetricNotFoundError(
                f"The metric {metric_name!r} was never recorded. Recorded were: "
                f"{', '.join(self._metrics) or 'none so far'}. Correct the name (a prefix is part of it), or record it "
                "with update_metric first."
            )
        return self._metrics[metric_name]

    @override
    def get_metric_names(self) -> KeysView[str]:
        """Return the names of all metrics, as a set in the order in which they were first recorded."""
        return dict.fromkeys(self._metrics).keys()

    @override
    def get_metric_values(self, metric_name: str) -> list[Any]:
        """Return all values of a metric, scalar tensors as plain numbers; none if it never was recorded."""
        return list(self._metrics[metric_name].read()) if metric_name in self._metrics else []

    @override
    def count_metric_values(self, metric_name: str) -> int:
        """Return how many values of a metric were recorded."""
        return len(self._metrics[metric_name].values) if metric_name in self._metrics else 0

    @override
    def get_latest_metric(self, metric_name: str, default: Any = ...) -> Any:
        """Return the last value of a metric as it was recorded, a tensor on its own device.

        Args:
            metric_name: The full name, with the prefix it was recorded under.
            default: What to return if it was never recorded.

        Raises:
            MetricNotFoundError: It was never recorded, and there is no default.
        """
        if default is not ... and metric_name not in self._metrics:
            return default
        return self._series_of(metric_name).latest

    @override
    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a value at the present reading of the clock, and the numbers in a mapping under ``name_key`` too.

        Raises:
            ConfigurationError: The value, or something in it, is not plain.
        """
        name = self._prefix + metric_name
        value = metric_value if type(metric_value) is float else recordable(name, metric_value)
        for full_name, number in ((name, value), *numbers_of_mapping(name, value)):
            self._metrics.setdefault(full_name, _Series()).append(number, self.clock)

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
        self._series_of(metric_name)
        del self._metrics[metric_name]

    def records(self, metric_name: str | None = None) -> list[MetricRecord]:
        """Return the values that are numbers with their moments: metric by metric, in the order of recording.

        Args:
            metric_name: The full name of the only metric to return; None returns all.

        Raises:
            MetricNotFoundError: It was never recorded.
        """
        names = self.get_metric_names() if metric_name is None else (metric_name,)
        return [record for name in names for record in self._series_of(name).records(name)]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return every number with its moment as columns of equal length, for ``pandas.DataFrame(...)``.

        The columns are the attributes of ``MetricRecord``.
        """
        records = self.records()
        return {entry.name: [getattr(record, entry.name) for record in records] for entry in fields(MetricRecord)}

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return all values, the clock and the prefix: ready for JSON where all values are numbers."""
        metrics = {name: series.state_dict() for name, series in self._metrics.items()}
        return {**super().state_dict(), "metric_name_prefix": self._prefix, "metrics": metrics}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace everything by what ``state_dict`` returned; tensors come back on the CPU.

        Raises:
            CheckpointError: This is not the state of a history; what was recorded here is kept.
        """
        try:
            # Earlier states hold the numbers of mappings apart.
            states = [state_dict["metrics"], *state_dict.get("entries", {}).values()]
            metrics = {name: _Series.of(state) for group in reversed(states) for name, state in group.items()}
            prefix = str(state_dict["metric_name_prefix"])
            super().load_state_dict(state_dict)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"This is not the state of a run history: loading it raised {type(error).__name__}: {error}. Resume "
                "from a training state that was written whole."
            ) from error
        self._metrics.clear()
        self._metrics.update(metrics)
        self._prefix = prefix


@contextmanager
def recording_with_prefix(history: RunHistory, prefix: str) -> Generator[None]:
    """Within the context, put a prefix before the names of metrics, after the one that is there already.

    Args:
        history: Where the metrics are recorded.
        prefix: What to put before their names.

    Example:
        >>> history = InMemoryRunHistory()
        >>> with recording_with_prefix(history, INTERMEDIATE_PREFIX):
        ...     history.update_metric("eval_loss_epoch", 0.5)
        >>> list(history.get_metric_names())
        ['intermediate_eval_loss_epoch']
    """
    before = history.metric_name_prefix
    history.set_metric_name_prefix(before + prefix)
    try:
        yield
    finally:
        history.set_metric_name_prefix(before)


class UpdatedMetrics:
    """Which metrics were updated since they were taken last, or since this was made.

    Args:
        history: The history.

    Example:
        >>> history = InMemoryRunHistory()
        >>> history.update_metric("accuracy", 0.5)
        >>> updated = UpdatedMetrics(history)
        >>> history.update_metric("evaluation_loss", 0.25)
        >>> updated.take(history), updated.take(history)
        ({'evaluation_loss': 0.25}, {})
    """

    def __init__(self, history: RunHistory) -> None:
        self._counts = _count_metrics(history)

    def take(self, history: RunHistory, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, float]:
        """Return by name the latest values of the wanted metrics, of those that are numbers."""
        counts = _count_metrics(history)
        updated = {name: n for name, n in counts.items() if n != self._counts.get(name, 0) and wanted(name)}
        self._counts.update(updated)
        numbers = {name: as_number(history.get_latest_metric(name)) for name in updated}
        return {name: number for name, number in numbers.items() if number is not None}


def _count_metrics(history: RunHistory) -> dict[str, int]:
    return {name: history.count_metric_values(name) for name in history.get_metric_names()}


def values_with_epochs(history: RunHistory, metric_name: str) -> list[tuple[float, int]]:
    """Return the numbers of a metric with their epochs, which are 0 where the history does not know them."""
    if isinstance(history, InMemoryRunHistory):
        return [(record.value, record.epoch) for record in history.records(metric_name)]
    numbers = map(as_number, history.get_metric_values(metric_name))
    return [(number, 0) for number in numbers if number is not None]


# The type of each column, as ``array`` names it.
_MOMENT = {"epoch": "q", "update": "q", "samples": "q", "seconds": "d"}


class _Series:
    """The values of one metric and the moments of their recording."""

    # reading tensors of an accelerator waits for it, so rarely; holding them costs its memory
    _MAX_UNREAD = 512

    def __init__(self) -> None:
        self.latest: Any = None
        self.values: list[Any] = []
        self._num_read = 0
        self._moments: dict[str, array[Any]] = {name: array(code) for name, code in _MOMENT.items()}

    def append(self, value: object, clock: RunClock) -> None:
        """Add a value that is recorded now."""
        self.latest = value
        self.values.append(value)
        for name, column in self._moments.items():
            column.append(getattr(clock, name))
        if len(self.values) - self._num_read >= self._MAX_UNREAD:
            self.read()

    def read(self) -> list[Any]:
        """Return the values as they were recorded, of scalar tensors their numbers."""
        unread = self.values[self._num_read :]
        self.values[self._num_read :] = [
            value.item() if isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex() else value
            for value in unread
        ]
        self._num_read = len(self.values)
        return self.values

    def records(self, name: str) -> list[MetricRecord]:
        """Return the values that are numbers as records of a metric of this name."""
        rows = zip(map(as_number, self.read()), *self._moments.values(), strict=True)
        return [MetricRecord(name, number, *moment) for number, *moment in rows if number is not None]

    def state_dict(self) -> dict[str, list[Any]]:
        """Return everything as names and lists."""
        return {"value": [*self.read()], **{name: column.tolist() for name, column in self._moments.items()}}

    @classmethod
    def of(cls, state_dict: Mapping[str, Any]) -> _Series:
        """Return the series that ``state_dict`` was taken of."""
        series = cls()
        series.values += state_dict["value"]
        for index, value in state_dict.get("kept", ()):  # where earlier states have what is not a number
            series.values[index] = value
        for name, column in series._moments.items():
            column.extend(state_dict[name])
            if len(column) != len(series.values):
                raise ValueError(f"there are {len(series.values)} values and {len(column)} of {name}")
        series.latest = series.values[-1]
        return series
