"""The counters of a run, and the position that a training state stores."""

from __future__ import annotations

import pytest

from pa_core.progress import Phase, Position, Progress
from pa_core.tracking import RunClock


@pytest.fixture
def clock() -> RunClock:
    """The clock of a run history that was just reset."""
    return RunClock()


def train_group(progress: Progress, clock: RunClock, batches: list[int], *, step: int, is_update: bool = True) -> None:
    """Go through an accumulation group of so many samples in each batch, up to a step of the epoch."""
    for samples in batches:
        progress.samples_in_group += samples
    progress.steps_in_epoch = step
    progress.finish_group(clock, makes_update=is_update)


def test_a_position_in_mid_epoch_holds_the_groups_that_are_complete(clock: RunClock) -> None:
    """Samples of a group without its update are not part of a position, so that a resumed run trains on them."""
    progress = Progress()
    progress.start_epoch()
    train_group(progress, clock, [8, 8], step=2)
    progress.samples_in_group += 8
    assert progress.position(Phase.STEP) == Position(Phase.STEP, epochs=0, updates=1, samples=16, steps=2)
    assert clock.samples == 16


def test_a_group_whose_gradients_overflowed_counts_its_samples_but_no_update(clock: RunClock) -> None:
    """The samples of a skipped update were trained on; schedules and ``max_num_train_steps`` do not count it."""
    progress = Progress()
    progress.start_epoch()
    train_group(progress, clock, [8], step=1, is_update=False)
    train_group(progress, clock, [8], step=2)
    assert (progress.updates, clock.update, clock.samples, progress.samples_in_epoch) == (1, 1, 16, 16)


def test_a_new_epoch_drops_a_group_that_was_not_completed(clock: RunClock) -> None:
    """What was left of a group when an epoch was stopped does not count for the next one."""
    progress = Progress()
    progress.samples_in_group += 8
    progress.start_epoch()
    train_group(progress, clock, [2], step=1)
    assert progress.samples_in_epoch == clock.samples == 2


@pytest.mark.parametrize("phase", list(Phase))
def test_a_position_survives_being_stored(phase: Phase, clock: RunClock) -> None:
    """A position is the same after it was written to a training state, and has no steps outside of an epoch's."""
    progress = Progress(epochs=3)
    progress.start_epoch()
    train_group(progress, clock, [8], step=1)
    position = progress.position(phase)
    assert Position.from_dict(position.to_dict()) == position
    assert (position.samples, position.steps) == ((8, 1) if phase.is_mid_epoch else (0, 0))
