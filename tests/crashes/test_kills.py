"""A run that is killed anywhere, again and again, ends bit for bit as one that was never interrupted."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.crashes.comparison import first_step
from tests.crashes.configurations import Configuration
from tests.crashes.custom_loops import LOOPS
from tests.crashes.harness import CrashLab, Tally
from tests.crashes.phases import Phase
from tests.crashes.saved_states import TRIAL
from tests.crashes.strikes import Strike

STEPS, EPOCHS, SECONDS = "--states-every-n-steps=4", "--states-every-n-epochs=1", "--states-every-n-seconds=0.1"
FIVE_STEPS, EACH_STEP, THREE_EPOCHS = "--states-every-n-steps=5", "--states-every-n-steps=1", ("--epochs=3",)

SAMPLE = [
    Configuration(accumulation=3, workers=1, every=(EPOCHS, STEPS), asynchronous=True, max_states=2),
    Configuration(precision="bf16", every=(STEPS,), max_states=1),
    Configuration(ranks=2, accumulation=3, every=(SECONDS,)),
]
SHARDED_SAMPLE = [
    Configuration(ranks=2, every=(STEPS,), asynchronous=True, max_states=2, is_sharded=True, others=("--epochs=2",))
]
OWN_LOOPS_SAMPLE = [
    Configuration(accumulation=3, workers=1, every=(STEPS, EPOCHS), asynchronous=True, max_states=2, loop="one model"),
    Configuration(ranks=2, every=(STEPS,), loop="adversaries"),
    Configuration(every=(SECONDS,), loop="distillation"),
]
ORDERED_SAMPLE = [
    Configuration(every=(STEPS,), asynchronous=True, max_states=2, workers=1, data="weighted"),
    Configuration(ranks=2, every=(STEPS,), data="token budget"),
    Configuration(every=(STEPS,), data="mixture"),
    Configuration(workers=1, every=(STEPS, EPOCHS), max_states=1, data="sharded files"),
]
TRIALS_SAMPLE = [
    Configuration(accumulation=3, workers=2, every=(FIVE_STEPS,), max_states=2, loop=TRIAL, others=THREE_EPOCHS),
    Configuration(ranks=2, accumulation=2, every=(FIVE_STEPS,), loop=TRIAL, others=THREE_EPOCHS),
]
AFTER_TEN_UPDATES = Strike(phase=Phase.UPDATED.name, occurrence=11)  # an evaluation after the fifth one counts too
WHOLE = [
    *SAMPLE,
    *OWN_LOOPS_SAMPLE,
    *SHARDED_SAMPLE,
    Configuration(every=(SECONDS,), asynchronous=True),
    Configuration(workers=1, every=(EPOCHS,), others=("--max-updates=37",)),
    Configuration(workers=2, every=(STEPS, EPOCHS), max_states=2),
    Configuration(accumulation=3, every=(EPOCHS,), max_states=1),
    Configuration(accumulation=3, workers=2, every=(SECONDS,), others=("--keep-last", "--max-updates=40")),
    Configuration(precision="bf16", workers=2, every=(EPOCHS,), asynchronous=True, max_states=2),
    Configuration(precision="bf16", accumulation=3, workers=1, every=(STEPS, SECONDS)),
    Configuration(ranks=2, every=(STEPS,), asynchronous=True, max_states=1),
    Configuration(ranks=2, workers=1, every=(EPOCHS,), max_states=2),
    Configuration(ranks=2, workers=2, every=(SECONDS, EPOCHS), asynchronous=True, others=("--keep-last",)),
    Configuration(ranks=2, accumulation=3, workers=2, every=(STEPS,), max_states=1),
    Configuration(ranks=2, precision="bf16", workers=1, every=(STEPS, EPOCHS)),
    Configuration(ranks=2, precision="bf16", accumulation=3, every=(EPOCHS,), asynchronous=True, max_states=2),
    Configuration(every=(SECONDS,), loop="one model", others=("--max-updates=37",)),
    Configuration(precision="bf16", workers=2, every=(STEPS,), max_states=1, loop="one model"),
    Configuration(ranks=2, accumulation=3, workers=1, every=(EPOCHS, STEPS), asynchronous=True, loop="one model"),
    Configuration(ranks=2, every=(SECONDS,), max_states=2, loop="one model"),
    Configuration(every=(STEPS, EPOCHS), asynchronous=True, max_states=1, loop="adversaries"),
    Configuration(accumulation=3, workers=1, every=(SECONDS,), loop="adversaries"),
    Configuration(ranks=2, accumulation=3, workers=1, every=(EPOCHS,), asynchronous=True, loop="adversaries"),
    Configuration(workers=1, every=(STEPS,), loop="distillation"),
    Configuration(accumulation=3, every=(EPOCHS, SECONDS), asynchronous=True, max_states=2, loop="distillation"),
    Configuration(ranks=2, accumulation=3, every=(STEPS,), max_states=1, loop="distillation"),
    Configuration(ranks=2, workers=2, every=(SECONDS,), asynchronous=True, loop="distillation"),
    Configuration(ranks=2, accumulation=3, every=(STEPS,), asynchronous=True, max_states=2, is_sharded=True),
    Configuration(ranks=2, every=(STEPS, EPOCHS), max_states=1, is_sharded=True),
    Configuration(ranks=2, precision="bf16", workers=1, every=(SECONDS,), asynchronous=True, is_sharded=True),
    Configuration(ranks=3, accumulation=3, every=(STEPS,), is_sharded=True, others=("--keep-last",)),
    Configuration(ranks=2, every=(STEPS,), max_states=2, loop="one model", is_sharded=True),
    Configuration(ranks=2, accumulation=3, every=(SECONDS,), asynchronous=True, loop="one model", is_sharded=True),
    Configuration(ranks=2, every=(STEPS,), asynchronous=True, max_states=1, loop="adversaries", is_sharded=True),
    Configuration(ranks=2, accumulation=3, every=(EPOCHS,), loop="distillation", is_sharded=True),
    *ORDERED_SAMPLE,
    Configuration(ranks=2, accumulation=3, workers=2, every=(SECONDS,), data="weighted"),
    Configuration(ranks=2, every=(STEPS, EPOCHS), asynchronous=True, max_states=1, loop="one model", data="weighted"),
    Configuration(accumulation=3, workers=2, every=(STEPS,), asynchronous=True, max_states=2, data="token budget"),
    Configuration(ranks=3, accumulation=3, workers=1, every=(SECONDS,), data="token budget"),
    Configuration(every=(SECONDS,), workers=1, loop="one model", data="token budget"),
    Configuration(ranks=2, workers=2, every=(STEPS,), asynchronous=True, data="mixture"),
    Configuration(ranks=2, accumulation=3, workers=2, every=(SECONDS, EPOCHS), data="sharded files"),
    Configuration(ranks=2, every=(STEPS,), asynchronous=True, max_states=2, loop="one model", data="sharded files"),
    *TRIALS_SAMPLE,
    Configuration(every=(FIVE_STEPS,), max_states=1, loop=TRIAL, others=THREE_EPOCHS),
    Configuration(workers=2, every=(EACH_STEP,), max_states=2, loop=TRIAL, others=THREE_EPOCHS),
    Configuration(accumulation=2, workers=1, every=(FIVE_STEPS,), loop=TRIAL, others=THREE_EPOCHS),
    Configuration(ranks=2, workers=2, every=(FIVE_STEPS,), max_states=1, loop=TRIAL, others=THREE_EPOCHS),
    Configuration(ranks=2, accumulation=3, workers=1, every=(EACH_STEP,), loop=TRIAL, others=THREE_EPOCHS),
]


@pytest.mark.parametrize(
    ("configuration", "number"),
    [
        *zip(SAMPLE, (2, 1, 1), strict=True),
        *((one, 1) for one in (*SHARDED_SAMPLE, *OWN_LOOPS_SAMPLE)),
        *zip(TRIALS_SAMPLE, (2, 1), strict=True),
    ],
    ids=str,
)
def test_a_run_that_was_killed_ends_as_if_it_never_had_been(
    lab: CrashLab, configuration: Configuration, number: int
) -> None:
    """Weights, optimizers, schedules, history, callbacks, random streams, samples and draws: all are the same.

    Also where each process writes its pieces of the weights, of a trial its validations, and of custom loops what they
    keep themselves.
    """
    lab.require_ends_as_if_never_killed(configuration, number)


@pytest.mark.parametrize("configuration", ORDERED_SAMPLE, ids=str)
def test_a_run_with_an_order_that_was_killed_ends_as_if_it_never_had_been(
    lab: CrashLab, configuration: Configuration
) -> None:
    """As above, where samples come by weights, in batches of so many tokens, from several sources, or from files.

    One kill is enough if the run goes on in the middle of an epoch: elsewhere, no order has a position to go on from.
    """
    run = lab.new_run()
    assert run.start(configuration, AFTER_TEN_UPDATES).is_hit
    assert run.start(configuration).is_resumed
    assert first_step(run.folder, attempt=2) > 1
    assert run.differences(configuration) == [], run.describe()
    run.remove()


@pytest.mark.parametrize(
    ("configuration", "phases"),
    [
        (Configuration(every=(STEPS,), max_states=1), ("RENAMED", "WRITING", "REMOVING", "RENAME")),
        (Configuration(every=(EPOCHS,)), ("WRITING",)),
    ],
    ids=["any state", "the first state"],
)
def test_nothing_half_written_is_left(lab: CrashLab, configuration: Configuration, phases: tuple[str, ...]) -> None:
    """What a run has begun to write, or to remove, when it is killed, is gone when it is complete."""
    run = lab.new_run()
    for phase in phases:
        assert run.start(configuration, Strike(phase=phase)).is_hit
    run.start(configuration)
    assert [path.name for path in run.states.iterdir() if path.name.startswith(".")] == []
    run.remove()


def test_a_complete_run_is_not_run_again(lab: CrashLab) -> None:
    """A script that is started again after its end has the same result, trains on nothing and saves nothing."""
    configuration = Configuration(ranks=2, every=(EPOCHS,))
    run = lab.new_run()
    run.start(configuration)
    states = sorted(run.states.iterdir())
    ended = run.start(configuration)
    assert ended.is_resumed
    assert run.differences(configuration) == []
    assert sorted(run.states.iterdir()) == states
    run.remove()


@pytest.mark.whole_proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("configuration", WHOLE, ids=str)
def test_many_kills(lab: CrashLab, configuration: Configuration) -> None:
    """As above, for many more kills and ways to train and to save."""
    lab.require_ends_as_if_never_killed(configuration, number=16)


@pytest.mark.whole_proof
@pytest.mark.parametrize(
    ("loops", "kills", "resumed", "hits", "never"),
    [
        ([None], 200, 50, 5, {Phase.NONE}),
        (LOOPS, 200, 50, 5, {Phase.NONE}),
        ([TRIAL], 100, 30, 3, {Phase.NONE, Phase.INTERMEDIATE_EVALUATION}),
    ],
)
def test_the_kills_hit_everything(
    tally: Tally, loops: Iterable[str | None], kills: int, resumed: int, hits: int, never: set[Phase]
) -> None:
    """Every phase was hit several times, and many of the runs that were killed had been resumed; to be run last."""
    part = tally.of(*loops)
    assert len(part.killed()) >= kills
    assert sum(ended.is_resumed for ended in part.killed()) >= resumed
    assert [phase for phase in Phase if phase not in never and part.phases()[phase.name] < hits] == []
