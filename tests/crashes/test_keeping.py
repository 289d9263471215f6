"""What a script keeps beside its run survives SIGKILL, or a warning comes before the first state is there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crashes.fork_server import Attempt, Ended
from tests.crashes.harness import CrashLab
from tests.crashes.keeping import KEEPING, UPDATES
from tests.crashes.phases import Phase
from tests.crashes.script import ended_path, states_path
from tests.crashes.strikes import Strike

NOT_IN_STATES = "which training states do not have"
WARNED_OF = {"own generator": f"Samples depend on dataset.generator, {NOT_IN_STATES}"}
SURVIVING = [
    pytest.param(kind, ranks, kills, marks=() if is_each_time else pytest.mark.whole_proof)
    for kind in KEEPING
    for ranks, kills, is_each_time in ((1, 2, True), (1, 5, False), (2, 2, kind == "teacher"), (2, 5, False))
    if kind not in WARNED_OF
]


class KeepingRun:
    """A run of one of the scripts.

    Args:
        lab: What starts it.
        kind: The script.
        ranks: The number of processes.
    """

    def __init__(self, lab: CrashLab, kind: str, ranks: int) -> None:
        self._lab, self._kind, self._ranks = lab, kind, ranks
        self.folder: Path = lab.new_run().folder

    def start(self, strike: Strike | None = None) -> Ended:
        """Start the script, for the first time or again, and let a strike hit it."""
        arguments = [f"--keeping={self._kind}"]
        ended = self._lab.attempt(Attempt(str(self.folder), arguments, ranks=self._ranks, strike=strike))
        statuses = [0] * self._ranks if strike is None else [-9] * self._ranks
        assert (ended.is_hit, ended.statuses) == (strike is not None, statuses), ended.output
        return ended

    def fingerprint(self) -> str:
        """Return the one fingerprint with which all processes have ended."""
        (one,) = {ended_path(self.folder, rank).read_text() for rank in range(self._ranks)}
        return one


def some_updates(kind: str, ranks: int, number: int) -> Sequence[int]:
    """Return some updates, others for each script, the same in each test run."""
    return sorted(random.Random(f"{kind} on {ranks}").sample(range(2, UPDATES), number))


@pytest.mark.parametrize(("kind", "ranks", "kills"), SURVIVING)
def test_what_a_script_keeps_survives_kills(lab: CrashLab, kind: str, ranks: int, kills: int) -> None:
    """Killed in random updates and started again, it ends bit for bit as an undisturbed one, without a warning."""
    whole, run = KeepingRun(lab, kind, ranks), KeepingRun(lab, kind, ranks)
    whole.start()
    saved = 0
    for update in some_updates(kind, ranks, kills):
        ended = run.start(Strike(phase=Phase.UPDATED.name, occurrence=update - saved))
        assert ended.is_resumed == (saved > 0)
        assert NOT_IN_STATES not in ended.output
        saved = update - 1
    run.start()
    assert run.fingerprint() == whole.fingerprint()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", WARNED_OF)
def test_what_does_not_survive_is_named_before_there_is_a_state(lab: CrashLab, kind: str, ranks: int) -> None:
    """Whoever is killed before the first state has its name has been warned already."""
    run = KeepingRun(lab, kind, ranks)
    ended = run.start(Strike(phase=Phase.RENAME.name))
    assert WARNED_OF[kind] in ended.output
    assert not [*states_path(run.folder).glob("[!.]*")]
    assert ended.output.count(NOT_IN_STATES) == 1
