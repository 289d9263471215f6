"""Runs the parts one after the other, each in a process of its own, and keeps what is known on the disk."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.gpu.figures import figure_of
from tools.gpu.parts import PARTS
from tools.gpu.report import MeasuredPart, write_report

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 525.0
LINES_KEPT = 60
SECONDS_TO_DIE = 5.0


def main(arguments: Sequence[str]) -> int:
    """Measure; the status is 1 if something failed, was cut off or broke a promise."""
    parser = argparse.ArgumentParser(prog="python tools/gpu_check.py")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that everything works")
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help="of: " + ", ".join(PARTS)
    )
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu_check"), help="the folder of both files")
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="the time for everything")
    options = parser.parse_args(arguments)
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    parts = [MeasuredPart(name) for name in PARTS if name in options.parts]

    def write() -> None:
        write_report(folder, parts, time.monotonic() - began)

    for part in parts:
        left = options.seconds - (time.monotonic() - began)
        run_part(part, min(PARTS[part.name].seconds, left), options.quick, write)
        print(f"{part.name}: {part.outcome} in {part.seconds:.0f} s", flush=True)
        write()
    print((folder / "gpu_check.md").read_text("utf-8"))
    return 1 if any(part.is_wrong for part in parts) else 0


def run_part(part: MeasuredPart, seconds: float, is_quick: bool, write: Callable[[], None]) -> None:
    """Run a part for so many seconds at most, and write each figure as soon as it is known."""
    if seconds <= 0:
        part.outcome, part.output = "cut off", "no time was left"
        return
    began = time.monotonic()
    part.outcome = "under way"
    running = subprocess.Popen(
        [sys.executable, "-u", "-m", "tools.gpu.part", part.name, *(["--quick"] if is_quick else [])],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    other_lines: deque[str] = deque(maxlen=LINES_KEPT)

    def read() -> None:
        assert running.stdout is not None
        for line in running.stdout:
            figure = figure_of(line)
            if figure is None:
                other_lines.append(line)
                continue
            part.figures.append(figure)
            part.seconds = time.monotonic() - began
            write()

    reader = threading.Thread(target=read, daemon=True)  # what a killed part has started may hold on to the pipe
    reader.start()
    try:
        status = running.wait(timeout=seconds)
        part.outcome = "complete" if status == 0 else "failed"
    except subprocess.TimeoutExpired:
        part.outcome = "cut off"
    finally:
        with contextlib.suppress(ProcessLookupError):  # also what it left running
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        reader.join(SECONDS_TO_DIE)
    part.seconds = time.monotonic() - began
    if part.is_wrong:
        part.output = "".join(other_lines)


def environment() -> dict[str, str]:
    """That of this process, with our sources, and without settings of a launcher."""
    sources = [str(ROOT), *map(str, sorted(ROOT.glob("packages/*/src")))]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "PT_ACC_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join([*sources, *filter(None, [os.environ.get("PYTHONPATH")])])}
