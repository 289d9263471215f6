"""Progress bars on a terminal and in a notebook, lines in a log."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, TextIO

from typing_extensions import override

from pa_core._tqdm import Bar, bar_class
from pa_core.any_trainer import AnyTrainer, TrainerCallback
from pa_core.callbacks.epoch_progress import EpochProgress, PlainLines, ProgressDisplay
from pa_core.callbacks.notebook_bars import NotebookBar, NotebookOutput, NotebookRunBar, is_in_notebook
from pa_core.callbacks.row_display import shows_rows
from pa_core.data.custom_loader import length_of
from pa_core.types import BatchOutput

__all__ = ["ProgressBarCallback"]


class ProgressBarCallback(TrainerCallback):
    """Shows the progress of the run, and of each epoch: mean loss so far, learning rate, samples per second.

    On a terminal these are two progress bars on standard error, one for the run, if it has several epochs, and one for
    the epoch. In a notebook they are one output of the cell, of which the bar of the run is left. Without a terminal,
    for example in a job, a line is written to standard output every 30 seconds of an epoch.

    Where ``PrintProgressCallback`` or ``LogMetricsCallback`` print a row for each epoch, nothing else is left of it.
    Without them, the bar of each epoch stays on the screen, or a line is written at its end, even to a file that gets
    only standard output. Only the first process of each machine shows anything. The loss is the one of this process,
    and never waits for an accelerator.

    Example:
        >>> from pa_core import get_default_callbacks
        >>> any(callback is ProgressBarCallback for callback in get_default_callbacks())
        True
    """

    joins_sanity_evaluation = False

    def __init__(self) -> None:
        self._train: EpochProgress | None = None
        self._eval: EpochProgress | None = None
        self._prediction: EpochProgress | None = None
        self._only_evaluates = False
        self._run: _RunBar | NotebookRunBar | None = None
        self._cell = NotebookOutput()

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the bar of the run."""
        self._only_evaluates = False
        self._close_run()
        self._cell = NotebookOutput()
        self._run = _open_run_bar(trainer, self._cell)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Move the bar of the run on."""
        if self._run is not None:
            self._run.show(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the bar of the run."""
        self._close_run()

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Note that there is no epoch to name."""
        self._cell = NotebookOutput(stays=True)
        self._only_evaluates = True

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the display of a training epoch."""
        title = f"Epoch {trainer.run_history.current_epoch}"
        keeps_last = not shows_rows(trainer)
        display = _open_display(trainer, self._cell, title, _num_batches_to_train(trainer), keeps_last)
        if self._run is not None:
            self._run.show(trainer)
            display = None if display is None else _WithRunBar(display, self._run, trainer)
        self._train = None if display is None else EpochProgress(display, shows_learning_rate=True)

    @override
    def on_train_steps_passed_over(self, trainer: AnyTrainer, steps: int, **kwargs: Any) -> None:
        """Start where the epoch was interrupted, or show how far the loader is on its way there."""
        if self._train is not None:
            self._train.pass_over(steps)

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        """Count the batch."""
        if self._train is not None:
            self._train.step(trainer, batch_output["batch_size"])

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display."""
        self._close_train(trainer, is_complete=True)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Open the display of an evaluation epoch, below the display of the training epoch if there is one."""
        if self._train is not None:
            self._train.pause()
        if trainer.eval_dataloader is None:
            return
        title = "Evaluation" if self._only_evaluates else f"Epoch {trainer.run_history.current_epoch} eval"
        if trainer.eval_name is not None:
            title += f" {trainer.eval_name}" if not self._only_evaluates else f" of {trainer.eval_name}"
        keeps_last = not is_intermediate and not shows_rows(trainer)
        display = _open_display(trainer, self._cell, title, length_of(trainer.eval_dataloader), keeps_last)
        self._eval = None if display is None else EpochProgress(display, shows_learning_rate=False)

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        """Count the batch."""
        if self._eval is not None:
            self._eval.step(trainer, batch_output["batch_size"])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display of the evaluation, and resume the display of the training."""
        self._close_eval(trainer, is_complete=True)
        if self._train is not None:
            self._train.resume()

    @override
    def on_prediction_run_start(self, trainer: AnyTrainer, *, num_batches: int, **kwargs: Any) -> None:
        """Open the display of a prediction."""
        self._cell = NotebookOutput(stays=True)
        display = _open_display(trainer, self._cell, "Prediction", num_batches, keeps_last=True)
        self._prediction = (
            None if display is None else EpochProgress(display, shows_learning_rate=False, shows_means=False)
        )

    @override
    def on_prediction_step_end(self, trainer: AnyTrainer, *, batch_size: int, **kwargs: Any) -> None:
        """Count the batch."""
        if self._prediction is not None:
            self._prediction.step(trainer, batch_size)

    @override
    def on_prediction_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display."""
        self._close_prediction(trainer)

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close what is open."""
        self._close_eval(trainer, is_complete=False)
        self._close_train(trainer, is_complete=False)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Close what is open, so that the traceback starts on its own line."""
        self._close_eval(trainer, is_complete=False)
        self._close_train(trainer, is_complete=False)
        self._close_prediction(trainer)
        self._close_run()

    def _close_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def _close_prediction(self, trainer: AnyTrainer) -> None:
        if self._prediction is not None:
            self._prediction.close(trainer, is_complete=False)
            self._prediction = None

    def _close_train(self, trainer: AnyTrainer, is_complete: bool) -> None:
        if self._train is not None:
            self._train.close(trainer, is_complete)
            self._train = None

    def _close_eval(self, trainer: AnyTrainer, is_complete: bool) -> None:
        if self._eval is not None:
            self._eval.close(trainer, is_complete)
            self._eval = None


