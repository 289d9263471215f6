"""How far an epoch is: a bar, or lines in a log, worked out only when they are shown."""

from __future__ import annotations

import sys
import time

from torch import Tensor

from pa_core._tqdm import draw_bar, is_terminal
from pa_core.any_trainer import AnyTrainer
from pa_core.device_reads import ScalarTransfer
from pa_core.model_tensors import learning_rates_of
from pa_core.tracking import LossTracker

__all__ = ["EpochProgress", "format_rate"]

SECONDS_BETWEEN_LINES = 30.0  # the log of a day has some thousand lines
_SECONDS_BETWEEN_REFRESHES = 0.1
_NO_DECIMALS_FROM = 100
_BATCHES_TO_WARM_UP = 2
"""Of the first, the event comes before its backward pass, which may be compiled."""


class EpochProgress:
    """Counts the batches of one epoch and shows them from time to time, on a bar or as whole lines.

    Only counters go up with each batch. Loss, what steps log, learning rate and speed are worked out when they are
    shown, and no mean waits for an accelerator: the value that has arrived last is shown. The speed is that after the
    first two batches, which are longer where workers start or a model is compiled.

    Args:
        title: What the bar and each line starts with.
        total: The number of batches of the epoch; None where it is not known.
        is_drawn: Whether there is a bar.
        keeps_last: Whether the last state stays: the bar on a terminal, and a line in a log or in a notebook.
        shows_learning_rate: Whether the highest learning rate of the parameter groups is among the figures.
        shows_means: Whether the loss and what steps log are among them.
    """

    def __init__(
        self,
        title: str,
        total: int | None,
        *,
        is_drawn: bool,
        keeps_last: bool,
        shows_learning_rate: bool = False,
        shows_means: bool = True,
    ) -> None:
        self._title = title
        self._total = total
        self._bar = None
        if is_drawn:
            stays = keeps_last and is_terminal(sys.stderr)
            self._bar = draw_bar(title, total, "{n_fmt}/{total_fmt}", stays=stays)
        self._keeps_last = keeps_last
        self._shows_means = shows_means
        self._shows_learning_rate = shows_learning_rate
        self._transfer = ScalarTransfer[str]()
        self._means: dict[str, float] = {}
        self._batches = 0
        self._batches_to_warm_up = _BATCHES_TO_WARM_UP
        self._samples = 0
        self._seconds_between = _SECONDS_BETWEEN_REFRESHES if is_drawn else SECONDS_BETWEEN_LINES
        self._started = self._paused = time.monotonic()
        self._next_refresh = self._started + self._seconds_between

    def step(self, trainer: AnyTrainer, batch_size: int) -> bool:
        """Count a batch of this process, and show it if it is time; return whether it was."""
        self._batches += 1
        self._samples += batch_size
        now = time.monotonic()
        if self._batches_to_warm_up > 0:
            self._batches_to_warm_up -= 1
            self._samples, self._started = 0, now
        if now < self._next_refresh:
            return False
        for name, tracker in self._trackers(trainer).items():
            total_and_count = tracker.totals()
            self._transfer.send(total_and_count[0] / total_and_count[1], tag=name)
        self._means.update(self._transfer.arrived())
        self._show(trainer, now, self._figures(trainer, now))
        return True

    def pass_over(self, trainer: AnyTrainer, batches: int) -> None:
        """Note that so many batches of the epoch are done, none of which was trained on here."""
        self._batches = batches
        self._started = time.monotonic()
        if self._started >= self._next_refresh:
            self._show(trainer, self._started, "skipping what was trained on before")

    def pause(self) -> None:
        """Stop the clock while another epoch runs in between."""
        self._paused = time.monotonic()

    def resume(self) -> None:
        """Restart the clock."""
        self._started += time.monotonic() - self._paused
        if self._bar is not None:
            self._bar.unpause()

    def close(self, trainer: AnyTrainer, *, is_complete: bool) -> None:
        """Show the last state, and end.

        Args:
            trainer: The trainer.
            is_complete: Whether the epoch has ended as it should. The trainer has then just read its means
                from the device; otherwise the device may not even answer.
        """
        if is_complete and self._batches:
            self._means = {name: tracker.average for name, tracker in self._trackers(trainer).items()}
        now = time.monotonic()
        figures = self._figures(trainer, now)
        if self._bar is not None:
            self._show(trainer, now, figures)
            self._bar.close()
        if self._keeps_last and self._batches and (self._bar is None or not is_terminal(sys.stdout)):
            self._write_line(trainer, figures)

    def _show(self, trainer: AnyTrainer, now: float, figures: str) -> None:
        self._next_refresh = now + self._seconds_between
        if self._bar is None:
            self._write_line(trainer, figures)
        else:
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(self._batches - self._bar.n)

    def _write_line(self, trainer: AnyTrainer, figures: str) -> None:
        total = "" if self._total is None else f"/{self._total}"
        trainer.print(f"{self._title}: {self._batches}{total} batches, {figures}", flush=True)

    def _figures(self, trainer: AnyTrainer, now: float) -> str:
        figures = [f"{name}={mean:.4g}" for name, mean in self._means.items()]
        if self._shows_learning_rate:
            rates = learning_rates_of(trainer.optimizer)
            # A rate that lives on an accelerator could only be read by waiting for it.
            if rates and all(not isinstance(rate, Tensor) or rate.is_cpu for rate in rates):
                figures.append(f"lr={float(max(rates)):.3g}")
        if self._samples and now > self._started:
            samples = self._samples * trainer.run_config.num_processes
            figures.append(f"{format_rate(samples / (now - self._started))} samples/s")
        return ", ".join(figures)

    def _trackers(self, trainer: AnyTrainer) -> dict[str, LossTracker]:
        return {"loss": trainer.loss_tracker, **trainer.step_means} if self._shows_means else {}


def format_rate(per_second: float) -> str:
    """Return a rate with as many digits as mean something.

    Example:
        >>> format_rate(12345.6), format_rate(3.14159)
        ('12,346', '3.14')
    """
    return f"{per_second:,.0f}" if per_second >= _NO_DECIMALS_FROM else f"{per_second:.3g}"
