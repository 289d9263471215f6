"""The cosine schedule: its shape over random configurations, its factory, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from pa_core import ConfigurationError
from pa_core.steps.placeholders import TrainerPlaceholderValues, resolve_placeholders
from pa_schedulers import CosineLrScheduler
from tests.support.explained import assert_explained


@dataclass(frozen=True)
class Schedule:
    """The arguments of a scheduler, by their names."""

    total_num_epochs: int
    num_update_steps_per_epoch: int
    k_decay: float
    lr_min: float
    min_lr_ratio: float | None
    num_warmup_epochs: int
    warmup_starting_lr: float
    warmup_starting_lr_ratio: float | None
    num_cooldown_epochs: int

    @property
    def end_of_warmup(self) -> int:
        """Updates before the cosine."""
        return self.num_warmup_epochs * self.num_update_steps_per_epoch

    @property
    def start_of_cooldown(self) -> int:
        """Updates before the cool-down."""
        return (self.total_num_epochs - self.num_cooldown_epochs) * self.num_update_steps_per_epoch

    @property
    def end(self) -> int:
        """Updates of the whole run."""
        return self.total_num_epochs * self.num_update_steps_per_epoch

    def minimum(self, peak: float) -> float:
        """The rate that a group ends with."""
        return self.lr_min if self.min_lr_ratio is None else peak * self.min_lr_ratio

    def start(self, peak: float) -> float:
        """The rate that the warm-up of a group starts with."""
        ratio = self.warmup_starting_lr_ratio
        return self.warmup_starting_lr if ratio is None else peak * ratio

    def values(self, *peaks: float, num_updates: range) -> list[list[float]]:
        """The rates of groups with these peaks, after each of the numbers of updates."""
        scheduler = CosineLrScheduler(optimizer_of(*peaks), **asdict(self))
        return [scheduler.get_updated_values(number) for number in num_updates]


def optimizer_of(*peaks: float) -> Optimizer:
    """An optimizer with one group for each learning rate."""
    return SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": peak} for peak in peaks])


def rates(optimizer: Optimizer) -> list[float]:
    """The learning rates that the next update uses."""
    return [group["lr"] for group in optimizer.param_groups]


fractions = st.floats(0, 1)
peaks = st.floats(1e-4, 10)
below_every_peak = st.floats(0, 1e-4)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any possible schedule with at least one epoch of cosine."""
    warmup, cosine, cooldown = draw(st.integers(0, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 4))
    return Schedule(
        total_num_epochs=warmup + cosine + cooldown,
        num_update_steps_per_epoch=draw(st.integers(1, 12)),
        k_decay=draw(st.floats(0.5, 5)),
        lr_min=draw(below_every_peak),
        min_lr_ratio=draw(st.none() | fractions),
        num_warmup_epochs=warmup,
        warmup_starting_lr=draw(below_every_peak),
        warmup_starting_lr_ratio=draw(st.none() | fractions),
        num_cooldown_epochs=cooldown,
    )


PLAIN = Schedule(
    total_num_epochs=5,
    num_update_steps_per_epoch=4,
    k_decay=1.0,
    lr_min=0.0,
    min_lr_ratio=None,
    num_warmup_epochs=0,
    warmup_starting_lr=0.0,
    warmup_starting_lr_ratio=None,
    num_cooldown_epochs=0,
)


@given(schedules(), peaks)
def test_the_rate_stays_between_its_bounds(schedule: Schedule, peak: float) -> None:
    """No rate is above that of the group, or below both the starting rate and the minimum."""
    lowest = schedule.minimum(peak)
    if schedule.num_warmup_epochs:
        lowest = min(lowest, schedule.start(peak))

    for (value,) in schedule.values(peak, num_updates=range(schedule.end + 3)):
        assert lowest <= value <= peak


def test_rounding_does_not_pass_the_minimum() -> None:
    """Where the cosine of a long run is flat, its last rates are not below a tiny minimum."""
    long = replace(PLAIN, num_update_steps_per_epoch=10**9, lr_min=1e-20)

    last = long.values(10.0, num_updates=range(long.end - 3, long.end))

    assert last == [[1e-20]] * 3


