"""Runs of the script: one that nothing disturbs, and one that is killed again and again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.goodput.progress import PROCESS, Progress, ProgressFile, read_moments
from benchmarks.goodput.script import MOMENTS, OUTCOME, PROGRESS
from benchmarks.processes import ON_THE_CPU, ROOT

__all__ = ["Disturbed", "Recovery", "Undisturbed", "disturb", "rate_of", "train_undisturbed"]

_ENDLESS = 10**9


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing disturbed.

    Attributes:
        rate: Its updates in a second, between the first and the last one.
        outcome: What it ended with.
    """

    rate: float
    outcome: dict[str, Any]


@dataclass(frozen=True)
class Recovery:
    """How the script came back after a kill.

    Attributes:
        first: Seconds from the kill to the first update after it.
        regained: Seconds from the kill to the first update that had not been made before.
        lost: The number of updates that were made again.
        parts: Seconds of processor time in each part of the start, by its name.
    """

    first: float
    regained: float
    lost: int
    parts: dict[str, float]


@dataclass
class Disturbed:
    """A run that was killed again and again until it was complete.

    Attributes:
        seconds: From its first start to its end.
        kills: How often it was killed.
        recoveries: How it came back; kills that came again before the first update are not among them.
        outcome: What it ended with.
    """

    seconds: float = 0.0
    kills: int = 0
    recoveries: list[Recovery] = field(default_factory=list[Recovery])
    outcome: dict[str, Any] = field(default_factory=dict[str, Any])


def rate_of(folder: Path, arguments: list[str], seconds: float) -> float:
    """Return about how many updates the script makes in a second, before it is killed."""
    with _started(folder, [*arguments, f"--updates={_ENDLESS}"]) as process:
        _has_ended(process, seconds)
    return _rate(_progress(folder))


def train_undisturbed(folder: Path, arguments: list[str]) -> Undisturbed:
    """Run the script from its beginning to its end."""
    with _started(folder, arguments) as process:
        _require_success(process, folder)
    return Undisturbed(_rate(_progress(folder)), _outcome(folder))


def disturb(folder: Path, arguments: list[str], seconds: float, starter: str | None = None) -> Disturbed:
    """Start the script, and kill it and have it started again at once, until it is complete.

    Args:
        folder: Where the script writes.
        arguments: Its further arguments.
        seconds: From one kill to the next.
        starter: A program that starts it, and starts it again; None has it started here.
    """
    run, begun, kills = Disturbed(), time.monotonic(), list[_Kill]()
    is_complete = False
    while not is_complete:
        with _started(folder, arguments, starter) as process:
            while not is_complete and process.poll() is None:
                is_complete = _has_ended(process, seconds)
                if kills:
                    run.recoveries += _recovery(folder, kills[-1], _progress(folder))
                if not is_complete:
                    kills.append(_kill(folder))
                    if starter is None:
                        process.wait()
            if is_complete:
                _require_success(process, folder)
    run.seconds, run.kills, run.outcome = time.monotonic() - begun, len(kills), _outcome(folder)
    return run


class _Kill(NamedTuple):
    """When the script was killed, and how far it had come."""

    time: float
    progress: Progress


def _kill(folder: Path) -> _Kill:
    """Kill the process of the script, whoever has started it."""
    progress = _progress(folder)
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(int((folder / PROCESS).read_text()), signal.SIGKILL)
    return _Kill(time.monotonic(), progress)


def _recovery(folder: Path, kill: _Kill, progress: Progress) -> list[Recovery]:
    """How the script came back, if it did."""
    if progress.first_time < kill.time:
        return []
    processor = {name: seconds for name, (_, seconds) in read_moments(folder / MOMENTS).items()}
    parts = zip(processor, processor.values(), (0.0, *processor.values()), strict=False)
    return [
        Recovery(
            first=progress.first_time - kill.time,
            regained=progress.regained_time - kill.time,
            lost=kill.progress.last_update - progress.first_update + 1,
            parts={name: end - begin for name, end, begin in parts},
        )
    ]


@contextmanager
def _started(folder: Path, arguments: list[str], starter: str | None = None) -> Generator[subprocess.Popen[bytes]]:
    """The script on one thread, with what it prints in a file; it has ended when the context has."""
    folder.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        **ON_THE_CPU,
        "PYTHONPATH": os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))),
    }
    command = [sys.executable, *filter(None, [starter]), "benchmarks/goodput/start.py", str(folder), *arguments]
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    with process:
        try:
            yield process
        finally:
            process.kill()


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a process, but no longer than this."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _require_success(process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.wait() != 0:
        message = f"The script ended with status {process.returncode}:\n{(folder / 'output.txt').read_text()[-4000:]}"
        raise RuntimeError(message)


def _progress(folder: Path) -> Progress:
    return ProgressFile(folder / PROGRESS).read()


def _rate(progress: Progress) -> float:
    return (progress.last_update - progress.first_update) / (progress.last_time - progress.first_time)


def _outcome(folder: Path) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads((folder / OUTCOME).read_text())
    return outcome
