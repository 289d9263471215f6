"""What the crash tests share: the process that starts the script, and the count of what has hit it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crashes.custom_loops import LOOPS
from tests.crashes.harness import CrashLab, Tally
from tests.crashes.saved_states import TRIAL

TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    config.stash[TALLY] = Tally()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the figures: those of the trainer's loop, and of each loop of a script's own."""
    tally = config.stash[TALLY]
    if tally.hits or tally.left:
        terminalreporter.section("crashes")
    if tally.left:
        terminalreporter.write_line(tally.describe_left())
    for loop in (None, *LOOPS, TRIAL):
        if tally.of(loop).hits:
            name = {None: "The trainer's loop", TRIAL: "A trial"}.get(loop, f"A loop of one's own, {loop}")
            terminalreporter.write_line(f"{name}: {tally.of(loop).describe()}")


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """What has hit the runs so far."""
    return pytestconfig.stash[TALLY]


@pytest.fixture(scope="session")
def lab(tally: Tally) -> Iterator[CrashLab]:
    """Starts and hits runs of the script."""
    # In memory: a kill loses nothing that was handed to the system, so a disk would only add time.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        lab = CrashLab(Path(folder), tally)
        yield lab
        lab.close()
