"""The training loop of a trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from pa_core import gather_objects
from pa_core.parts import Place, Progress, RunWatch
from pa_trial.boundaries import Boundaries, Due, batches_of
from pa_trial.callback import PyTorchCallback
from pa_trial.callback_calls import CallbackCalls
from pa_trial.checkpoints import Checkpoints
from pa_trial.context_parts import ContextParts
from pa_trial.fit_options import CheckpointPolicy, FitOptions
from pa_trial.reporting import Reporter
from pa_trial.stop_requests import StopRequests
from pa_trial.throughput import Throughput
from pa_trial.training_metrics import WorkloadMetrics, add_counts
from pa_trial.trial import PyTorchTrial
from pa_trial.trial_data import TrialData
from pa_trial.validation import Validation
from pa_trial.watched_metric import WatchedMetric

__all__ = ["TrainingLoop"]


class TrainingLoop:
    """Trains workload by workload, and does what is due between them.

    A workload goes on until a boundary fires: the length of the training, a validation, a checkpoint, a report. What is
    due is done in this order, and after each of them the training ends if a process has asked to stop. At the end comes
    a validation, and then a checkpoint, unless the last of them saw the same batch.

    Args:
        trial: The trial.
        parts: What its context consists of.
        options: What ``fit`` was asked for.
        data: The loaders of the trial.
        calls: The callbacks of the trial.
        checkpoints: Saves.
        metric: Tells the best validation, for the policy "best"; None saves after each with this policy.
        stop: Requests to end the training.
        watch: What the other processes are told of where this one is.
        watched: The counters that they are told.
    """

    def __init__(
        self,
        trial: PyTorchTrial[Any],
        parts: ContextParts,
        options: FitOptions,
        data: TrialData,
        calls: CallbackCalls,
        checkpoints: Checkpoints,
        metric: WatchedMetric | None,
        stop: StopRequests,
        watch: RunWatch,
        watched: Progress,
    ) -> None:
        self._trial = trial
        self._parts = parts
        self._progress = parts.progress
        self._calls = calls
        self._checkpoints = checkpoints
        self._policy = options.policy
        self._metric = metric
        self._stop = stop
        self._watch = watch
        self._watched = watched
        self._epoch_length = data.epoch_length
        self._max_batches = (
            self._progress.initial_batch + 1
            if options.test_mode or options.max_length is None
            else batches_of(options.max_length, data.epoch_length)
        )
        self._boundaries = Boundaries(
            self._max_batches,
            validation=options.validation_period,
            checkpoint=options.checkpoint_period,
            report=options.reporting_period,
            epoch_length=data.epoch_length,
        )
        self._step_zero_validation = options.step_zero_validation
        self._validation = Validation(
            trial,
            parts,
            data,
            calls,
            max_batches=1 if options.test_mode else None,
            weigh_by_records=options.weigh_by_records,
        )
        self._profiler = parts.profiler
        self._metrics = WorkloadMetrics()
        self._throughput = Throughput(trial)
        self._reporter = Reporter(
            parts.tensorboard,
            is_chief=parts.rank == 0,
            enable_tensorboard_logging=parts.logs_to_tensorboard,
        )
        self._reporter.begin(self._progress)
        self._batches: Iterator[Any] = iter(data.training_batches())
        if parts.experimental.moves_batches:
            self._batches = map(parts.mover, self._batches)

    def run(self) -> None:
        """Train up to the length that was asked for, or until a process asks to stop."""
        self._profiler = self._parts.profiler  # on_training_start may have set one
        if self._step_zero_validation and self._progress.batches_trained == 0:
            self._validate()
        is_complete = self._boundaries.is_complete(self._progress.batches_trained)
        self._reporter.beginning(self._progress, is_complete=is_complete)
        if is_complete:
            return
        with self._profiler or nullcontext():
            is_complete = self._train_to_end()
        if not is_complete:
            self.save_unless_current()
            self._stop.tell()
            return
        self._watch.place = Place.RUN_END
        if self._progress.last_validation != self._progress.batches_trained:
            self._validate_and_save_by_policy()
        self.save_unless_current()

    def _train_to_end(self) -> bool:
        """Train up to the length that was asked for; return False if a process asks to stop before."""
        while True:
            due = self._train_workload()
            if self._stops_at(due):
                return False
            if due.max_length:
                return True

    # A workload

    def _train_workload(self) -> Due:
        """Train until a boundary fires, and return what is due; nothing, if the training is to be left at once."""
        self._watch.place = Place.TRAINING
        self._parts.trained.set_training(True)
        self._parts.reducers.reset()
        self._metrics.reset()
        self._throughput.start()
        due = self._train_batches()
        self._finish_workload()
        return due

    def _train_batches(self) -> Due:
        boundaries, progress, trained = self._boundaries, self._progress, self._parts.trained
        for batch in self._batches:
            self._train_batch(batch)
            due = boundaries.after(progress.batches_trained)
            if due is not None:
                return due
            if trained.leave_agreed:  # only at the end of a group
                return Due()
        raise AssertionError("training data repeat for ever")

    def _train_batch(self, batch: Any) -> None:
        """Train on one batch, with the events of the epoch that it begins or ends."""
        progress = self._progress
        progress.batch_idx = batch_idx = progress.batches_trained
        epoch_idx, batch_in_epoch = divmod(batch_idx, self._epoch_length)
        if batch_in_epoch == 0:
            self._calls.call(PyTorchCallback.on_training_epoch_start, epoch_idx)
        self._parts.trained.start_batch()
        returned = self._trial.train_batch(batch=batch, epoch_idx=epoch_idx, batch_idx=batch_idx)
        self._parts.trained.finish_batch()
        if self._profiler is not None:
            self._profiler.step()
        self._metrics.add(returned, self._throughput.records_of(batch))
        progress.batches_trained = self._watched.updates = batch_idx + 1
        if batch_in_epoch + 1 == self._epoch_length:
            self._calls.call(PyTorchCallback.on_training_epoch_end, epoch_idx)

    def _finish_workload(self) -> None:
        """Bring the metrics of all processes together, and tell of them."""
        reducers = self._parts.reducers
        of_each = gather_objects((self._metrics.payload(), reducers.per_slot(training=True)))
        payloads = [metrics for metrics, _ in of_each]
        num_records, seconds = sum(payload.num_records for payload in payloads), self._throughput.seconds
        averages, of_batches = self._metrics.reduce(payloads)
        averages |= reducers.cross_slot([held for _, held in of_each], training=True)
        add_counts(averages, self._progress)
        self._calls.call(PyTorchCallback.on_training_workload_end, averages, of_batches)
        self._reporter.training(averages, of_batches, self._progress, num_records=num_records, seconds=seconds)

    # Between workloads

    def _stops_at(self, due: Due) -> bool:
        """Do what is due; return whether the training ends because a process asked to stop."""
        if due.max_length and self._stop.agreed():
            return True
        if due.validation:
            self._validate_and_save_by_policy()
            if self._stop.agreed():
                return True
        if due.checkpoint:
            self.save_unless_current()
            if self._stop.agreed():
                return True
        if due.report:
            self._reporter.progress(self._progress.batches_trained / self._max_batches)
        leaves_at_once = not any(due)
        return (due.report or leaves_at_once) and self._stop.agreed()

    def _validate_and_save_by_policy(self) -> None:
        is_best = self._validate()
        if self._policy is CheckpointPolicy.ALL or (self._policy is CheckpointPolicy.BEST and is_best):
            self.save_unless_current()

    def _validate(self) -> bool:
        """Validate; return whether no validation was better."""
        with self._watch.at(Place.EVALUATION):
            metrics = self._validation.run()
        self._progress.last_validation = self._progress.batches_trained
        is_best = self._metric is None or self._metric.record(metrics)
        if is_best and self._metric is not None:
            self._progress.best_batch = self._progress.batches_trained
        add_counts(metrics, self._progress)
        self._reporter.validation(metrics, self._progress)
        return is_best

    def save_unless_current(self) -> None:
        """Save what was trained, unless the last checkpoint saw the same batch."""
        if self._progress.last_checkpoint != self._progress.batches_trained:
            self._checkpoints.save()
            self._progress.last_checkpoint = self._progress.batches_trained
