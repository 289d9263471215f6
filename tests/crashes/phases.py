"""Where in a run a process is: written down by the process itself, read by whoever is about to kill it."""

from __future__ import annotations

import mmap
import time
from enum import IntEnum
from pathlib import Path

__all__ = ["STORAGE_PHASES", "Phase", "Watch"]

_SECONDS_TO_HOLD = 30.0


class Phase(IntEnum):
    """What a process is doing. It trains, and beside that, perhaps in a thread, it may be storing a state."""

    NONE = 0
    """Nothing: it does not store."""
    START = 1
    """Making model and trainer, joining the other ranks, reading the state to go on from."""
    FORWARD = 2
    """The first batch of an update: forward pass, and the backward pass that follows it."""
    GROUP = 3
    """Between the batches of an accumulation group."""
    UPDATED = 4
    """From the moment at which the weights have changed to the next batch."""
    INTERMEDIATE_EVALUATION = 5
    """An evaluation between two updates."""
    EVALUATION = 6
    """The evaluation after an epoch."""
    EPOCH_EDGE = 7
    """The last events of an epoch, and the first ones of the next."""
    FIRST_STEP = 8
    """The first update after a resume."""
    END = 9
    """The last events of the run, and the end of the process."""
    WRITING = 10
    """Writing one of the files of a state."""
    RENAME = 11
    """All files are written, the state is not yet under its name."""
    RENAMED = 12
    """The state is under its name; this may not have reached the disk, and what is too old is still there."""
    REMOVING = 13
    """Removing a state that is too old, or what a killed process has left."""


STORAGE_PHASES = frozenset({Phase.WRITING, Phase.RENAME, Phase.RENAMED, Phase.REMOVING})


class _Cell(IntEnum):
    TRAINING = 0
    STORING = 1
    IS_RESUMED = 2
    PID = 3
    AIM = 4
    COUNTDOWN = 5
    IS_HELD = 6


class Watch:
    """What a process of a run and its driver tell each other, in a few numbers in shared memory.

    The driver may aim at a phase: the process then stops when it comes to it, until it is killed or released.

    Args:
        path: The file behind the memory, made by the driver.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * len(_Cell)))
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    # The side of the process

    def enter(self, phase: Phase) -> None:
        """Say what comes now; stop here if the driver aims at it."""
        self._cells[_Cell.STORING if phase in STORAGE_PHASES else _Cell.TRAINING] = phase
        if self._cells[_Cell.AIM] == phase:
            self._cells[_Cell.COUNTDOWN] -= 1
            if self._cells[_Cell.COUNTDOWN] == 0:
                self._hold()

    def end_storing(self) -> None:
        """Say that nothing is being stored any more."""
        self._cells[_Cell.STORING] = Phase.NONE

    def begin(self, pid: int) -> None:
        """Say that the process has started, and which one it is."""
        self._cells[_Cell.PID] = pid
        self._cells[_Cell.IS_RESUMED] = False
        self.end_storing()
        self.enter(Phase.START)

    def note_resume(self) -> None:
        """Say that the run goes on from a state."""
        self._cells[_Cell.IS_RESUMED] = True

    def _hold(self) -> None:
        self._cells[_Cell.IS_HELD] = True
        until = time.monotonic() + _SECONDS_TO_HOLD  # a driver that has ended releases nobody
        while self._cells[_Cell.IS_HELD] and time.monotonic() < until:
            time.sleep(0.0005)

    # The side of the driver

    def aim(self, phase: Phase, occurrence: int) -> None:
        """Have the process stop when it comes to a phase for the given time, counted from 1."""
        self._cells[_Cell.COUNTDOWN] = occurrence
        self._cells[_Cell.AIM] = phase

    def release(self) -> None:
        """Let the process go on, and aim no more."""
        self._cells[_Cell.AIM] = Phase.NONE
        self._cells[_Cell.IS_HELD] = False

    @property
    def is_held(self) -> bool:
        """Whether the process has come to what was aimed at, and stands still."""
        return bool(self._cells[_Cell.IS_HELD])

    @property
    def phases(self) -> tuple[Phase, Phase]:
        """What the process does: in training, and in storing."""
        return Phase(self._cells[_Cell.TRAINING]), Phase(self._cells[_Cell.STORING])

    @property
    def is_resumed(self) -> bool:
        """Whether the run of the process goes on from a state."""
        return bool(self._cells[_Cell.IS_RESUMED])

    @property
    def pid(self) -> int:
        """The process, 0 before it has started."""
        return self._cells[_Cell.PID]
