"""A callback that shows progress: bars on a terminal and in a notebook, lines in a log."""

from __future__ import annotations

import sys
import time
from typing import Any

from torch import Tensor
from typing_extensions import override

from pa_core._device_reads import ScalarTransfer
from pa_core._tensors import learning_rates_of
from pa_core._tqdm import Bar, draw_bar, is_in_notebook, is_terminal
from pa_core.callbacks.epoch_rows import format_rate
from pa_core.callbacks.print_progress import PrintProgressCallback
from pa_core.data.custom_loader import length_of
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.tracking import LossTracker
from pa_core.types import BatchOutput

SECONDS_BETWEEN_LINES = 30.0  # the log of a day has some thousand lines
_SECONDS_BETWEEN_REFRESHES = 0.1
_BATCHES_TO_WARM_UP = 2
"""The speed leaves out 2 batches: the event of the first comes before its backward pass, which may be compiled."""


class ProgressBarCallback(TrainerCallback):
    """Show the progress of the run and of each epoch: mean loss so far, learning rate, samples per second.

    It is a default callback. Name it in ``callbacks=[...]`` if your list replaces the default callbacks. To leave it
    out, pass ``get_default_callbacks(progress_bar=False)``. It has no arguments and no state.

    On a terminal, and in a notebook with ``ipywidgets``, it draws two progress bars: one for the run, if it has several
    epochs, and one for the epoch. Elsewhere, for example in a Slurm job, it writes a line to standard output every 30
    seconds of an epoch. Evaluations and predictions are also shown.

    If ``PrintProgressCallback`` prints a row for each epoch, bars disappear at the end of the epoch. Otherwise, the bar
    of each epoch stays on the terminal; in a notebook, or if standard output goes to a file, a line is written at the
    end of each epoch. Only the first process of the run shows anything. The bar shows the mean loss of this process,
    and the speed of all processes together in samples per second. Reading the loss never blocks an accelerator.

    Example:
        >>> import torch
        >>> from pa_core import ProgressBarCallback, Trainer
        >>> from pa_core.testing import make_regression
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[ProgressBarCallback])
        >>> trainer.train(make_regression(64), num_epochs=1)  # doctest: +ELLIPSIS
        Epoch 1: 8/8 batches, loss=...
    """

    joins_sanity_evaluation = False
    only_observes = True

    def __init__(self) -> None:
        self._open: dict[str, _EpochProgress] = {}
        self._only_evaluates = False
        self._run: Bar | None = None

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the bar of the run, if it has several epochs.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._only_evaluates = False
        self._run = _draw_run_bar(trainer)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Advance the bar of the run to the end of the epoch.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._show_run(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the bar of the run.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._close_run()

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Record that the evaluation is not part of an epoch, so that the title of its bar names no epoch.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._only_evaluates = True

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the display of a training epoch.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._show_run(trainer)
        title = f"Epoch {trainer.run_history.current_epoch}"
        self._begin(trainer, "train", title, _num_batches_to_train(trainer))

    @override
    def on_train_steps_skipped(self, trainer: AnyTrainer, steps: int, **kwargs: Any) -> None:
        """Start at the position of the interruption, or show how far the loader has skipped batches.

        Args:
            trainer: The trainer.
            steps: The number of completed steps in the epoch.
            **kwargs: Not used.
        """
        if "train" in self._open:
            self._open["train"].skip(trainer, steps)

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        """Count the batch, and show the mean loss so far from time to time.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: The outputs of the step; only its ``batch_size`` is read.
            **kwargs: Not used.
        """
        if "train" in self._open and self._open["train"].step(trainer, batch_output["batch_size"]):
            self._show_run(trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display of the training epoch.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._close(trainer, "train", is_complete=True)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Open the display of an evaluation, below the display of a training epoch.

        Args:
            trainer: The trainer.
            is_intermediate: Whether the evaluation is within a training epoch.
            **kwargs: Not used.
        """
        if trainer.eval_dataloader is None:
            return
        title, name = f"Epoch {trainer.run_history.current_epoch} eval ", trainer.eval_name or ""
        if self._only_evaluates:
            title = "Evaluation of " if name else "Evaluation"
        total = length_of(trainer.eval_dataloader)
        self._begin(trainer, "eval", f"{title}{name}".rstrip(), total, is_intermediate=is_intermediate)

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        """Count the batch of the evaluation.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: The outputs of the step; only its ``batch_size`` is read.
            **kwargs: Not used.
        """
        if "eval" in self._open:
            self._open["eval"].step(trainer, batch_output["batch_size"])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display of the evaluation, and resume the display of the training.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        evaluation, training = self._open.get("eval"), self._open.get("train")
        self._close(trainer, "eval", is_complete=True)
        if evaluation is not None and training is not None:
            training.resume_after(evaluation)

    @override
    def on_prediction_run_start(self, trainer: AnyTrainer, *, num_batches: int, **kwargs: Any) -> None:
        """Open the display of a prediction.

        Args:
            trainer: The trainer.
            num_batches: The number of batches that this process predicts.
            **kwargs: Not used.
        """
        self._begin(trainer, "prediction", "Prediction", num_batches)

    @override
    def on_prediction_step_end(self, trainer: AnyTrainer, *, batch_size: int, **kwargs: Any) -> None:
        """Count the batch of the prediction.

        Args:
            trainer: The trainer.
            batch_size: The number of samples in the batch.
            **kwargs: Not used.
        """
        if "prediction" in self._open:
            self._open["prediction"].step(trainer, batch_size)

    @override
    def on_prediction_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display of the prediction.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._close(trainer, "prediction", is_complete=False)

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the displays of the epoch, before the reason is printed.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        for phase in reversed(list(self._open)):
            self._close(trainer, phase, is_complete=False)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Close all bars, so that the traceback starts on its own line.

        Args:
            trainer: The trainer.
            exception: The exception.
            **kwargs: Not used.
        """
        self.on_stop_training_error(trainer)
        self._close_run()

    def _begin(
        self, trainer: AnyTrainer, phase: str, title: str, total: int | None, *, is_intermediate: bool = False
    ) -> None:
        if trainer.is_main_process:
            has_row = any(
                isinstance(callback, PrintProgressCallback) for callback in trainer.callback_handler.callbacks
            )
            keeps_last = phase == "prediction" or not (is_intermediate or has_row)
            self._open[phase] = _EpochProgress(
                phase, title, total, is_drawn=_draws_bars(trainer), keeps_last=keeps_last
            )

    def _close(self, trainer: AnyTrainer, phase: str, *, is_complete: bool) -> None:
        if phase in self._open:
            self._open.pop(phase).close(trainer, is_complete=is_complete)

    def _show_run(self, trainer: AnyTrainer) -> None:
        if self._run is not None:
            _move(self._run, trainer.num_updates_completed)

    def _close_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


class _EpochProgress:
    """Counts the batches of an epoch and shows them from time to time, on a bar or as lines.

    Each batch only increments counters. Loss, logged values, learning rate and speed are computed when they are shown,
    and reading the means never blocks an accelerator, because the latest value that has arrived is shown. The speed is
    measured after the first two batches, which take longer if workers start or a model is compiled.

    Args:
        phase: The phase; only training has a learning rate, and a prediction has no loss.
        title: The text at the beginning of the bar and of each line.
        total: The number of batches of the epoch; None if it is unknown.
        is_drawn: Whether there is a bar.
        keeps_last: Whether the last state stays: the bar on a terminal, and a line in a log or in a notebook.
    """

    def __init__(self, phase: str, title: str, total: int | None, *, is_drawn: bool, keeps_last: bool) -> None:
        self._phase = phase
        self._title = title
        self._total = total
        stays = keeps_last and is_terminal(sys.stderr)
        self._bar = draw_bar(title, total, "{n_fmt}/{total_fmt}", stays=stays) if is_drawn else None
        self._keeps_last = keeps_last
        self._transfer = ScalarTransfer[str]()
        self._means: dict[str, float] = {}
        self._batches = self._samples = 0
        self._batches_to_warm_up = _BATCHES_TO_WARM_UP
        self._seconds_between = _SECONDS_BETWEEN_REFRESHES if is_drawn else SECONDS_BETWEEN_LINES
        self._started = self._opened = time.monotonic()
        self._next_refresh = self._started + self._seconds_between

    def step(self, trainer: AnyTrainer, batch_size: int) -> bool:
        """Count a batch of this process, and show the progress if it is time; return whether it was shown."""
        self._batches += 1
        self._samples += batch_size
        now = time.monotonic()
        if self._batches_to_warm_up > 0:
            self._batches_to_warm_up -= 1
            self._samples, self._started = 0, now
        if now < self._next_refresh:
            return False
        for name, tracker in self._trackers(trainer).items():
            total, count = tracker.totals()[:2]
            self._transfer.send(total / count, tag=name)
        self._means.update(self._transfer.arrived())
        self._show(trainer, now, self._figures(trainer, now))
        return True

    def skip(self, trainer: AnyTrainer, batches: int) -> None:
        """Count batches of the epoch that were skipped."""
        self._batches = batches
        self._started = time.monotonic()
        if self._started >= self._next_refresh:
            self._show(trainer, self._started, "skipping the batches trained on before")

    def resume_after(self, other: _EpochProgress) -> None:
        """Leave out the time of another epoch in between."""
        self._started += time.monotonic() - other._opened
        if self._bar is not None:
            self._bar.unpause()

    def close(self, trainer: AnyTrainer, *, is_complete: bool) -> None:
        """Show the last state, and end.

        Args:
            trainer: The trainer.
            is_complete: Whether the epoch is complete. The trainer has then just read its means from the device;
                otherwise the device may not even answer.
        """
        bar, self._bar = self._bar, None
        shows_line = self._keeps_last and self._batches and (bar is None or not is_terminal(sys.stdout))
        if bar is None and not shows_line:
            return
        if is_complete and self._batches:
            self._means = {name: tracker.average for name, tracker in self._trackers(trainer).items()}
        now = time.monotonic()
        figures = self._figures(trainer, now)
        if bar is not None:
            _move(bar, self._batches, figures)
            bar.close()
        if shows_line:
            self._show(trainer, now, figures)

    def _show(self, trainer: AnyTrainer, now: float, figures: str) -> None:
        self._next_refresh = now + self._seconds_between
        if self._bar is not None:
            _move(self._bar, self._batches, figures)
        else:
            total = "" if self._total is None else f"/{self._total}"
            trainer.print(f"{self._title}: {self._batches}{total} batches, {figures}", flush=True)

    def _figures(self, trainer: AnyTrainer, now: float) -> str:
        figures = [f"{name}={mean:.4g}" for name, mean in self._means.items()]
        if self._phase == "train":
            rates = learning_rates_of(trainer.optimizer)
            # Reading a rate on an accelerator would block it.
            if rates and all(not isinstance(rate, Tensor) or rate.is_cpu for rate in rates):
                figures.append(f"lr={float(max(rates)):.3g}")
        if self._samples and now > self._started:
            samples = self._samples * trainer.run_config.num_processes
            figures.append(f"{format_rate(samples / (now - self._started))} samples/s")
        return ", ".join(figures)

    def _trackers(self, trainer: AnyTrainer) -> dict[str, LossTracker]:
        return {} if self._phase == "prediction" else {"loss": trainer.loss_tracker, **trainer.step_means}


def _move(bar: Bar, count: int, figures: str = "") -> None:
    bar.set_postfix_str(figures, refresh=False)
    bar.update(count - bar.n)


def _draws_bars(trainer: AnyTrainer) -> bool:
    # Processes that were started from a cell have no widgets.
    return is_terminal(sys.stderr) or (is_in_notebook() and trainer.num_processes == 1)


def _draw_run_bar(trainer: AnyTrainer) -> Bar | None:
    """Return a bar of the run, or None if it cannot be drawn or the run has a single epoch."""
    config, lengths = trainer.run_config, trainer.epoch_lengths
    if trainer.was_complete or config.num_epochs == 1 or not lengths.are_known:
        return None
    if not trainer.is_main_process or not _draws_bars(trainer):
        return None
    total = config.max_num_train_steps or lengths.updates_before(config.num_epochs)
    return draw_bar("Run", total, "{percentage:.0f}%", stays=False, initial=trainer.num_updates_completed)


def _num_batches_to_train(trainer: AnyTrainer) -> int | None:
    """Return the length of the epoch that begins, which ``max_num_train_steps`` may cut."""
    config, lengths, whole = trainer.run_config, trainer.epoch_lengths, length_of(trainer.train_dataloader)
    if lengths.updates_per_group > 1:
        return None  # the loop makes several updates of a batch, or fewer
    if config.max_num_train_steps is None or whole is None:
        return whole
    # A run that was resumed mid-epoch has made some updates of the epoch before.
    begun_at = min(trainer.num_updates_completed, lengths.updates_before(trainer.num_epochs_completed))
    return min(whole, (config.max_num_train_steps - begun_at) * config.gradient_accumulation_steps)
