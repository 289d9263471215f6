"""The history of the metrics of a run, and the clock of the run."""

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
"""The prefix of metrics of evaluations within a training epoch; other names have a single value for each epoch."""


class RunClock:
    """The position of a run, in each unit that a metric can be plotted over.

    Read it as ``trainer.run_history.clock``; each recorded value is stored with the clock's readings. Only the trainer
    changes it: ``update`` and ``samples`` after each update, ``epoch`` after the events of an epoch, and all of them
    when a run is reset or resumed. You construct a clock only for tests, or for your own history.

    Attributes:
        epoch: The current epoch, an int counted from 1; after the last epoch, the number of epochs plus 1.
        update: The number of complete optimizer updates, an int; 0 before the first.
        samples: The number of training samples of all processes in these updates, an int; 0 before the first update.

    Example:
        >>> from pa_core.tracking import RunClock
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
        """Go back to epoch 1, update 0 and sample 0, and restart the time from 0 seconds.

        The trainer calls this when a new run starts, unless ``reset_run_history=False``; you need not call it yourself.
        Afterwards, the clock is running.
        """
        self.epoch, self.update, self.samples = 1, 0, 0
        self._seconds_before = 0.0
        self._started_at: float | None = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds that the clock has run, a float from a monotonic clock.

        The time counts from the creation or the last reset of the clock, but not between ``stop`` and ``start``, and
        not between the interruption of a run and its resume.
        """
        running = 0.0 if self._started_at is None else time.monotonic() - self._started_at
        return self._seconds_before + running

    def stop(self) -> None:
        """Stop the clock, so that ``seconds`` keeps its value; the call has no effect if the clock is already stopped.

        The trainer calls this when a run ends. Call it yourself only to leave out the time of other work in a script.
        """
        self._seconds_before = self.seconds
        self._started_at = None

    def start(self) -> None:
        """Start the clock, or continue it after ``stop``; the call has no effect if the clock is running.

        The trainer calls this when a run starts. Call it yourself only after your own ``stop``.
        """
        if self._started_at is None:
            self._started_at = time.monotonic()

    def state_dict(self) -> dict[str, float]:
        """Return the readings by name, for a training state.

        ``RunHistory.state_dict`` calls this; you need not call it yourself.

        Returns:
            A dictionary with the keys "epoch", "update", "samples" and "seconds", ready for JSON.
        """
        return {name: getattr(self, name) for name in _MOMENT}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the readings of ``state_dict``; a running clock keeps running.

        ``RunHistory.load_state_dict`` calls this when a run resumes; you need not call it yourself.

        Args:
            state_dict: The result of ``state_dict``.

        Raises:
            KeyError: A reading is missing; nothing is changed.

        Example:
            >>> from pa_core.tracking import RunClock
            >>> clock = RunClock()
            >>> clock.load_state_dict({"epoch": 2, "update": 10, "samples": 320, "seconds": 1.5})
            >>> clock
            RunClock(epoch=2, update=10, samples=320)
        """
        epoch, update, samples = (int(state_dict[unit]) for unit in ("epoch", "update", "samples"))
        self._seconds_before = float(state_dict["seconds"])
        self.epoch, self.update, self.samples = epoch, update, samples
        if self._started_at is not None:
            self._started_at = time.monotonic()

    @override
    def __repr__(self) -> str:
        return f"RunClock(epoch={self.epoch}, update={self.update}, samples={self.samples})"


class RunHistory(ABC):
    """The interface of histories, in which a trainer and its callbacks record metrics.

    Derive from it to store metrics in your own format, and pass an instance as ``run_history`` to ``Trainer`` or
    ``Run``; ``InMemoryRunHistory`` is the default and enough for most runs. Implement the abstract methods:
    ``get_metric_names``, ``get_metric_values``, ``get_latest_metric``, ``update_metric``, ``metric_name_prefix``,
    ``set_metric_name_prefix`` and ``reset``. Override ``state_dict`` and ``load_state_dict`` if recorded values have to
    survive an interruption of the run. The constructor has no arguments, and the epoch and the clock work even if
    ``super().__init__()`` is never called.

    Every process has its own history. The trainer records the same values in each of them: means over the samples of
    all processes.

    Example:
        >>> from pa_core import RunHistory
        >>> class LastValues(RunHistory):
        ...     def __init__(self):
        ...         self.values, self.prefix = {}, ""
        ...     def get_metric_names(self):
        ...         return set(self.values)
        ...     def get_metric_values(self, metric_name):
        ...         return [self.values[metric_name]] if metric_name in self.values else []
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
        """The position of the run, which the trainer advances: a `RunClock` with epoch, updates, samples and seconds.

        It is created when it is first read, at epoch 1 and update 0. Read it in a callback, for example
        ``trainer.run_history.clock.samples``; only the trainer changes it.
        """
        return RunClock()

    @property
    def current_epoch(self) -> int:
        """The number of the current epoch, counted from 1; after the last epoch, the number of epochs plus 1.

        It is 1 before the first run. The trainer increments it after ``on_training_run_epoch_end``, so in that event it
        is still the number of the epoch that ends. A further ``train()`` begins again at 1, unless you pass
        ``reset_run_history=False``, which continues the count. A resumed run continues at the saved number. After a run
        that was stopped early, for example by ``StopTrainingError``, it is the number of the epoch in which the run
        stopped. ``trainer.num_epochs_completed`` counts complete epochs of the run, from 0.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.current_epoch  # before the first run
            1
        """
        return self.clock.epoch

    def increment_epoch(self) -> None:
        """Begin the next epoch: increment ``current_epoch`` by 1.

        The trainer calls this after ``on_training_run_epoch_end``, on every process. Callbacks must not call it; call
        it yourself only if you use a history without a trainer.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.increment_epoch()
            >>> history.current_epoch
            2
        """
        self._increment_epoch()

    def _increment_epoch(self) -> None:
        """Begin the next epoch; histories for pytorch-accelerated override this name."""
        self.clock.epoch += 1

    @abstractmethod
    def get_metric_names(self) -> Iterable[str]:
        """Return the full names of all recorded metrics, each once, in any order.

        Implement it in your history, as in the example of ``RunHistory``. Loggers and plots call it to find the
        metrics; it must not communicate with other processes.

        Returns:
            The names with their prefixes, for example ``["train_loss_epoch", "eval_loss_epoch"]``; empty before the
            first metric.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("train_loss_epoch", 0.5)
            >>> sorted(history.get_metric_names())
            ['train_loss_epoch']
        """

    @abstractmethod
    def get_metric_values(self, metric_name: str) -> Iterable[Any]:
        """Return all values of a metric, in the order in which they were recorded.

        Implement it in your history; callbacks and your own code call it, for example for the loss of each epoch. A
        history that keeps only the last value returns only that value. See the example in ``RunHistory``.

        Args:
            metric_name: The full name, with the prefix, for example "eval_loss_epoch".

        Returns:
            The values, the oldest first; an empty iterable if the metric was never recorded.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("train_loss_epoch", 0.5)
            >>> history.update_metric("train_loss_epoch", 0.25)
            >>> list(history.get_metric_values("train_loss_epoch"))
            [0.5, 0.25]
        """

    def count_metric_values(self, metric_name: str) -> int:
        """Return how often a metric was recorded.

        Callbacks that log metrics call it to find out which metrics were updated. The default iterates over
        ``get_metric_values``; override it if your history can count faster, and if it drops old values, because the
        count has to grow with each update.

        Args:
            metric_name: The full name, with the prefix, for example "eval_loss_epoch".

        Returns:
            The number of values, a whole number; 0 if the metric was never recorded.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("accuracy", 0.5)
            >>> history.count_metric_values("accuracy"), history.count_metric_values("f1")
            (1, 0)
        """
        return sum(1 for _ in self.get_metric_values(metric_name))

    @abstractmethod
    def get_latest_metric(self, metric_name: str, default: Any = ...) -> Any:
        """Return the latest value of a metric, as it was recorded.

        Implement it in your history. Callbacks that stop a run or save the best model call it, and you can call it in
        callbacks and after a run.

        Args:
            metric_name: The full name, with the prefix, for example "eval_loss_epoch".
            default: The result for a metric that was never recorded; it may be None. Without a default (``...``), a
                missing metric raises an error, so that you notice a misspelled name.

        Returns:
            The value that was last passed to ``update_metric`` under this name, usually a float.

        Raises:
            MetricNotFoundError: The metric was never recorded, and there is no default. Your history may raise another
                error.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("eval_loss_epoch", 0.5)
            >>> history.get_latest_metric("eval_loss_epoch"), history.get_latest_metric("eval_f1_epoch", None)
            (0.5, None)
        """

    @abstractmethod
    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a value of a metric at the current position of the run.

        Implement it in your history. The trainer calls it with names such as "train_loss_epoch" at the end of each
        epoch; call it in callbacks and hooks for your own metrics. Call it on every process with the same value,
        because callbacks that save checkpoints or stop the run read the value on each process. To record a mean over
        the samples of an epoch, call ``trainer.log`` in the steps instead.

        Args:
            metric_name: The name, without the prefix: the history puts ``metric_name_prefix`` in front of it, and
                nothing else. Add ``"train_"`` or ``"eval_"`` yourself if you want it in the name.
            metric_value: A plain value. Plots, tables, trackers and callbacks that watch a metric use values that are
                numbers, or tensors with one element, and ignore other values.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("eval_accuracy", 0.75)
            >>> history.get_latest_metric("eval_accuracy")
            0.75
        """

    @property
    @abstractmethod
    def metric_name_prefix(self) -> str:
        """The text that ``update_metric`` puts in front of names; empty unless ``set_metric_name_prefix`` was called.

        Implement it as a property of your history. The trainer reads it to restore the prefix after an evaluation in
        the middle of an epoch, during which it ends in ``"intermediate_"``.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.set_metric_name_prefix("ema_")
            >>> history.metric_name_prefix
            'ema_'
        """

    @abstractmethod
    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Set the prefix of the names of metrics recorded from now on; names that are already recorded do not change.

        Implement it in your history. Call it in a callback that records the same metrics for other weights, for example
        ``"ema_"`` for an average of the weights, and restore the former ``metric_name_prefix`` afterwards. The trainer
        adds ``"intermediate_"`` to the prefix during an evaluation within an epoch, and restores it afterwards.

        Args:
            prefix: The prefix, which replaces the former prefix; the default, an empty text, removes it.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> before = history.metric_name_prefix
            >>> history.set_metric_name_prefix("ema_" + before)
            >>> history.update_metric("eval_loss_epoch", 0.5)
            >>> history.set_metric_name_prefix(before)
            >>> list(history.get_metric_names())
            ['ema_eval_loss_epoch']
        """

    @abstractmethod
    def reset(self) -> None:
        """Remove all recorded values; you may keep the prefix.

        Implement it in your history. The trainer calls it on every process when a new run starts, unless ``train()``
        was passed ``reset_run_history=False``, and then resets the clock itself. See the example in ``RunHistory``.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("accuracy", 0.5)
            >>> history.reset()
            >>> list(history.get_metric_names())
            []
        """

    def delete_metric(self, metric_name: str) -> None:
        """Remove all values of a metric, for example a metric that was recorded by mistake.

        You call it; the trainer does not. This class always raises an error; override the method if your history can
        delete metrics, as ``InMemoryRunHistory`` does.

        Args:
            metric_name: The full name, with the prefix, for example "eval_loss_epoch".

        Raises:
            NotImplementedError: This class of history cannot delete metrics.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("typo", 0.5)
            >>> history.delete_metric("typo")
            >>> list(history.get_metric_names())
            []
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot delete {metric_name!r}: override delete_metric to allow it."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the values to keep in a training state, from which a run resumes: by default, only the clock.

        The trainer calls it each time a training state is saved. Override it together with ``load_state_dict``, and
        call ``super()`` in both, so that recorded values survive an interruption.

        Returns:
            A dictionary with the key "clock", and your keys. Values are numbers, texts, None, tensors, and containers
            of them.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> sorted(InMemoryRunHistory().state_dict())
            ['clock', 'metric_name_prefix', 'metrics']
        """
        return {"clock": self.clock.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``; the trainer calls it when a run resumes, on every process.

        By default, only the clock is restored. Override it together with ``state_dict``, and call ``super()`` in both.

        Args:
            state_dict: The result of ``state_dict``, of the same class of history.

        Raises:
            KeyError: ``state_dict`` has no "clock", or the clock lacks a reading.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> source, target = InMemoryRunHistory(), InMemoryRunHistory()
            >>> source.increment_epoch()
            >>> target.load_state_dict(source.state_dict())
            >>> target.current_epoch
            2
        """
        self.clock.load_state_dict(state_dict["clock"])


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """A value of a metric with the position of the run at which it was recorded.

    ``InMemoryRunHistory.records`` returns a list of them, for your own plots and tables. They cannot be changed.

    Attributes:
        metric: The full name of the metric, with the prefix.
        value: The value, a number.
        epoch: The epoch, counted from 1.
        update: The number of complete optimizer updates.
        samples: The number of training samples of all processes in these updates.
        seconds: The seconds since the run started, without the time between an interruption and its resume.

    Example:
        >>> from pa_core.tracking import InMemoryRunHistory
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
    """A history that keeps every value in memory, about 70 bytes for each number; the default history.

    Each trainer creates such a history, which you read as ``trainer.run_history`` during or after a run. Construct one
    yourself, without arguments, to share a history between trainers, and pass it as ``run_history``. Training states
    (from which a run resumes) contain its values.

    A value is a number, a string, a tensor or an array, or a list, a tuple, a set or a dictionary of such values. The
    numbers in a dictionary that is recorded as ``name`` are also recorded as ``name_key``. Values that are not numbers
    are left out of ``records``, and so of plots and tables.

    A tensor is copied when it is recorded: its graph, and a tensor that it is a view of, are not kept, and later
    changes have no effect. The latest value is returned as a tensor; in the list of all values, and after a resume, a
    scalar tensor is a plain number. Recording a tensor on an accelerator does not wait for it, but reading its value
    does.

    Attributes:
        clock: The position of the run in epochs, updates, samples and seconds, which the trainer advances.

    Example:
        >>> from pa_core import InMemoryRunHistory
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
        """Return the full names of all recorded metrics, in the order in which they were first recorded.

        Call it to find out which metrics a run has.

        Returns:
            A set-like view of the names with their prefixes, for example "train_loss_epoch"; it is a copy, which does
            not change with later updates.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("train_loss_epoch", 0.5)
            >>> sorted(history.get_metric_names())
            ['train_loss_epoch']
        """
        return dict.fromkeys(self._metrics).keys()

    @override
    def get_metric_values(self, metric_name: str) -> list[Any]:
        """Return all values of a metric, the oldest first.

        Use it for the course of a metric over the epochs; ``records`` also returns the epoch and the update of each
        value, and ``get_latest_metric`` returns only the last value. It waits for values on an accelerator.

        Args:
            metric_name: The full name, with the prefix, for example "train_loss_epoch".

        Returns:
            A new list of the values, scalar tensors as plain numbers; an empty list if the metric was never recorded.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("accuracy", 0.5)
            >>> history.update_metric("accuracy", 0.75)
            >>> history.get_metric_values("accuracy")
            [0.5, 0.75]
        """
        return list(self._metrics[metric_name].read()) if metric_name in self._metrics else []

    @override
    def count_metric_values(self, metric_name: str) -> int:
        """Return how often a metric was recorded; callbacks that log metrics call it to find updated metrics.

        It does not wait for values on an accelerator.

        Args:
            metric_name: The full name, with the prefix, for example "train_loss_epoch".

        Returns:
            The number of values, a whole number; 0 if the metric was never recorded.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("accuracy", 0.5)
            >>> history.count_metric_values("accuracy"), history.count_metric_values("f1")
            (1, 0)
        """
        return len(self._metrics[metric_name].values) if metric_name in self._metrics else 0

    @override
    def get_latest_metric(self, metric_name: str, default: Any = ...) -> Any:
        """Return the latest value of a metric, for example the loss of the last epoch.

        Args:
            metric_name: The full name, with the prefix, for example "eval_loss_epoch".
            default: The result for a metric that was never recorded, for example None. Without a default (``...``), a
                missing metric raises an error, so that you notice a misspelled name.

        Returns:
            The value as it was recorded; a tensor stays a tensor on its device, so reading it may wait for an
            accelerator.

        Raises:
            MetricNotFoundError: The metric was never recorded, and there is no default. ``except KeyError`` catches it.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("eval_loss_epoch", 0.5)
            >>> history.get_latest_metric("eval_loss_epoch"), history.get_latest_metric("eval_f1_epoch", None)
            (0.5, None)
        """
        if default is not ... and metric_name not in self._metrics:
            return default
        return self._series_of(metric_name).latest

    @override
    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a value at the current position of the run, and the numbers in a dictionary also as ``name_key``.

        Call it in callbacks and hooks for your own metrics, on every process with the same value. To record a mean over
        the samples of an epoch, call ``trainer.log`` in the steps instead.

        Args:
            metric_name: The name without the prefix; the history puts the prefix in front of it.
            metric_value: A number, a string, a tensor or an array, or a container of such values. A tensor is copied,
                without its graph.

        Raises:
            ConfigurationError: The value, or an object in it, is of another type, and could not be saved in a training
                state.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("test", {"f1": 0.25, "recall": 0.5})
            >>> history.get_latest_metric("test_f1")
            0.25
        """
        name = self._prefix + metric_name
        value = metric_value if type(metric_value) is float else recordable(name, metric_value)
        for full_name, number in ((name, value), *numbers_of_mapping(name, value)):
            series = self._metrics.get(full_name)
            if series is None:
                series = self._metrics[full_name] = _Series()
            series.append(number, self.clock)

    @property
    @override
    def metric_name_prefix(self) -> str:
        """The text that ``update_metric`` puts in front of names, for example ``"ema_"``; empty by default.

        ``set_metric_name_prefix`` sets it. During an evaluation in the middle of an epoch the trainer appends
        ``"intermediate_"``.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.set_metric_name_prefix("ema_")
            >>> history.metric_name_prefix
            'ema_'
        """
        return self._prefix

    @override
    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Set the prefix of the names of metrics recorded from now on; names that are already recorded do not change.

        Call it in a callback that records the same metrics for other weights, and restore the former prefix afterwards.

        Args:
            prefix: The prefix, which replaces the former prefix; the default, an empty text, removes it.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.set_metric_name_prefix("ema_")
            >>> history.update_metric("eval_loss_epoch", 0.5)
            >>> history.set_metric_name_prefix()
            >>> list(history.get_metric_names())
            ['ema_eval_loss_epoch']
        """
        self._prefix = prefix

    @override
    def reset(self) -> None:
        """Remove all values, and go back to epoch 1, update 0 and second 0; the prefix is kept.

        The trainer calls it when a new run starts, unless ``train()`` was passed ``reset_run_history=False``; call it
        yourself to reuse a history without a trainer.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("accuracy", 0.5)
            >>> history.reset()
            >>> history.count_metric_values("accuracy")
            0
        """
        self._metrics.clear()
        self.clock.reset()

    @override
    def delete_metric(self, metric_name: str) -> None:
        """Remove all values of a metric, for example a metric that was recorded by mistake.

        You call it, on every process; the trainer does not.

        Args:
            metric_name: The full name, with the prefix, for example "eval_loss_epoch".

        Raises:
            MetricNotFoundError: The metric was never recorded.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("typo", 0.5)
            >>> history.delete_metric("typo")
            >>> list(history.get_metric_names())
            []
        """
        self._series_of(metric_name)
        del self._metrics[metric_name]

    def records(self, metric_name: str | None = None) -> list[MetricRecord]:
        """Return the recorded numbers with their positions in the run, for your own plots and analyses.

        ``to_dict`` returns the same numbers as columns for a table, and ``plot_run_history`` draws them. The call waits
        for values on an accelerator.

        Args:
            metric_name: The full name of the only metric to return, with the prefix. None, the default, returns all
                metrics.

        Returns:
            A new list of ``MetricRecord`` objects with ``metric``, ``value``, ``epoch``, ``update``, ``samples`` and
            ``seconds``, metric by metric, the oldest value first. Values that are not numbers are left out.

        Raises:
            MetricNotFoundError: The metric was never recorded.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("accuracy", 0.5)
            >>> [(record.epoch, record.value) for record in history.records("accuracy")]
            [(1, 0.5)]
        """
        names = self.get_metric_names() if metric_name is None else (metric_name,)
        return [record for name in names for record in self._series_of(name).records(name)]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the recorded numbers with their positions in the run as columns of equal length.

        Pass the result to ``pandas.DataFrame(...)`` or write it to a file; ``records`` returns the same numbers as
        objects. It waits for values on an accelerator.

        Returns:
            A new dictionary with six lists: "metric" (full names), "value", "epoch" (from 1), "update" (complete
            optimizer updates), "samples" (training samples of all processes) and "seconds" (since the start of the
            run). Each row is a recorded number, metric by metric; values that are not numbers are left out.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("accuracy", 0.5)
            >>> columns = history.to_dict()
            >>> columns["metric"], columns["value"], columns["epoch"]
            (['accuracy'], [0.5], [1])
        """
        records = self.records()
        return {entry.name: [getattr(record, entry.name) for record in records] for entry in fields(MetricRecord)}

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return all values, the clock and the prefix; the trainer calls it each time a training state is saved.

        Returns:
            A dictionary with the keys "metrics", "clock" and "metric_name_prefix", for ``load_state_dict``. It can be
            written as JSON if all values are numbers.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> history = InMemoryRunHistory()
            >>> history.update_metric("accuracy", 0.5)
            >>> history.state_dict()["metrics"]["accuracy"]["value"]
            [0.5]
        """
        metrics = {name: series.state_dict() for name, series in self._metrics.items()}
        return {**super().state_dict(), "metric_name_prefix": self._prefix, "metrics": metrics}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace all values, the clock and the prefix with a saved state; the trainer calls it when a run resumes.

        Tensors are on the CPU afterwards.

        Args:
            state_dict: The result of ``state_dict``, even of an earlier version.

        Raises:
            CheckpointError: This is not the state of a history; the recorded values are kept.

        Example:
            >>> from pa_core import InMemoryRunHistory
            >>> source, target = InMemoryRunHistory(), InMemoryRunHistory()
            >>> source.update_metric("accuracy", 0.5)
            >>> target.load_state_dict(source.state_dict())
            >>> target.get_latest_metric("accuracy")
            0.5
        """
        try:
            # Earlier states hold the numbers of mappings separately.
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
    """Add a prefix to the names of all metrics that are recorded within a ``with`` block.

    Use it in a callback that runs a second evaluation, for example of averaged weights, to keep its metrics apart from
    the metrics of the usual evaluation. The prefix comes after a prefix that is set already, so blocks can be nested.
    The former prefix is always restored, even after an exception.

    Args:
        history: The history that records the metrics, usually ``trainer.run_history``.
        prefix: The additional prefix, usually with an underscore at its end, for example ``"teacher_"``.

    Example:
        >>> from pa_core import InMemoryRunHistory
        >>> from pa_core.callbacks import recording_with_prefix
        >>> history = InMemoryRunHistory()
        >>> with recording_with_prefix(history, "teacher_"):
        ...     history.update_metric("eval_loss_epoch", 0.5)
        >>> list(history.get_metric_names())
        ['teacher_eval_loss_epoch']
    """
    before = history.metric_name_prefix
    history.set_metric_name_prefix(before + prefix)
    try:
        yield
    finally:
        history.set_metric_name_prefix(before)


class UpdatedMetrics:
    """Finds the metrics that were updated since the last call, or since the creation of this object.

    Args:
        history: The history.

    Example:
        >>> history = InMemoryRunHistory()
        >>> history.update_metric("accuracy", 0.5)
        >>> updated = UpdatedMetrics(history)
        >>> history.update_metric("evaluation_loss", 0.25)
        >>> updated.pop(history), updated.pop(history)
        ({'evaluation_loss': 0.25}, {})
    """

    def __init__(self, history: RunHistory) -> None:
        self._counts = _count_metrics(history)

    def pop(self, history: RunHistory, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, float]:
        """Return the latest values of the updated metrics that are wanted and numeric, by name, once."""
        counts = _count_metrics(history)
        if counts == self._counts:
            return {}
        updated = {name: n for name, n in counts.items() if n != self._counts.get(name, 0) and wanted(name)}
        self._counts.update(updated)
        numbers = {name: as_number(history.get_latest_metric(name)) for name in updated}
        return {name: number for name, number in numbers.items() if number is not None}


def _count_metrics(history: RunHistory) -> dict[str, int]:
    return {name: history.count_metric_values(name) for name in history.get_metric_names()}


def values_with_epochs(history: RunHistory, metric_name: str) -> list[tuple[float, int]]:
    """Return the numbers of a metric with their epochs; 0 if the history does not know the epochs."""
    if isinstance(history, InMemoryRunHistory):
        return [(record.value, record.epoch) for record in history.records(metric_name)]
    numbers = map(as_number, history.get_metric_values(metric_name))
    return [(number, 0) for number in numbers if number is not None]


# The type code of each column for ``array``.
_MOMENT = {"epoch": "q", "update": "q", "samples": "q", "seconds": "d"}


class _Series:
    """The values of a metric and the positions at which they were recorded."""

    # read tensors of an accelerator rarely, which waits for it, but before they take much of its memory
    _MAX_UNREAD = 512

    def __init__(self) -> None:
        self.latest: Any = None
        self.values: list[Any] = []
        self._num_read = 0
        self._moments: dict[str, array[Any]] = {name: array(code) for name, code in _MOMENT.items()}

    def append(self, value: object, clock: RunClock) -> None:
        """Add a value at the current position."""
        self.latest = value
        self.values.append(value)
        for name, column in self._moments.items():
            column.append(getattr(clock, name))
        if len(self.values) - self._num_read >= self._MAX_UNREAD:
            self.read()

    def read(self) -> list[Any]:
        """Return the recorded values, with scalar tensors as numbers."""
        unread = self.values[self._num_read :]
        self.values[self._num_read :] = [
            value.item() if isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex() else value
            for value in unread
        ]
        self._num_read = len(self.values)
        return self.values

    def records(self, name: str) -> list[MetricRecord]:
        """Return the numbers as records of a metric with this name."""
        rows = zip(map(as_number, self.read()), *self._moments.values(), strict=True)
        return [MetricRecord(name, number, *moment) for number, *moment in rows if number is not None]

    def state_dict(self) -> dict[str, list[Any]]:
        """Return everything as names and lists."""
        return {"value": [*self.read()], **{name: column.tolist() for name, column in self._moments.items()}}

    @classmethod
    def of(cls, state_dict: Mapping[str, Any]) -> _Series:
        """Return the series with this ``state_dict``."""
        series = cls()
        series.values += state_dict["value"]
        for index, value in state_dict.get("kept", ()):  # earlier states have values that are not numbers here
            series.values[index] = value
        for name, column in series._moments.items():
            column.extend(state_dict[name])
            if len(column) != len(series.values):
                raise ValueError(f"there are {len(series.values)} values and {len(column)} of {name}")
        series.latest = series.values[-1]
        return series
