"""A run goes on with the same samples, in the same order, on another number of processes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.crashes.comparison import samples_by_update
from tests.crashes.configurations import Configuration
from tests.crashes.harness import CrashLab, Run
from tests.crashes.script import TRAIN_SAMPLES
from tests.crashes.strikes import Strike, kills

EPOCHS = 4


def _split(ranks: int, batch_size: int, accumulation: int) -> Configuration:
    """One of the ways to train on 8 samples in an update."""
    others = (f"--batch-size={batch_size}", f"--epochs={EPOCHS}", "--patience=100", "--keep-last")
    every = ("--states-every-n-steps=3", "--states-every-n-epochs=1")
    return Configuration(ranks, accumulation, every=every, others=others)


ONE, TWO = _split(1, 4, 2), _split(2, 4, 1)
SPLITS = [ONE, TWO, _split(1, 8, 1), _split(2, 2, 2)]


def _assert_same_samples(lab: CrashLab, run: Run) -> None:
    whole = lab.new_run()
    whole.start(ONE.uninterrupted(), is_watched=False)
    expected, found = samples_by_update(whole.folder, ranks=1), samples_by_update(run.folder, ranks=2)
    assert found == expected, run.describe()
    for epoch in range(EPOCHS):
        indices = [index for (of, _), samples in found.items() if of == epoch for index, _ in samples]
        assert sorted(indices) == list(range(TRAIN_SAMPLES))
    run.remove()


def test_the_order_of_samples_is_that_of_one_process(lab: CrashLab) -> None:
    """From one process to two and back, killed each time: every sample once in an epoch, in the same order."""
    run = lab.new_run()
    for configuration in (ONE, TWO, ONE):
        assert run.start(configuration, Strike(phase="FORWARD", occurrence=8)).is_hit
    run.start(ONE)
    _assert_same_samples(lab, run)


@pytest.mark.whole_proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop", [None, "one model"])
@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_samples_on_changing_splits(lab: CrashLab, seed: int, loop: str | None) -> None:
    """As above, for kills anywhere and splits that change each time; a loop of one's own has the order of the trainer.

    Args:
        lab: What starts the runs.
        seed: What decides on kills and splits.
        loop: The loop of the script.
    """
    chance = random.Random(seed)
    run = lab.new_run()
    for _ in range(8):
        configuration = replace(chance.choice(SPLITS), loop=loop)
        run.start(configuration, next(kills(configuration, lab.seconds(configuration) / 2, chance)))
        if run.is_complete:
            break
    if not run.is_complete:
        run.start(replace(ONE, loop=loop))
    _assert_same_samples(lab, run)