@example(replace(PLAIN, num_warmup_epochs=1, lr_min=0.03), 0.3)
@given(schedules(), peaks)
def test_the_warmup_is_a_straight_line_to_the_rate_of_the_group(schedule: Schedule, peak: float) -> None:
    """The warm-up rises in equal steps from exactly the starting rate to exactly the rate of the group."""
    warmup = [value for (value,) in schedule.values(peak, num_updates=range(schedule.end_of_warmup + 1))]

    assert warmup[-1] == peak
    if schedule.num_warmup_epochs:
        assert warmup[0] == schedule.start(peak)
        step = (peak - warmup[0]) / schedule.end_of_warmup
        for earlier, later in pairwise(warmup):
            assert later - earlier == pytest.approx(step, abs=1e-12)
            assert later >= earlier


@given(schedules(), peaks)
def test_the_cosine_falls_to_exactly_the_minimum_where_the_cooldown_begins(schedule: Schedule, peak: float) -> None:
    """After the warm-up the rate only falls, is at the minimum when the cool-down begins, and stays there."""
    after = range(schedule.end_of_warmup, schedule.start_of_cooldown + 1)
    cosine = [value for (value,) in schedule.values(peak, num_updates=after)]

    assert all(later <= earlier for earlier, later in pairwise(cosine))
    assert cosine[-1] == schedule.minimum(peak)
    if schedule.minimum(peak) < peak * 0.99:
        assert cosine[-2] > cosine[-1]
    held = schedule.values(peak, num_updates=range(schedule.start_of_cooldown, schedule.end + 20))
    assert {value for (value,) in held} == {schedule.minimum(peak)}


def test_without_extras_it_is_the_cosine_of_torch() -> None:
    """With neither warm-up, cool-down nor k-decay the values are those of ``CosineAnnealingLR``."""
    optimizer = optimizer_of(0.4)
    of_torch = CosineAnnealingLR(optimizer, T_max=20, eta_min=0.01)

    for (value,) in replace(PLAIN, lr_min=0.01).values(0.4, num_updates=range(20)):
        assert value == pytest.approx(rates(optimizer)[0])
        optimizer.step()
        of_torch.step()


@pytest.mark.parametrize("k", [0.5, 1.0, 2.0, 3.5])
def test_k_decay_is_the_formula_of_the_paper(k: float) -> None:
    """The rate is ``(peak - min) / 2 * (1 + cos(pi * t^k / T^k)) + min``; a higher k keeps it up for longer."""
    schedule = replace(PLAIN, k_decay=k, lr_min=0.1, num_warmup_epochs=1, warmup_starting_lr=0.1)

    values = [value for (value,) in schedule.values(1.0, num_updates=range(4, 20))]

    expected = [(1.0 - 0.1) / 2 * (1 + math.cos(math.pi * t**k / 16**k)) + 0.1 for t in range(16)]
    assert values == pytest.approx(expected)
    slower = replace(schedule, k_decay=k + 1).values(1.0, num_updates=range(5, 20))
    assert all(slow > value for (slow,), value in zip(slower, values[1:], strict=True))


def test_a_ratio_takes_precedence_over_a_rate() -> None:
    """With both given, the ratios count, and each group has a minimum and a start of its own."""
    schedule = replace(
        PLAIN, lr_min=0.3, min_lr_ratio=0.5, num_warmup_epochs=1, warmup_starting_lr=0.3, warmup_starting_lr_ratio=0.25
    )

    values = schedule.values(1.0, 2.0, num_updates=range(21))

    assert values[0] == [0.25, 0.5]
    assert values[20] == [0.5, 1.0]


def test_a_group_that_is_added_later_is_never_raised_above_its_own_rate() -> None:
    """A minimum and a starting rate above the rate of a group that comes later do not hold for it."""
    optimizer = optimizer_of(1.0)
    scheduler = CosineLrScheduler(optimizer, 4, 1, lr_min=0.5, num_warmup_epochs=2, warmup_starting_lr=0.25)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.125})

    for _ in range(6):
        scheduler.step()
        assert rates(optimizer)[1] == 0.125