class _TerminalBar(ProgressDisplay):
    """A bar of tqdm, on a terminal.

    Args:
        title: What the bar starts with.
        total: The number of batches of the epoch; None where it is not known.
        stream: Where it is drawn.
        keeps_last: Whether it stays on the screen after the epoch.
        log: Gets the line at the end of the epoch as well, where standard output is not on the screen.
    """

    seconds_between: float = 0.1

    def __init__(
        self, title: str, total: int | None, stream: TextIO, keeps_last: bool, log: ProgressDisplay | None
    ) -> None:
        self._log = log
        self._bar = _draw_bar(title, total, stream, "{n_fmt}/{total_fmt}", keeps_last=keeps_last)

    @override
    def show(self, batches: int, figures: str) -> None:
        self._bar.set_postfix_str(figures, refresh=False)
        self._bar.update(batches - self._bar.n)

    @override
    def resume(self) -> None:
        self._bar.unpause()

    @override
    def close(self, batches: int, figures: str) -> None:
        self.show(batches, figures)
        self._bar.close()
        if self._log is not None:
            self._log.close(batches, figures)


class _RunBar:
    """A bar of tqdm for the updates of a whole run, above the bar of the epoch.

    Args:
        total: The updates of the run.
        done: Those that were made before it was resumed.
        stream: Where it is drawn.
    """

    def __init__(self, total: int, done: int, stream: TextIO) -> None:
        self._bar = _draw_bar("Run", total, stream, "{percentage:.0f}%", keeps_last=False, initial=done)

    def show(self, trainer: AnyTrainer) -> None:
        """Show how far the run is."""
        self._bar.update(trainer.num_updates_completed - self._bar.n)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


class _WithRunBar(ProgressDisplay):
    """The display of a training epoch, with which the bar of the run is refreshed."""

    def __init__(self, display: ProgressDisplay, run: _RunBar | NotebookRunBar, trainer: AnyTrainer) -> None:
        self.seconds_between = display.seconds_between
        self._display = display
        self._run = run
        self._trainer = trainer

    @override
    def show(self, batches: int, figures: str) -> None:
        self._display.show(batches, figures)
        self._run.show(self._trainer)

    @override
    def resume(self) -> None:
        self._display.resume()

    @override
    def close(self, batches: int, figures: str) -> None:
        self._display.close(batches, figures)


def _draw_bar(title: str, total: int | None, stream: TextIO, count: str, *, keeps_last: bool, initial: int = 0) -> Bar:
    assumed = _size_if_unknown(stream)
    return bar_class()(
        desc=title,
        total=total,
        initial=initial,
        file=stream,
        leave=keeps_last,
        # The last column and the last line are left free, as tqdm does itself.
        ncols=None if assumed is None else assumed.columns - 1,
        nrows=None if assumed is None else assumed.lines - 1,
        dynamic_ncols=assumed is None,
        # It is told when to refresh, and does so each time.
        mininterval=0,
        miniters=1,
        bar_format=f"{{desc}} |{{bar}}| {count} [{{elapsed}}<{{remaining}}{{postfix}}]",
    )


def _size_if_unknown(stream: TextIO) -> os.terminal_size | None:
    """Return the size to assume for a terminal that reports none, as in some containers; None where it is known.

    A bar of 0 columns would be invisible, and so would one that lies below the last of 0 lines.
    """
    try:
        reported = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # not a terminal, but a notebook for example
        return None
    return None if all(reported) else shutil.get_terminal_size()


def _open_display(
    trainer: AnyTrainer, cell: NotebookOutput, title: str, total: int | None, keeps_last: bool
) -> ProgressDisplay | None:
    """Return what suits the place where the output goes; None where nothing is shown."""
    if not trainer.run_config.is_local_process_zero:
        return None
    screen: TextIO | None = sys.stderr
    log: TextIO | None = sys.stdout
    lines = None if log is None else PlainLines(title, total, log, keeps_last)
    if is_in_notebook() and trainer.num_processes == 1:
        return NotebookBar(cell, title, total, lines if keeps_last and not cell.stays else None)
    if screen is not None and _is_terminal(screen):
        return _TerminalBar(title, total, screen, keeps_last, log=None if log is None or log.isatty() else lines)
    return lines


def _open_run_bar(trainer: AnyTrainer, cell: NotebookOutput) -> _RunBar | NotebookRunBar | None:
    """Return a bar where it can be drawn, and has more to show than the bar of the only epoch."""
    num_epochs, lengths = trainer.run_config.num_epochs, trainer.epoch_lengths
    if trainer.was_complete or num_epochs == 1 or not lengths.are_known or not trainer.run_config.is_local_process_zero:
        return None
    done = trainer.num_updates_completed
    total = trainer.run_config.max_num_train_steps or lengths.updates_before(num_epochs)
    screen: TextIO | None = sys.stderr
    if is_in_notebook() and trainer.num_processes == 1:
        return NotebookRunBar(cell, total, done)
    return _RunBar(total, done, screen) if screen is not None and _is_terminal(screen) else None


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


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
