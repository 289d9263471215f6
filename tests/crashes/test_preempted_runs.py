"""A run that is asked to leave saves its state, says so by its exit status, and ends as if it had never left."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.crashes.configurations import Configuration
from tests.crashes.harness import PREEMPTED, CrashLab, Run
from tests.crashes.phases import STORAGE_PHASES, Phase
from tests.crashes.strikes import Strike
from tests.crashes.test_kills import TRIALS_SAMPLE, WHOLE

EPOCHS = ("--states-every-n-epochs=1",)
ONE_RANK = Configuration(accumulation=3, workers=1, every=EPOCHS, asynchronous=True, max_states=2)
TWO_RANKS = Configuration(ranks=2, every=EPOCHS)
IN_BOTH_EVALUATIONS = ("EVALUATION", "INTERMEDIATE_EVALUATION")


def _leave_and_end(lab: CrashLab, configuration: Configuration, strikes: list[Strike]) -> None:
    run = lab.new_run()
    for strike in strikes:
        ended = run.start(configuration, replace(strike, signal="SIGTERM"))
        assert ended.statuses == [PREEMPTED] * configuration.ranks
    _end(run, configuration)


def _end(run: Run, configuration: Configuration) -> None:
    run.start(configuration)
    assert run.differences(configuration) == [], run.describe()
    run.remove()


@pytest.mark.parametrize("loop", [None, "one model"])
def test_a_run_leaves_wherever_it_is(lab: CrashLab, loop: str | None) -> None:
    """SIGTERM in an accumulation group, in both kinds of evaluation, and while a state is written."""
    phases = (*IN_BOTH_EVALUATIONS, "GROUP", "WRITING")
    strikes = [Strike(phase=phase, occurrence=2, hits="rank") for phase in phases]
    _leave_and_end(lab, replace(ONE_RANK, loop=loop), strikes)


@pytest.mark.parametrize(
    ("loop", "places"),
    [
        (None, [("EVALUATION", 0), ("INTERMEDIATE_EVALUATION", 1), ("FORWARD", 1)]),
        ("adversaries", [("EVALUATION", 0), ("FORWARD", 1)]),
    ],
)
def test_all_ranks_leave_when_one_is_asked(lab: CrashLab, loop: str | None, places: list[tuple[str, int]]) -> None:
    """SIGTERM to one of two ranks, in an update and in evaluations."""
    strikes = [Strike(phase=phase, occurrence=2, rank=rank, hits="rank") for phase, rank in places]
    _leave_and_end(lab, replace(TWO_RANKS, loop=loop), strikes)


@pytest.mark.parametrize("configuration", TRIALS_SAMPLE, ids=str)
def test_a_trial_leaves_when_it_is_asked(lab: CrashLab, configuration: Configuration) -> None:
    """SIGTERM to one of the ranks, in the middle of a group, in a validation and while a checkpoint is written."""
    places = (("GROUP", 0), ("EVALUATION", configuration.ranks - 1), ("WRITING", 0))
    _leave_and_end(
        lab, configuration, [Strike(phase=one, occurrence=2, rank=rank, hits="rank") for one, rank in places]
    )


def test_workers_of_loaders_leave_a_signal_to_the_run(lab: CrashLab) -> None:
    """SIGTERM to all processes, as launchers send it."""
    _leave_and_end(lab, ONE_RANK, [Strike(phase="FORWARD", occurrence=3)])


@pytest.mark.whole_proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("configuration", WHOLE, ids=str)
def test_many_preemptions(lab: CrashLab, configuration: Configuration) -> None:
    """SIGTERM at random times and in every phase, to one of the ranks or to all processes, leads to the same end."""
    chance = random.Random(str(configuration))
    after_start = [phase for phase in configuration.phases() if phase is not Phase.START]
    strikes = [
        strike
        for phase in after_start
        for strike in (
            Strike(after=chance.uniform(0.1, 1.0) * lab.seconds(configuration)),
            Strike(phase=phase.name, occurrence=1 if phase is Phase.FIRST_STEP else chance.randint(1, 3)),
        )
    ]
    waiting = iter(strikes)
    while part := list(itertools.islice(waiting, 6)):
        run = lab.new_run()
        for strike in part:
            rank = chance.randrange(configuration.ranks) if _is_on_every_rank(strike) else 0
            hits = chance.choice(["rank", "group"])
            run.start(configuration, replace(strike, signal="SIGTERM", hits=hits, rank=rank))
        _end(run, configuration)


def _is_on_every_rank(strike: Strike) -> bool:
    return strike.phase is None or Phase[strike.phase] not in STORAGE_PHASES
