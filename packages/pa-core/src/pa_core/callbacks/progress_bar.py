"""Progress bars on a terminal and in a notebook, lines in a log."""

from __future__ import annotations

import sys
from typing import Any

from typing_extensions import override

from pa_core._tqdm import Bar, draw_bar, is_in_notebook, is_terminal
from pa_core.any_trainer import AnyTrainer, TrainerCallback
from pa_core.callbacks.epoch_progress import EpochProgress
from pa_core.callbacks.print_progress import PrintProgressCallback
from pa_core.data.custom_loader import length_of
from pa_core.types import BatchOutput

__all__ = ["ProgressBarCallback"]


class ProgressBarCallback(TrainerCallback):
    """Shows the progress of the run, and of each epoch: mean loss so far, learning rate, samples per second.

    On a terminal, and in a notebook with ``ipywidgets``, these are two progress bars, one for the run, if it has
    several epochs, and one for the epoch. Elsewhere, for example in a job, a line is written to standard output every
    30 seconds of an epoch.

    Where ``PrintProgressCallback`` prints a row for each epoch, nothing else is left of it. Without it, the bar of each
    epoch stays on the terminal, and a line is written at its end to a notebook, or to a file that gets standard output.
    Only the first process of each machine shows anything. The loss is the one of this process, and never waits for an
    accelerator.

    Example:
        >>> from pa_core import get_default_callbacks
        >>> any(callback is ProgressBarCallback for callback in get_default_callbacks())
        True
    """

    joins_sanity_evaluation = False

    def __init__(self) -> None:
        self._open: dict[str, EpochProgress] = {}
        self._only_evaluates = False
        self._run: Bar | None = None

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the bar of the run."""
        self._only_evaluates = False
        self._close_run()
        self._run = _draw_run_bar(trainer)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Move the bar of the run on."""
        self._show_run(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the bar of the run."""
        self._close_run()

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note that there is no epoch to name."""
        self._only_evaluates = True

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the display of a training epoch."""
        self._show_run(trainer)
        if trainer.run_config.is_local_process_zero:
            self._open["train"] = EpochProgress(
                f"Epoch {trainer.run_history.current_epoch}",
                _num_batches_to_train(trainer),
                is_drawn=_draws_bars(trainer),
                keeps_last=not _prints_rows(trainer),
                shows_learning_rate=True,
            )

    @override
    def on_train_steps_passed_over(self, trainer: AnyTrainer, steps: int, **kwargs: Any) -> None:
        """Start where the epoch was interrupted, or show how far the loader is on its way there."""
        if "train" in self._open:
            self._open["train"].pass_over(trainer, steps)

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        """Count the batch."""
        if "train" in self._open and self._open["train"].step(trainer, batch_output["batch_size"]):
            self._show_run(trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display."""
        self._close(trainer, "train", is_complete=True)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Open the display of an evaluation epoch, below the display of the training epoch if there is one."""
        if "train" in self._open:
            self._open["train"].pause()
        loader, name = trainer.eval_dataloader, trainer.eval_name
        if loader is None or not trainer.run_config.is_local_process_zero:
            return
        if self._only_evaluates:
            title = "Evaluation" if name is None else f"Evaluation of {name}"
        else:
            title = f"Epoch {trainer.run_history.current_epoch} eval" + (f" {name}" if name is not None else "")
        keeps_last = not is_intermediate and not _prints_rows(trainer)
        self._open["eval"] = EpochProgress(
            title, length_of(loader), is_drawn=_draws_bars(trainer), keeps_last=keeps_last
        )

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        """Count the batch."""
        if "eval" in self._open:
            self._open["eval"].step(trainer, batch_output["batch_size"])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display of the evaluation, and resume the display of the training."""
        self._close(trainer, "eval", is_complete=True)
        if "train" in self._open:
            self._open["train"].resume()

    @override
    def on_prediction_run_start(self, trainer: AnyTrainer, *, num_batches: int, **kwargs: Any) -> None:
        """Open the display of a prediction."""
        if trainer.run_config.is_local_process_zero:
            self._open["prediction"] = EpochProgress(
                "Prediction", num_batches, is_drawn=_draws_bars(trainer), keeps_last=True, shows_means=False
            )

    @override
    def on_prediction_step_end(self, trainer: AnyTrainer, *, batch_size: int, **kwargs: Any) -> None:
        """Count the batch."""
        if "prediction" in self._open:
            self._open["prediction"].step(trainer, batch_size)

    @override
    def on_prediction_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display."""
        self._close(trainer, "prediction", is_complete=False)

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close what is open."""
        self._close(trainer, "eval", is_complete=False)
        self._close(trainer, "train", is_complete=False)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Close what is open, so that the traceback starts on its own line."""
        for phase in ("eval", "train", "prediction"):
            self._close(trainer, phase, is_complete=False)
        self._close_run()

    def _close(self, trainer: AnyTrainer, phase: str, *, is_complete: bool) -> None:
        if phase in self._open:
            self._open.pop(phase).close(trainer, is_complete=is_complete)

    def _show_run(self, trainer: AnyTrainer) -> None:
        if self._run is not None:
            self._run.update(trainer.num_updates_completed - self._run.n)

    def _close_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


def _draws_bars(trainer: AnyTrainer) -> bool:
    # Processes that were started from a cell have no widgets of their own.
    return is_terminal(sys.stderr) or (is_in_notebook() and trainer.num_processes == 1)


def _prints_rows(trainer: AnyTrainer) -> bool:
    return any(isinstance(one, PrintProgressCallback) for one in trainer.callback_handler.callbacks)


def _draw_run_bar(trainer: AnyTrainer) -> Bar | None:
    """Return a bar where it can be drawn, and has more to show than the bar of the only epoch."""
    config, lengths = trainer.run_config, trainer.epoch_lengths
    if trainer.was_complete or config.num_epochs == 1 or not lengths.are_known:
        return None
    if not config.is_local_process_zero or not _draws_bars(trainer):
        return None
    total = config.max_num_train_steps or lengths.updates_before(config.num_epochs)
    return draw_bar("Run", total, "{percentage:.0f}%", stays=False, initial=trainer.num_updates_completed)


def _num_batches_to_train(trainer: AnyTrainer) -> int | None:
    """Return the length of the epoch that begins, which may be the one that ``max_num_train_steps`` cuts."""
    config, whole = trainer.run_config, length_of(trainer.train_dataloader)
    if trainer.epoch_lengths.updates_per_group > 1:
        return None  # of each batch come several, or fewer
    if config.max_num_train_steps is None or whole is None:
        return whole
    updates_left = config.max_num_train_steps - trainer.num_updates_completed
    # A run that was resumed mid-epoch has made some of the epoch's updates before.
    updates_done = max(
        0, trainer.num_updates_completed - trainer.epoch_lengths.updates_before(trainer.num_epochs_completed)
    )
    return min(whole, (updates_left + updates_done) * config.gradient_accumulation_steps)
