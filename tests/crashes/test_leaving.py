"""A run that a deadline, a signal or a notice tells to leave saves its state in time, and loses and repeats nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pa_checkpoint import Folder
from tests.crashes.fork_server import Attempt
from tests.crashes.harness import PREEMPTED, CrashLab, Tally
from tests.crashes.leaving import Leaving, deadline_path, outcome_path, told_path, updates_path

CASES_OF_A_TEST = 10
ALL_CASES = 300
SAMPLE = (17, 41, 54, 30)
"""Each kind, both loops, one and two processes, in the training, in an evaluation and while a state is saved."""

UPDATES_UNTIL_AGREED = 3
"""The update that was in progress, the one that tells the other processes, and another one of ``ask_every=2``."""


class LeavingRun:
    """The starts of one run.

    Args:
        lab: What starts it.
        case: The run, and what tells it to leave.
    """

    def __init__(self, lab: CrashLab, case: Leaving) -> None:
        self._lab = lab
        self._case = case
        self.folder: Path = lab.new_run().folder

    def start(self, attempt: int, resume_from: Path | None) -> list[int]:
        """Start it, and return the exit statuses of its processes."""
        path = [] if resume_from is None else [f"--resume-from={resume_from}"]
        ended = self._lab.attempt(
            Attempt(
                str(self.folder),
                [f"--leaving={self._case.to_json()}", *path],
                {"ATTEMPT": str(attempt)},
                self._case.ranks,
                is_watched=False,
            )
        )
        assert not ended.hangs, ended.output
        assert set(ended.statuses) in ({0}, {PREEMPTED}), f"{ended.statuses}\n{ended.output}"
        return ended.statuses

    def updates(self, *attempts: int) -> list[list[Any]]:
        """Return the updates and samples of all processes, in the order in which they were trained on."""
        return [
            [json.loads(line) for one in attempts for line in self._lines(rank, one)]
            for rank in range(self._case.ranks)
        ]

    def outcome(self, attempt: int) -> list[Any]:
        """Return what a complete start ended with, on each process."""
        return [json.loads(outcome_path(self.folder, rank, attempt).read_text()) for rank in range(self._case.ranks)]

    def _lines(self, rank: int, attempt: int) -> Iterable[str]:
        path = updates_path(self.folder, rank, attempt)
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def seed(pytestconfig: pytest.Config) -> int:
    """What the cases are drawn from."""
    of_command_line: int | None = pytestconfig.getoption("--crash-seed")
    assert of_command_line is not None
    return of_command_line


@pytest.fixture(scope="module")
def references(lab: CrashLab) -> dict[tuple[int, str], LeavingRun]:
    """The runs that nothing told to leave, and that save no states, by processes and loop; made when needed."""
    return {}


def require_leaves(lab: CrashLab, tally: Tally, references: dict[tuple[int, str], LeavingRun], case: Leaving) -> None:
    """Let a run be told to leave, continue it, and compare it with one that was not."""
    if (case.ranks, case.loop) not in references:
        reference = references[case.ranks, case.loop] = LeavingRun(lab, case)
        reference.start(0, None)
    reference = references[case.ranks, case.loop]
    run = LeavingRun(lab, case)
    states = run.folder / "states"
    statuses = run.start(1, states)
    newest = Folder(states).records()[-1]
    assert newest.problem is None
    ends = [float(path.read_text()) for rank in case.told if (path := deadline_path(run.folder, rank)).exists()]
    if ends:
        durable = max(newest.path.stat().st_ctime, (newest.path / "manifest.json").stat().st_mtime)
        assert durable < min(ends), f"{case}: {durable - min(ends):.3f} seconds late"
    is_over = set(statuses) == {0}
    told = [int(path.read_text()) for rank in case.told if (path := told_path(run.folder, rank)).exists()]
    if case.kind == "notice to continue" or is_over:
        assert is_over
        assert newest.complete
        assert run.updates(1) == reference.updates(0)
        assert run.outcome(1) == reference.outcome(0)
        asked_for = [
            one for one in Folder(states).records() if told and 0 <= one.update - told[0] <= UPDATES_UNTIL_AGREED
        ]
        if told:
            assert asked_for, f"{case}: no state after the notice"
            _require_continues(run, reference, asked_for[0].path, asked_for[0].update)
    else:
        assert [one[-1][0] for one in run.updates(1) if one] == [newest.update] * case.ranks
        run.start(2, states)
        assert run.updates(1, 2) == reference.updates(0)
        assert run.outcome(2) == reference.outcome(0)
    tally.left.append((case.kind, PREEMPTED in statuses or bool(told)))
    shutil.rmtree(run.folder)


def _require_continues(run: LeavingRun, reference: LeavingRun, state: Path, update: int) -> None:
    """A state that was saved while the run went on leads to the same end, without an update that is left out."""
    run.start(2, state)
    assert run.updates(2) == [[line for line in one if line[0] > update] for one in reference.updates(0)]
    assert run.outcome(2) == reference.outcome(0)


@pytest.mark.parametrize("number", SAMPLE)
def test_a_run_that_is_told_to_leave_leaves_in_time_and_loses_nothing(
    lab: CrashLab, tally: Tally, references: dict[tuple[int, str], LeavingRun], seed: int, number: int
) -> None:
    """Bit for bit, whether one process was told or all, wherever the run was."""
    require_leaves(lab, tally, references, Leaving.draw(seed, number))


@pytest.mark.whole_proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, ALL_CASES, CASES_OF_A_TEST))
def test_many_runs_that_are_told_to_leave(
    lab: CrashLab, tally: Tally, references: dict[tuple[int, str], LeavingRun], seed: int, first: int
) -> None:
    """As above, for 300 cases; `--crash-seed` draws others."""
    for number in range(first, first + CASES_OF_A_TEST):
        require_leaves(lab, tally, references, Leaving.draw(seed, number))
