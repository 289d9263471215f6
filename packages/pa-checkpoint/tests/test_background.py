"""Writing while something else goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from pa_checkpoint._writer import BackgroundWriter

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from tests.launching import Launch


def _threads() -> int:
    return sum(thread.name.startswith("pa_checkpoint") for thread in threading.enumerate())


def _wait(go: threading.Event) -> None:
    assert go.wait(10)


def test_there_is_a_thread_only_while_a_job_runs() -> None:
    """Who never saves in the background has no thread for it, and nobody has one that waits."""
    writer, go = BackgroundWriter(), threading.Event()
    writer.wait()
    assert _threads() == 0

    writer.submit(partial(_wait, go))
    assert _threads() == 1
    go.set()
    writer.wait()
    assert _threads() == 0


class InterruptAt:
    """Sends what Ctrl-C does, before a line of what starts a job."""

    def __init__(self, line: int) -> None:
        self._lines_left = line

    def __call__(self, frame: FrameType, event: str, _argument: object) -> InterruptAt | None:
        """Count the lines, and go on to trace."""
        if not frame.f_code.co_filename.endswith(("pa_checkpoint/_writer.py", "threading.py")):
            return None
        if event == "line":
            self._lines_left -= 1
            if self._lines_left == 0:
                os.kill(os.getpid(), signal.SIGINT)
        return self


def test_an_interrupt_while_a_job_starts_leaves_nothing_half_done() -> None:
    """Wherever it comes, the job then runs once, or not at all, and the writer goes on to work."""
    outcomes: list[list[str]] = []
    tracing_before = sys.gettrace()
    while not outcomes or "not interrupted" not in outcomes[-1]:
        writer, done = BackgroundWriter(), list[str]()
        sys.settrace(InterruptAt(len(outcomes) + 1))
        try:
            writer.submit(partial(done.append, "first"))
            done.append("not interrupted")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracing_before)
        writer.wait()
        writer.submit(partial(done.append, "second"))
        writer.wait()
        outcomes.append(done)
    assert len(outcomes) > 20
    assert all(outcome in (["second"], ["first", "second"]) for outcome in outcomes[:-1])


def test_the_end_of_the_program_waits_for_the_write(launch: Launch, tmp_path: Path) -> None:
    """What is being written is completed, a failure that nobody was told of is printed, another one is not."""
    script = """
import sys, time
import torch
from pa_checkpoint._writer import BackgroundWriter
from pa_checkpoint._checkpoint import write_checkpoint

def write():
    time.sleep(0.5)
    summary = {"run": "first", "sequence": 1, "update": 1, "epoch": 1, "complete": False}
    write_checkpoint(sys.argv[1], {"model": torch.ones(1000)}, summary)

def fail(text):
    time.sleep(0.1)
    raise OSError(text)

writer, failing, told = BackgroundWriter(), BackgroundWriter(), BackgroundWriter()
told.submit(lambda: fail("This was told."))
try:
    told.wait()
except OSError:
    pass
writer.submit(write)
failing.submit(lambda: fail("Nobody was told."))
print("the program ends")
"""
    launched = launch(script, str(tmp_path / "state"))

    assert launched.status == 0
    assert (tmp_path / "state" / "manifest.json").exists()
    assert "the program ends" in launched.output
    assert "OSError: Nobody was told." in launched.output
    assert "This was told." not in launched.output
