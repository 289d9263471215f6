"""A trial that is killed anywhere, again and again, or asked to leave, ends bit for bit as if it never had been."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.crashes.configurations import Configuration
from tests.crashes.harness import PREEMPTED, CrashLab, Tally
from tests.crashes.phases import STORAGE_PHASES, Phase
from tests.crashes.saved_states import TRIAL
from tests.crashes.strikes import Strike

STEPS, EPOCHS = "--states-every-n-steps=5", ("--epochs=3",)

SAMPLE = [
    Configuration(accumulation=3, workers=2, every=(STEPS,), max_states=2, loop=TRIAL, others=EPOCHS),
    Configuration(ranks=2, accumulation=2, every=(STEPS,), loop=TRIAL, others=EPOCHS),
]
WHOLE = [
    *SAMPLE,
    Configuration(every=(STEPS,), max_states=1, loop=TRIAL, others=EPOCHS),
    Configuration(workers=2, every=("--states-every-n-steps=1",), max_states=2, loop=TRIAL, others=EPOCHS),
    Configuration(accumulation=2, workers=1, every=(STEPS,), loop=TRIAL, others=EPOCHS),
    Configuration(ranks=2, workers=2, every=(STEPS,), max_states=1, loop=TRIAL, others=EPOCHS),
    Configuration(ranks=2, accumulation=3, workers=1, every=("--states-every-n-steps=1",), loop=TRIAL, others=EPOCHS),
]


@pytest.mark.parametrize("configuration", SAMPLE, ids=str)
def test_a_trial_that_was_killed_ends_as_if_it_never_had_been(lab: CrashLab, configuration: Configuration) -> None:
    """Weights, both optimizers and schedules, validations, samples and draws of each process: all are the same."""
    lab.require_ends_as_if_never_killed(configuration, number=2)


@pytest.mark.parametrize("configuration", SAMPLE, ids=str)
def test_a_trial_leaves_when_it_is_asked(lab: CrashLab, configuration: Configuration) -> None:
    """SIGTERM to one of the ranks, in the middle of a group, in a validation and while a checkpoint is written."""
    run = lab.new_run()
    for phase, rank in (("GROUP", 0), ("EVALUATION", configuration.ranks - 1), ("WRITING", 0)):
        ended = run.start(configuration, Strike(phase=phase, occurrence=2, rank=rank, hits="rank", signal="SIGTERM"))
        assert ended.statuses == [PREEMPTED] * configuration.ranks
    run.start(configuration)
    assert run.differences(configuration) == [], run.describe()
    run.remove()


@pytest.mark.whole_proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("configuration", WHOLE, ids=str)
def test_many_kills_of_trials(lab: CrashLab, configuration: Configuration) -> None:
    """As above, for many more kills."""
    lab.require_ends_as_if_never_killed(configuration, number=16)


@pytest.mark.whole_proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("configuration", WHOLE, ids=str)
def test_many_requests_to_leave(lab: CrashLab, configuration: Configuration) -> None:
    """SIGTERM in every phase, to one of the ranks or to all processes, leads to the same end."""
    chance = random.Random(str(configuration))
    for phase in configuration.phases():
        if phase is Phase.START:
            continue
        run = lab.new_run()
        for _ in range(2):
            rank = 0 if phase in STORAGE_PHASES else chance.randrange(configuration.ranks)
            occurrence = 1 if phase is Phase.FIRST_STEP else chance.randint(1, 3)
            strike = Strike(phase=phase.name, occurrence=occurrence, rank=rank, signal="SIGTERM")
            run.start(configuration, replace(strike, hits=chance.choice(["rank", "group"])))
        run.start(configuration)
        assert run.differences(configuration) == [], run.describe()
        run.remove()


@pytest.mark.whole_proof
def test_the_kills_hit_every_phase_of_a_trial(tally: Tally) -> None:
    """Each of them several times, and many of the trials that were killed had been resumed; to be run last."""
    part = tally.of(TRIAL)
    assert len(part.killed()) >= 100
    assert sum(ended.is_resumed for ended in part.killed()) >= 30
    never = {Phase.NONE, Phase.INTERMEDIATE_EVALUATION}
    assert [phase for phase in Phase if phase not in never and part.phases()[phase.name] < 3] == []