def test_a_starting_rate_without_a_warmup_is_ignored() -> None:
    """Without warm-up the first rate is that of the group, even below the default starting rate."""
    (first, *_) = replace(PLAIN, warmup_starting_lr=1.0).values(1e-7, num_updates=range(1))

    assert first == [1e-7]


def test_warmup_and_cooldown_may_fill_the_run() -> None:
    """With no epoch left for the cosine, the minimum follows the warm-up directly."""
    schedule = replace(PLAIN, total_num_epochs=2, num_warmup_epochs=1, num_cooldown_epochs=1)

    values = [value for (value,) in schedule.values(1.0, num_updates=range(8))]

    assert values == [0.0, 0.25, 0.5, 0.75, 0.0, 0.0, 0.0, 0.0]


def test_the_factory_takes_the_length_of_the_run_from_the_trainer() -> None:
    """``create_scheduler_fn`` holds placeholders, which become the numbers of the run."""
    factory = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1, warmup_starting_lr=0.0, lr_min=0.25)

    filled_in = resolve_placeholders(factory, {"num_epochs": 3, "num_update_steps_per_epoch": 2})
    scheduler = filled_in(optimizer_of(1.0))

    assert isinstance(scheduler, CosineLrScheduler)
    values = [scheduler.get_updated_values(n)[0] for n in range(7)]
    assert values == pytest.approx(
        [0.0, 0.5, 1.0, 0.25 + 0.75 * (2 + 2**0.5) / 4, 0.625, 0.25 + 0.75 * (2 - 2**0.5) / 4, 0.25]
    )


def test_the_factory_of_a_subclass_makes_the_subclass() -> None:
    """It is inherited."""

    class Mine(CosineLrScheduler):
        """Another name for the same."""

    factory = Mine.create_scheduler_fn(total_num_epochs=1, num_update_steps_per_epoch=1)
    assert type(factory(optimizer_of(1.0))) is Mine


def test_a_placeholder_without_a_trainer_is_an_error_that_says_so() -> None:
    """The factory, called without a trainer, names the placeholder that nobody filled in."""
    with pytest.raises(TypeError, match="NUM_EPOCHS"):
        CosineLrScheduler.create_scheduler_fn()(optimizer_of(1.0))
    with pytest.raises(TypeError, match="NUM_UPDATE_STEPS_PER_EPOCH"):
        CosineLrScheduler(optimizer_of(1.0), 5, TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_num_epochs": 0}, "total_num_epochs must be .* got 0"),
        ({"num_update_steps_per_epoch": 0}, "num_update_steps_per_epoch must be .* got 0"),
        ({"k_decay": 0.0}, "k_decay must be .* got 0.0"),
        ({"k_decay": math.inf}, "k_decay must be .* got inf"),
        ({"lr_min": -1e-9}, "lr_min must be .* got -1e-09"),
        ({"warmup_starting_lr": math.inf}, "warmup_starting_lr must be .* got inf"),
        ({"min_lr_ratio": 1.5}, "min_lr_ratio must be .* got 1.5"),
        ({"num_warmup_epochs": -1}, "num_warmup_epochs must be .* got -1"),
        ({"warmup_starting_lr_ratio": 2}, "warmup_starting_lr_ratio must be .* got 2"),
        ({"num_cooldown_epochs": -1}, "num_cooldown_epochs must be .* got -1"),
        ({"num_warmup_epochs": 3, "num_cooldown_epochs": 3}, "num_warmup_epochs=3, num_cooldown_epochs=3"),
        ({"num_warmup_epochs": 6}, "total_num_epochs=5"),
        ({"lr_min": 0.7}, "lr_min=0.7 and lr=0.5"),
        ({"num_warmup_epochs": 1, "warmup_starting_lr": 0.7}, "warmup_starting_lr=0.7 and lr=0.5"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """An argument that cannot work is named with its value, and the optimizer keeps its rates."""
    optimizer = optimizer_of(1.0, 0.5)
    with pytest.raises(ConfigurationError, match=message) as refused:
        CosineLrScheduler(optimizer, **{**asdict(PLAIN), **arguments})
    assert_explained(refused.value)
    assert rates(optimizer) == [1.0, 0.5]
