"""A workload: the metrics, reducers and duration of its batches, combined over all processes at its end."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from pa_trial.callback import PyTorchCallback
from pa_trial.callback_calls import CallbackCalls
from pa_trial.context_parts import ContextParts
from pa_trial.errors import ArgumentTypeError, ConfigurationError
from pa_trial.reporting import Reporter
from pa_trial.training_metrics import WorkloadMetrics, add_counts
from pa_trial.trial import PyTorchTrial
from pa_trial.types import TrainingMetrics


class Workload:
    """Collects the metrics of the batches from a boundary to the next, workload by workload.

    Args:
        trial: The trial.
        parts: The parts of its context.
        calls: Its callbacks.
        reporter: Reports the workload.
    """

    def __init__(self, trial: PyTorchTrial[Any], parts: ContextParts, calls: CallbackCalls, reporter: Reporter) -> None:
        self._progress = parts.progress
        self._reducers = parts.reducers
        self._calls = calls
        self._reporter = reporter
        self._metrics, self._num_records = WorkloadMetrics(), 0
        self._trial = trial
        self._counts_records = True
        self._began = perf_counter()

    def start(self) -> None:
        """Begin a workload; the metrics of the last workload are dropped."""
        self._reducers.reset()
        self._metrics, self._num_records = WorkloadMetrics(), 0
        self._began = perf_counter()

    def add(self, batch: Any, returned: TrainingMetrics) -> None:
        """Collect the metrics of a batch.

        Args:
            batch: The batch.
            returned: The return value of ``train_batch``.
        """
        self._metrics.add(returned)
        self._num_records += self._count_records(batch)

    def finish(self) -> None:
        """Combine and report the metrics of all processes; every process must call this."""
        own = self._num_records, self._metrics.payload()
        of_each, of_reducers = self._reducers.exchange(own, training=True)
        num_records, seconds = sum(records for records, _ in of_each), perf_counter() - self._began
        averages, of_batches = self._metrics.reduce([payload for _, payload in of_each])
        averages |= of_reducers
        add_counts(averages, self._progress)
        self._calls.call(PyTorchCallback.on_training_workload_end, averages, of_batches)
        self._reporter.training(averages, of_batches, self._progress, num_records=num_records, seconds=seconds)

    def _count_records(self, batch: Any) -> int:
        """Return the number of records of a batch; 0 if the stock ``get_batch_length`` cannot count them."""
        if not self._counts_records:
            return 0
        count = self._trial.get_batch_length
        try:
            return count(batch)
        except (ArgumentTypeError, ConfigurationError):
            if getattr(count, "__func__", count) is not PyTorchTrial.get_batch_length:
                raise
            self._counts_records = False
            return 0
