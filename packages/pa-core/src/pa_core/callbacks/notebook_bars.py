"""Progress bars in a notebook: one output of the cell, which is replaced, so that nothing piles up in it."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any, cast

from typing_extensions import override

from pa_core._tqdm import bar_class
from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks.epoch_progress import ProgressDisplay

__all__ = ["NotebookBar", "NotebookOutput", "NotebookRunBar", "is_in_notebook"]

_WIDTH = 79


def is_in_notebook() -> bool:
    """Return whether what is printed goes to a cell of a notebook."""
    return type(sys.stderr).__module__.startswith("ipykernel")


class NotebookOutput:
    """One output of a cell, of a line for each bar.

    Args:
        stays: Whether the last bar will not be replaced by the bars of other epochs.

    Attributes:
        stays: As passed.
    """

    def __init__(self, *, stays: bool = False) -> None:
        self.stays = stays
        self._lines: dict[str, str] = {}
        self._handle: Any = None

    def show(self, key: str, line: str | None) -> None:
        """Replace a line, or remove it, unless nothing would be left.

        Args:
            key: Which line.
            line: What it says from now on; None removes it.
        """
        if line is None and self._lines.keys() - {key}:
            self._lines.pop(key, None)
        elif line is not None:
            self._lines[key] = line
        data = {"text/plain": "\n".join(self._lines.values())}
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class NotebookBar(ProgressDisplay):
    """The bar of an epoch.

    Args:
        output: Where it is shown.
        title: What it starts with.
        total: The number of batches; None where it is not known.
        log: Gets the line at the end of the epoch, which the bar of the next one replaces.
    """

    seconds_between: float = 0.1

    def __init__(self, output: NotebookOutput, title: str, total: int | None, log: ProgressDisplay | None) -> None:
        self._output = output
        self._title = title
        self._total = total
        self._log = log
        self._started = self._last = time.monotonic()
        self.show(0, "")

    @override
    def show(self, batches: int, figures: str) -> None:
        self._last = time.monotonic()
        elapsed = self._last - self._started
        self._output.show("epoch", _draw(self._title, "{n_fmt}/{total_fmt}", batches, self._total, elapsed, figures))

    @override
    def resume(self) -> None:
        self._started += time.monotonic() - self._last

    @override
    def close(self, batches: int, figures: str) -> None:
        self.show(batches, figures)
        self._output.show("epoch", None)
        if self._log is not None:
            self._log.close(batches, figures)


class NotebookRunBar:
    """The bar of a run, which stays when the run is over.

    Args:
        output: Where it is shown.
        total: The updates of the run.
        done: Those that were made before it was resumed.
    """

    def __init__(self, output: NotebookOutput, total: int, done: int) -> None:
        self._output = output
        self._total = total
        self._done = done
        self._started = time.monotonic()

    def show(self, trainer: AnyTrainer) -> None:
        """Show how far the run is."""
        elapsed = time.monotonic() - self._started
        updates = trainer.num_updates_completed
        line = _draw("Run", "{percentage:.0f}%", updates, self._total, elapsed, "", initial=self._done)
        self._output.show("run", line)

    def close(self) -> None:
        """Leave the bar as it is."""


def _draw(title: str, count: str, n: int, total: int | None, elapsed: float, figures: str, *, initial: int = 0) -> str:
    text = bar_class().format_meter(
        n,
        cast("int", total),  # which may be None, whatever its annotation says
        elapsed,
        ncols=_WIDTH,
        prefix=title,
        postfix=figures or None,
        initial=initial,
        bar_format=f"{{desc}} |{{bar}}| {count} [{{elapsed}}<{{remaining}}{{postfix}}]",
    )
    return text.rstrip()
