"""Kill processes that save training states, at random moments, and see what is left.

`python packages/pa-checkpoint/tests/kills_during_saving.py 500` kills 500 and prints in which phase each was hit.
Every second one is killed from outside after a random time, the others kill themselves just before or after a
random one of their calls to the system, which also hits the phases that last only microseconds.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch

from pa_checkpoint import Folder, load
from pa_checkpoint._checkpoint import write_checkpoint
from pa_checkpoint._encoding import JsonScalar, encode
from pa_checkpoint._writer import BackgroundWriter, HostPool

RUN = "killed"
PHASES = ("before the first save", "between", "writing", "fsync", "rename", "removal")
MAX_STEPS = 60  # some saves: each makes about ten steps
MAX_DELAY = 0.03  # seconds: some saves


class Board:
    """What a process tells about itself while it lives: memory shared with it, which outlives it.

    Attributes:
        phase: What it is doing, an index of ``PHASES``.
        started: The update of the save that was begun last.
        finished: The update of the save that was completed last.
    """

    def __init__(self) -> None:
        self.phase, self.started, self.finished = (multiprocessing.RawValue(ctypes.c_uint64) for _ in range(3))

    @contextlib.contextmanager
    def during(self, phase: str) -> Generator[None]:
        """Show a phase, then the one before."""
        before, self.phase.value = self.phase.value, PHASES.index(phase)
        yield
        self.phase.value = before


def value_of(update: int) -> dict[str, Any]:
    """What is saved at an update: all of it can be told from the number."""
    weight = torch.full((100, 100), float(update))
    return {"weight": weight, "tied": weight, "history": [update] * 50}


def save_forever(path: Path, board: Board, *, replacing: bool, in_background: bool) -> None:
    """Save after every update, in a folder with retention, or again and again under one path."""
    folder = Folder(path.parent if replacing else path)
    folder.remove_leftovers(RUN)
    state, _ = Folder(path).newest_readable(load)
    update = int(state.parts["position"]) if state else 0
    writer, pool = BackgroundWriter(), HostPool()

    def save(update: int, parts: Any) -> None:
        board.started.value = update
        with board.during("writing"):
            sequence = folder.next_sequence()
            summary: dict[str, JsonScalar] = {"run": RUN, "sequence": sequence, "update": update}
            summary |= {"epoch": 1, "complete": False}
            write_checkpoint(path if replacing else folder.path_for(f"step_{update}", RUN), parts, summary)
        board.finished.value = update
        if not replacing:
            folder.keep(2, RUN)

    board.phase.value = PHASES.index("between")
    while True:
        update += 1
        values = {"model": value_of(update), "position": update}
        if in_background:
            writer.wait()
            snapshot = pool.copy({name: encode(value, name) for name, value in values.items()})
            writer.submit(functools.partial(save, update, snapshot))
        else:
            save(update, values)


def count_steps(board: Board, steps_to_live: int | None) -> None:
    """Show the phase of each call to the system, and die at a step if so wanted."""
    steps = itertools.count()

    def step() -> None:
        if next(steps) == steps_to_live:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with board.during(phase):
                step()
                result = function(*arguments, **options)
                step()
            return result

        return call

    calls = [(os, "fsync"), (os, "rename"), (os, "mkdir"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree")]
    phases = {"fsync": "fsync", "rename": "rename", "mkdir": "writing"}
    for module, name in calls:
        setattr(module, name, watched(getattr(module, name), phases.get(name, "removal")))


def kill_one(path: Path, board: Board, choice: random.Random, number: int) -> str:
    """Start a process that saves, kill it, and return the phase in which it was."""
    from_outside, replacing, in_background = number % 2 == 0, path.name == "state", number % 4 >= 2
    board.phase.value = board.started.value = board.finished.value = 0
    steps = choice.randrange(MAX_STEPS)
    process = os.fork()
    if process == 0:
        try:
            count_steps(board, None if from_outside else steps)
            save_forever(path, board, replacing=replacing, in_background=in_background)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    if from_outside:
        while not board.phase.value and os.waitpid(process, os.WNOHANG) == (0, 0):
            time.sleep(0.0001)
        time.sleep(choice.uniform(0, MAX_DELAY))
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), f"the process ended by itself with status {status}"
    return PHASES[board.phase.value]


def check(path: Path, board: Board, before: int) -> int:
    """See that the last completed save, or a later one, is found whole; return its update."""
    state, skipped = Folder(path).newest_readable(load)
    assert skipped == [], f"a broken state is visible: {skipped}"
    found = 0
    if state is not None:
        found = int(state.parts["position"])
        assert found == state.summary["update"]
        assert state.parts["model"]["weight"].equal(value_of(found)["weight"])
        assert state.parts["model"]["history"] == value_of(found)["history"]
    assert max(before, board.finished.value) <= found <= max(before, board.started.value), "more than one save is lost"
    folder = Folder(path.parent if path.name == "state" else path)
    assert [record.problem for record in folder.records() if record.problem] == []
    folder.remove_leftovers(RUN)
    hidden = {entry.name for entry in folder.path.glob(".*")}
    assert hidden <= {".state.set_aside"}, f"something is left over: {hidden}"
    return found


def main() -> None:
    """Kill as many processes as the first argument says; the second is the seed."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork: no thread is doing anything here
    choice, board = random.Random(seed), Board()
    with tempfile.TemporaryDirectory() as temporary:
        found = {Path(temporary, "states"): 0, Path(temporary, "one", "state"): 0}
        for path in found:
            path.parent.mkdir(exist_ok=True)
        phases: collections.Counter[str] = collections.Counter()
        for number in range(kills):
            path = list(found)[number // 4 % 2]
            phases[f"{kill_one(path, board, choice, number)}, killed {'itself' if number % 2 else 'from outside'}"] += 1
            found[path] = check(path, board, found[path])
    sys.stdout.write(f"seed {seed}; {kills} kills; updates saved: {list(found.values())}\n")
    for phase, count in sorted(phases.items()):
        sys.stdout.write(f"{count:5} {phase}\n")


if __name__ == "__main__":
    main()
