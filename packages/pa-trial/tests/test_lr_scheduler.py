"""After which batches schedulers step, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau, SequentialLR

from pa_trial.lr_scheduler import LRScheduler
from tests.support.pa_trial.batches import OneWeight

BATCH = LRScheduler.StepMode.STEP_EVERY_BATCH
UPDATE = LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP
EPOCH = LRScheduler.StepMode.STEP_EVERY_EPOCH
MANUAL = LRScheduler.StepMode.MANUAL_STEP


def batches_after_which_it_steps(
    step_mode: LRScheduler.StepMode, frequency: int, aggregation: int, *, count: int = 12, epoch_length: int = 4
) -> list[int]:
    """Train one weight, and note the index of the batch for each step of its scheduler that this brings about."""
    batches = OneWeight(aggregation, epoch_length)
    schedule = LambdaLR(batches.optimizer, lambda step: 0.5**step)
    batches.parts.wrap_lr_scheduler(schedule, step_mode, frequency)
    steps: list[int] = []

    def train_batch(batch_idx: int) -> None:
        # What the previous batch has brought about.
        steps.extend([batch_idx - 1] * (schedule.last_epoch - len(steps)))
        batches.train_batch(batch_idx)

    batches.train(train_batch, count)
    steps.extend([count - 1] * (schedule.last_epoch - len(steps)))
    return steps


@pytest.mark.parametrize(
    ("step_mode", "frequency", "aggregation", "expected"),
    [
        (BATCH, 1, 1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (BATCH, 1, 2, [1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11]),
        (BATCH, 1, 3, [2, 2, 2, 5, 5, 5, 8, 8, 8, 11, 11, 11]),
        (BATCH, 2, 1, [1, 3, 5, 7, 9, 11]),
        (BATCH, 2, 2, [1, 3, 5, 7, 9, 11]),
        (BATCH, 2, 3, [2, 5, 5, 8, 11, 11]),
        (BATCH, 3, 1, [2, 5, 8, 11]),
        (BATCH, 3, 2, [3, 5, 9, 11]),
        (BATCH, 3, 3, [2, 5, 8, 11]),
        (UPDATE, 1, 1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (UPDATE, 1, 2, [1, 3, 5, 7, 9, 11]),
        (UPDATE, 1, 3, [2, 5, 8, 11]),
        (UPDATE, 2, 1, [1, 3, 5, 7, 9, 11]),
        (UPDATE, 2, 2, [3, 7, 11]),
        (UPDATE, 2, 3, [5, 11]),
        (UPDATE, 3, 1, [2, 5, 8, 11]),
        (UPDATE, 3, 2, [5, 11]),
        (UPDATE, 3, 3, [8]),
        (EPOCH, 1, 1, [3, 7, 11]),
        (EPOCH, 1, 2, [3, 7, 11]),
        (EPOCH, 1, 3, [2, 5, 11]),
        (EPOCH, 2, 1, [7]),
        (EPOCH, 2, 2, [7]),
        (EPOCH, 2, 3, [5]),
        (MANUAL, 1, 1, []),
    ],
)
def test_a_scheduler_steps_after_the_batches_of_the_table(
    step_mode: LRScheduler.StepMode, frequency: int, aggregation: int, expected: list[int]
) -> None:
    """The table of the documentation, cell by cell: twelve batches, four in an epoch."""
    assert batches_after_which_it_steps(step_mode, frequency, aggregation) == expected


@given(st.sampled_from([BATCH, UPDATE, EPOCH]), st.integers(1, 5), st.integers(1, 7), st.integers(1, 6))
def test_no_step_is_lost_and_none_comes_between_the_steps_of_the_optimizer(
    step_mode: LRScheduler.StepMode, frequency: int, aggregation: int, epoch_length: int
) -> None:
    """Over whole groups and whole epochs, there is one step for each ``frequency`` batches, updates or epochs."""
    count = aggregation * epoch_length * frequency
    schedule = ExponentialLR(SGD([nn.Parameter(torch.zeros(1))], lr=0.1), 0.9)
    wrapped = LRScheduler(schedule, step_mode, frequency)

    due = [wrapped.steps_due(batch_idx, aggregation, epoch_length) for batch_idx in range(count)]

    total = {BATCH: count, UPDATE: count // aggregation, EPOCH: count // epoch_length}[step_mode]
    assert sum(due) == total // frequency
    assert not any(n for batch_idx, n in enumerate(due) if (batch_idx + 1) % aggregation)


def test_a_scheduler_with_a_metric_is_stepped_by_hand() -> None:
    """A plateau scheduler that is wrapped for steps by hand reduces the rate where the trial says so."""
    batches = OneWeight()
    plateau = batches.parts.wrap_lr_scheduler(ReduceLROnPlateau(batches.optimizer, patience=0), MANUAL)

    batches.train(lambda _: plateau.step(1.0), 3)

    assert batches.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_what_is_wrapped_is_kept_and_what_was_passed_is_returned() -> None:
    """The trial gets its own scheduler back; ``lr_schedulers`` holds the wrapper, which has the same state."""
    batches = OneWeight()
    optimizer = batches.optimizer
    chained = SequentialLR(optimizer, [ExponentialLR(optimizer, 0.5), ExponentialLR(optimizer, 0.1)], [3])

    assert batches.parts.wrap_lr_scheduler(chained, BATCH, frequency=2) is chained

    (wrapped,) = batches.parts.lr_schedulers
    assert (wrapped.scheduler, wrapped.step_mode, wrapped.frequency) == (chained, BATCH, 2)
    optimizer.step()
    wrapped.step()
    assert wrapped.get_last_lr() == chained.get_last_lr() == [0.5]
    saved = wrapped.state_dict()
    wrapped.step()
    wrapped.load_state_dict(saved)
    assert chained.last_epoch == 1
