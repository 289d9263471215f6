"""Draw how a run is killed, started again, and ends as one that was never killed: `python -m docs.terminal.killed_run`.

The session really takes place. What it printed becomes an animation for the README.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from docs.terminal.animation import Line, animate, shorten_waits

__all__ = ["checksums", "draw", "record"]

SCRIPT = Path(__file__).parents[2] / "examples" / "stop_and_resume.py"
DRAWN = Path(__file__).with_name("killed-run.svg")

_EPOCHS, _EPOCHS_BEFORE_KILL = 6, 3
_DESCRIPTION = (
    "A terminal: a training script is killed with kill -9 in its fourth epoch. The same command, started again, goes "
    "on in the middle of that epoch. The checksum of the weights that it prints at the end is that of a run that was "
    "never killed."
)
_CHECKSUM = re.compile(r"checksum of the weights is (\d+)")
_ROW = re.compile(r" +\d+ +[\d.]+ ")


class _Recording:
    """A terminal in which the script runs.

    Args:
        folder: Where the script is started, and keeps its states.
        python: The command that starts Python.
    """

    def __init__(self, folder: Path, python: Sequence[str]) -> None:
        self.lines: list[Line] = []
        self._folder = folder
        self._python = python
        self._start = time.monotonic()

    def show(self, text: str, kind: Literal["command", "output", "signal"] = "output") -> None:
        """Add a line."""
        seconds = time.monotonic() - self._start
        self.lines.append(Line(seconds, text, "result" if _CHECKSUM.search(text) else kind))

    def run(self, *options: str, killed_after: int | None = None, last_only: bool = False) -> None:
        """Run the script to its end, or kill it in the middle of the epoch that follows some others."""
        prompt = f"$ python {SCRIPT.name} --epochs={_EPOCHS} {' '.join(options)}"
        self.show(f"{prompt} | tail -n 1" if last_only else prompt.rstrip(), "command")
        command = [*self._python, "-u", str(SCRIPT), f"--epochs={_EPOCHS}", *options]
        rows: list[float] = []
        text = ""
        with subprocess.Popen(
            command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for line in process.stdout or ():
                text = line.rstrip()
                if not last_only:
                    self.show(text)
                if _ROW.match(text):
                    rows.append(time.monotonic())
                if len(rows) == killed_after:
                    time.sleep((rows[-1] - rows[-2]) / 2)
                    process.kill()
                    break
        if killed_after is not None:
            self.show("Killed  # by kill -9, in the middle of an epoch", "signal")
        if last_only:
            self.show(text)


def record(folder: Path, python: Sequence[str] = (sys.executable,)) -> list[Line]:
    """Run the session in a folder, and return what a terminal shows of it.

    Args:
        folder: Where the runs keep their states.
        python: The command that starts Python.
    """
    terminal = _Recording(folder, python)
    terminal.run(killed_after=_EPOCHS_BEFORE_KILL)
    terminal.run()
    terminal.run("--output=never_killed", last_only=True)
    return terminal.lines


def checksums(lines: Sequence[Line]) -> list[str]:
    """Return the checksums of weights that a session shows."""
    return [found[1] for line in lines if (found := _CHECKSUM.search(line.text))]


def draw(lines: Sequence[Line]) -> str:
    """Return the animation of a session.

    Raises:
        ValueError: The resumed run did not end as the one that was never killed.
    """
    match checksums(lines):
        case [resumed, whole] if resumed == whole:
            slower = shorten_waits(lines, longest=1.0, after_command=1.0)
            return animate(slower, "bit-for-bit identical after kill -9", _DESCRIPTION)
        case shown:
            message = f"Both runs should have ended with the same weights. The checksums that they print: {shown}."
            raise ValueError(message)


def main() -> None:
    """Write the animation."""
    parser = argparse.ArgumentParser(prog="python -m docs.terminal.killed_run", description=__doc__)
    parser.add_argument("path", nargs="?", type=Path, default=DRAWN, help="where the SVG is to be")
    path: Path = parser.parse_args().path
    with tempfile.TemporaryDirectory() as folder:
        path.write_text(draw(record(Path(folder))))


if __name__ == "__main__":
    main()
