"""How far an epoch is: what a progress display shows, worked out only when it is shown."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol, TextIO

from torch import Tensor
from typing_extensions import override

from pa_core.any_trainer import AnyTrainer
from pa_core.device_reads import ScalarTransfer
from pa_core.optimizer_parameters import learning_rates_of
from pa_core.tracking import LossTracker
from pa_core.user_warnings import write_or_warn

__all__ = ["EpochProgress", "PlainLines", "ProgressDisplay", "format_rate"]


_NO_DECIMALS_FROM = 100
_BATCHES_TO_WARM_UP = 2
"""Of the first, the event comes before its backward pass, which may be compiled."""


class ProgressDisplay(Protocol):
    """Where the progress of one epoch is shown.

    Attributes:
        seconds_between: How long it stays as it is before it is refreshed.
    """

    seconds_between: float

    def show(self, batches: int, figures: str) -> None:
        """Show the number of batches that are done, and what is known about them."""
        ...

    def resume(self) -> None:
        """Note that the epoch continues after an interruption."""
        ...

    def close(self, batches: int, figures: str) -> None:
        """Show the last state of the epoch, and end."""
        ...


class EpochProgress:
    """Counts the batches of one epoch and shows them from time to time.

    Only counters go up with each batch. Loss, what steps log, learning rate and speed are worked out when the display
    is due, and no mean waits for an accelerator: the value that has arrived last is shown. The speed is that after the
    first two batches, which are longer where workers start or a model is compiled.

    Args:
        display: Where the progress is shown.
        shows_learning_rate: Whether the highest learning rate of the parameter groups is among the figures.
        shows_means: Whether the loss and what steps log are among them.
    """

    def __init__(self, display: ProgressDisplay, shows_learning_rate: bool, *, shows_means: bool = True) -> None:
        self._display = display
        self._shows_means = shows_means
        self._shows_learning_rate = shows_learning_rate
        self._transfer = ScalarTransfer[str]()
        self._means: dict[str, float] = {}
        self._batches = 0
        self._batches_to_warm_up = _BATCHES_TO_WARM_UP
        self._samples = 0
        self._started = self._paused = time.monotonic()
        self._next_refresh = self._started + display.seconds_between

    def step(self, trainer: AnyTrainer, batch_size: int) -> None:
        """Count a batch of this process, and show it if it is time."""
        self._batches += 1
        self._samples += batch_size
        now = time.monotonic()
        if self._batches_to_warm_up > 0:
            self._batches_to_warm_up -= 1
            self._samples, self._started = 0, now
        if now >= self._next_refresh:
            self._next_refresh = now + self._display.seconds_between
            for name, tracker in self._trackers(trainer).items():
                total_and_count = tracker.totals()
                self._transfer.send(total_and_count[0] / total_and_count[1], tag=name)
            self._means.update(self._transfer.arrived())
            self._display.show(self._batches, self._figures(trainer, now))

    def pass_over(self, batches: int) -> None:
        """Note that so many batches of the epoch are done, none of which was trained on here."""
        self._batches = batches
        self._started = time.monotonic()
        if self._started >= self._next_refresh:
            self._next_refresh = self._started + self._display.seconds_between
            self._display.show(batches, "skipping what was trained on before")

    def pause(self) -> None:
        """Stop the clock while another epoch runs in between."""
        self._paused = time.monotonic()

    def resume(self) -> None:
        """Restart the clock."""
        self._started += time.monotonic() - self._paused
        self._display.resume()

    def close(self, trainer: AnyTrainer, is_complete: bool) -> None:
        """Show the last state and end the display.

        Args:
            trainer: The trainer.
            is_complete: Whether the epoch has ended as it should. The trainer has then just read its means
                from the device; otherwise the device may not even answer.
        """
        if is_complete and self._batches:
            self._means = {name: tracker.average for name, tracker in self._trackers(trainer).items()}
        self._display.close(self._batches, self._figures(trainer, time.monotonic()))

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


class PlainLines(ProgressDisplay):
    """Shows the progress as a whole line now and then, for log files.

    Args:
        title: What each line starts with.
        total: The number of batches of the epoch; None where it is not known.
        stream: Where the lines are written.
        keeps_last: Whether there is a line at the end of the epoch.
    """

    seconds_between: float = 30.0  # the log of a day has some thousand lines

    def __init__(self, title: str, total: int | None, stream: TextIO, keeps_last: bool) -> None:
        self._title = title
        self._total = total
        self._stream = stream
        self._keeps_last = keeps_last

    @override
    def show(self, batches: int, figures: str) -> None:
        """Write one line."""
        total = "" if self._total is None else f"/{self._total}"
        line = f"{self._title}: {batches}{total} batches, {figures}"
        write_or_warn(partial(print, line, file=self._stream, flush=True))

    @override
    def resume(self) -> None:
        """Do nothing: what was written stays."""

    @override
    def close(self, batches: int, figures: str) -> None:
        """Write the last line, if there is anything to say."""
        if self._keeps_last and batches:
            self.show(batches, figures)
