"""The training loop of a trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from pa_trial.boundaries import Due
from pa_trial.callback import PyTorchCallback
from pa_trial.callback_calls import CallbackCalls
from pa_trial.checkpoints import Checkpoints
from pa_trial.context_parts import ContextParts, Stage
from pa_trial.fit_options import FitOptions
from pa_trial.reporting import Reporter
from pa_trial.stop_requests import StopRequests
from pa_trial.training_metrics import add_counts
from pa_trial.trial import PyTorchTrial
from pa_trial.trial_data import TrialData
from pa_trial.validation import Validation
from pa_trial.watched_metric import WatchedMetric
from pa_trial.workload import Workload


class TrainingLoop:
    """Trains workload by workload, and does the work that is due between them.

    A workload lasts until a boundary is reached: the length of the training, a validation, a checkpoint or a report.
    The due work is done in this order, and after each of them the training ends if a process has requested a stop. The
    training ends with a validation and then a checkpoint, unless the last of them already cover its last batch.

    Args:
        trial: The trial.
        parts: The parts of its context.
        options: The arguments of ``fit``.
        data: The loaders of the trial.
        calls: The callbacks of the trial.
        checkpoints: Saves.
        metric: Compares validations for the policy "best"; with None, each validation counts as the best.
        stop: Requests to stop.
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
    ) -> None:
        self._train = trial.train_batch
        self._parts = parts
        self._trained = parts.trained
        self._progress = parts.progress
        self._profiler = parts.profiler
        self._calls = calls
        self._checkpoints = checkpoints
        self._options = options
        self._metric = metric
        self._stop = stop
        self._epoch_length = data.epoch_length
        self._boundaries = options.boundaries(self._progress, data.epoch_length)
        self._reporter = Reporter(parts.tensorboard, lambda: parts.logs_to_tensorboard)
        self._reporter.begin(self._progress)
        self._workload = Workload(trial, parts, calls, self._reporter)
        self._validation = Validation(trial, parts, data, calls, options)
        self._batches: Iterator[Any] = iter(data.training_batches())
        if parts.experimental.moves_batches:
            self._batches = map(parts.mover, self._batches)
        self._weights = data.weights

    def run(self) -> None:
        """Train up to ``max_length``, or until a process requests a stop."""
        self._profiler = self._parts.profiler  # on_training_start may have set it
        if self._options.step_zero_validation and self._progress.batches_trained == 0:
            self._validate()
        is_complete = self._boundaries.is_complete(self._progress.batches_trained)
        self._reporter.beginning(self._progress, is_complete=is_complete)
        if is_complete:
            return
        stops = ends = False
        with self._profiler or nullcontext():
            while not (stops or ends):
                due = self._train_workload()
                stops, ends = self._stops_at(due), due.max_length
        if stops:
            self.save_unless_current()
            self._stop.tell()
            return
        self._parts.stage = Stage.RUN_END
        if self._progress.last_validation != self._progress.batches_trained:
            self._validate_and_save_by_policy()
        self.save_unless_current()
        self._stop.agreed()  # so that all processes print a request that came with the last checkpoint

    # A workload

    def _train_workload(self) -> Due:
        """Train until a boundary is reached, and return the due work; None if a signal cut the workload short."""
        self._parts.stage = Stage.TRAINING
        self._trained.set_training(True)
        self._workload.start()
        due = self._train_batches()
        self._workload.finish()
        return due

    def _train_batches(self) -> Due:
        for batch, (weight, is_last) in zip(self._batches, self._weights, strict=False):
            self._train_batch(batch, weight, is_last=is_last)
            due = self._boundaries.after(self._progress.batches_trained) if is_last else None
            if due is not None:
                return due
            if self._trained.leave_agreed:  # only at the end of a group
                return Due()
        raise AssertionError("training data repeat forever")

    def _train_batch(self, batch: Any, weight: float | None, *, is_last: bool) -> None:
        """Train on a batch, or a piece of it, with the events of the epoch that it begins or ends."""
        progress = self._progress
        is_first = progress.batch_idx != progress.batches_trained
        progress.batch_idx = batch_idx = progress.batches_trained
        epoch_idx, batch_in_epoch = divmod(batch_idx, self._epoch_length)
        if is_first and batch_in_epoch == 0:
            self._calls.call(PyTorchCallback.on_training_epoch_start, epoch_idx)
        self._trained.start_batch(weight, is_last=is_last)
        returned = self._train(batch=batch, epoch_idx=epoch_idx, batch_idx=batch_idx)
        self._trained.finish_batch()
        if self._profiler is not None:
            self._profiler.step()
        self._workload.add(batch, returned)
        progress.batches_trained = batch_idx + is_last
        if is_last and batch_in_epoch + 1 == self._epoch_length:
            self._calls.call(PyTorchCallback.on_training_epoch_end, epoch_idx)

    # Between workloads

    def _stops_at(self, due: Due) -> bool:
        """Do the due work; return whether the training ends because a process requested a stop."""
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
            self._reporter.progress(self._boundaries.fraction(self._progress.batches_trained))
        leaves_at_once = not any(due)
        return (due.report or leaves_at_once) and self._stop.agreed()

    def _validate_and_save_by_policy(self) -> None:
        is_best = self._validate()
        if is_best and self._options.checkpoint_policy != "none":
            self.save_unless_current()

    def _validate(self) -> bool:
        """Validate; return whether this is the best validation so far."""
        before, self._parts.stage = self._parts.stage, Stage.EVALUATION
        metrics = self._validation.run()
        self._parts.stage = before
        self._progress.last_validation = self._progress.batches_trained
        is_best = self._metric is None or self._metric.record(metrics)
        if is_best and self._metric is not None:
            self._progress.best_batch = self._progress.batches_trained
        add_counts(metrics, self._progress)
        self._reporter.validation(metrics, self._progress)
        return is_best

    def save_unless_current(self) -> None:
        """Save a checkpoint, unless the last checkpoint was saved after the same batch."""
        if self._progress.last_checkpoint != self._progress.batches_trained:
            uuid = self._checkpoints.save()
            self._progress.last_checkpoint = self._progress.batches_trained
            self._checkpoints.tell_callbacks(uuid)
