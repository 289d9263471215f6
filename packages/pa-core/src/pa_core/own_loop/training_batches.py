"""The training batches of a custom loop: what is handed out for each of them, and what is counted and told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from pa_core.accumulation import MicroBatch
from pa_core.any_trainer import AnyTrainer, CallEvent, TrainerCallback
from pa_core.own_loop.update import FinishedBatch, LossReport
from pa_core.progress import Progress
from pa_core.tracking import LossTracker, StepMeans
from pa_core.types import BatchT

__all__ = ["TrainingBatches"]


class TrainingBatches(Generic[BatchT]):
    """Counts the training batches of a run, keeps their losses, and calls the events of each step.

    A process without a sample in the last step of an epoch is handed the batch of another one, which counts for
    nothing, so that the loop is the same on all processes.

    Args:
        run: The run.
        progress: The counters of the run.
        losses: The losses of the training epoch.
        step_means: What its steps log.
        call_event: Calls the listeners of an event.
        stand_in: Returns what a process without a sample is given.
    """

    def __init__(
        self,
        run: AnyTrainer,
        progress: Progress,
        losses: LossTracker,
        step_means: StepMeans,
        call_event: CallEvent,
        stand_in: Callable[[MicroBatch], BatchT],
    ) -> None:
        self._run = run
        self._progress = progress
        self._losses = losses
        self._step_means = step_means
        self._call_event = call_event
        self._stand_in = stand_in

    def start(self, part: MicroBatch, batch: BatchT) -> BatchT:
        """Begin a step, and return the batch to hand out.

        Args:
            part: The part of the batch in its update.
            batch: The batch; of a process without a sample, what stands for none.

        Raises:
            UnsupportedConfigurationError: No batch can stand in for the batch of a process without a sample.
        """
        self._step_means.start_step()
        if part.is_empty:
            return self._stand_in(part)
        self._call_event(TrainerCallback.on_train_step_start)
        return batch

    def report_loss(self, part: MicroBatch, name: str, report: LossReport) -> None:
        """Log the loss of one of several optimizers.

        Args:
            part: The part of the batch in its update.
            name: The name of what is trained.
            report: Its loss.
        """
        if self._step_means.is_in_step and not part.is_empty:
            self._step_means.log(f"{name}_loss", report.loss, count=report.weight)

    def start_of_loop(self, _part: MicroBatch, batch: BatchT) -> BatchT:
        """Begin a step with a batch that the loop itself has, in the body of one of the loader, and return it."""
        self._step_means.start_step()
        return batch

    def finish(self, finished: FinishedBatch, *, is_of_loop: bool = False) -> None:
        """Count a batch whose backward passes are over, and tell callbacks of its loss.

        Args:
            finished: The batch and its losses.
            is_of_loop: Whether the loop itself has the batch, so that no position is to be counted.
        """
        part = finished.part
        if not is_of_loop:
            self._progress.count_samples(part.global_samples or finished.samples * self._run.num_processes)
        if finished.has_made_way:
            self._progress.steps_in_epoch = part.step
            self._progress.finish_group(self._run.run_history.clock)
            self._step_means.count_samples(finished.samples)
            self._step_means.end_step()
            return
        if part.is_empty:
            return
        loss = finished.loss()
        if finished.reports:
            self._losses.update(loss, max(report.weight for report in finished.reports.values()))
        self._step_means.count_samples(finished.samples)
        output = {"loss": loss, "model_outputs": None, "batch_size": finished.samples}
        self._call_event(TrainerCallback.on_train_step_end, batch=finished.batch, batch_output=output, step=part.step)
