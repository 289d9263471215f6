"""The training batches of a custom loop: what is handed out for each of them, and what is counted and told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, cast

from pa_core.accumulation import MicroBatch
from pa_core.any_trainer import AnyTrainer, CallEvent, TrainerCallback
from pa_core.data.custom_loader import innermost, is_keyed
from pa_core.errors import UnsupportedConfigurationError
from pa_core.own_loop.update import FinishedBatch, LossReport
from pa_core.progress import Progress
from pa_core.tracking import LossTracker, StepMeans
from pa_core.types import BatchT

__all__ = ["TrainingBatches"]


class CallForAll(Protocol):
    """Calls something where some processes have no sample."""

    def __call__(self, call: Callable[[], None], *, is_empty: bool) -> None:
        """Call it on a process with a sample, and make up for its calls of sharded models on others."""


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
        call_for_all: Calls something in a step in which some processes have no sample, or makes up for it on those.
    """

    def __init__(
        self,
        run: AnyTrainer,
        progress: Progress,
        losses: LossTracker,
        step_means: StepMeans,
        call_event: CallEvent,
        call_for_all: CallForAll,
    ) -> None:
        self._run = run
        self._progress = progress
        self._losses = losses
        self._step_means = step_means
        self._call_event = call_event
        self._call_for_all = call_for_all
        self._first_step = 0
        self._last: BatchT | None = None

    def start_epoch(self) -> None:
        """Note at which step the batches of an epoch begin: in a resumed one, not at the first."""
        self._first_step = self._progress.steps_in_epoch

    def end_epoch(self) -> None:
        """Forget the last batch, which would stay on the device."""
        self._last = None

    def start(self, part: MicroBatch, batch: BatchT) -> BatchT:
        """Begin a step, and return the batch to hand out.

        Args:
            part: The part of the batch in its update.
            batch: The batch; of a process without a sample, what stands for none.

        Raises:
            UnsupportedConfigurationError: No batch can stand in for the batch of a process without a sample.
        """
        self._step_means.start_step()
        if part.some_are_empty:
            self._call_for_all(lambda: self._call_event(TrainerCallback.on_train_step_start), is_empty=part.is_empty)
        elif not part.is_empty:
            self._call_event(TrainerCallback.on_train_step_start)
        if part.is_empty:
            return self._stand_in(part)
        if not is_keyed(innermost(self._run.train_dataloader)):
            self._last = batch
        return batch

    def _stand_in(self, part: MicroBatch) -> BatchT:
        """The batch of the first process, or the last one of a custom loader.

        It is the same one in each run, so that a resumed run draws as much as one that was not interrupted.
        """
        loader = innermost(self._run.train_dataloader)
        if is_keyed(loader):
            return cast("BatchT", loader.fetch_for(part.step - 1 - self._first_step, rank=0))
        if self._last is None:
            raise UnsupportedConfigurationError(
                "The custom loader has no batch on this process, while it has one on others. Pass a dataset, or a "
                "loader with samples for each process."
            )
        return self._last

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
            if part.some_are_empty:
                self._call_for_all(lambda: None, is_empty=True)
            return
        loss = finished.loss()
        if finished.reports:
            self._losses.update(loss, max(report.weight for report in finished.reports.values()))
        self._step_means.count_samples(finished.samples)
        output = {"loss": loss, "model_outputs": None, "batch_size": finished.samples}
        end, batch = TrainerCallback.on_train_step_end, finished.batch
        if part.some_are_empty:
            self._call_for_all(
                lambda: self._call_event(end, batch=batch, batch_output=output, step=part.step), is_empty=False
            )
        else:
            self._call_event(end, batch=batch, batch_output=output, step=part.step)
