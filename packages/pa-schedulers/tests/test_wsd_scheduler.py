"""Warmup-stable-decay: its shape over random configurations, its checkpoints, continuation, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Optimizer

from pa_core import ConfigurationError
from pa_core.steps.placeholders import TrainerPlaceholderValues, resolve_placeholders
from pa_schedulers import CosineLrScheduler, WSDLrScheduler
from tests.support.explained import assert_explained


@dataclass(frozen=True)
class Schedule:
    """The arguments of a scheduler, by their names."""

    total_steps: int = 100
    num_warmup_steps: int = 0
    decay_phase_ratio: float = 0.1
    lr_min: float = 0.01
    warmup_starting_lr: float = 1e-6
    use_inverse_sqrt_decay: bool = True
    num_checkpoints: int = 1
    is_continuation_from_checkpoint: bool = False

    def scheduler(self, *rates: float) -> WSDLrScheduler:
        """The scheduler of an optimizer with one group for each rate."""
        return WSDLrScheduler(optimizer_of(*rates), **asdict(self))

    def values(self, *rates: float, steps: range) -> list[list[float]]:
        """The rates of groups with these rates, after each of the numbers of updates."""
        scheduler = self.scheduler(*rates)
        return [scheduler.get_updated_values(step) for step in steps]


def optimizer_of(*rates: float) -> Optimizer:
    """An optimizer with one group for each learning rate."""
    return SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates])


def rates_of(scheduler: WSDLrScheduler) -> list[float]:
    """The learning rates that the next update uses."""
    return [group["lr"] for group in scheduler.optimizer.param_groups]


rates = st.floats(1e-3, 10)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any possible schedule of a moderate length."""
    num_checkpoints = draw(st.integers(1, 5))
    total_steps = draw(st.integers(max(4, 2 ** (num_checkpoints - 1)), 300))
    unwarmed = Schedule(
        total_steps=total_steps,
        decay_phase_ratio=draw(st.floats(0, 1 if num_checkpoints == 1 else 1 / 3)),
        lr_min=draw(st.floats(1e-7, 1e-3)),
        warmup_starting_lr=draw(st.floats(0, 1e-3)),
        use_inverse_sqrt_decay=draw(st.booleans()),
        num_checkpoints=num_checkpoints,
    )
    room = unwarmed.scheduler(1.0).get_decay_info()[0]["pre_decay_step"]
    return replace(unwarmed, num_warmup_steps=draw(st.integers(0, room)))


@given(schedules(), rates)
def test_the_rate_stays_between_its_bounds(schedule: Schedule, rate: float) -> None:
    """No rate is above that of the group, or below both the starting rate and the minimum."""
    lowest = rate * schedule.lr_min
    if schedule.num_warmup_steps:
        lowest = min(lowest, schedule.warmup_starting_lr)

    for (value,) in schedule.values(rate, steps=range(schedule.total_steps + 10)):
        assert lowest <= value <= rate


@given(schedules(), rates)
def test_the_warmup_is_a_straight_line_to_the_rate_of_the_group(schedule: Schedule, rate: float) -> None:
    """The warm-up rises in equal steps from exactly the starting rate to exactly the rate of the group."""
    warmup = [value for (value,) in schedule.values(rate, steps=range(schedule.num_warmup_steps + 1))]

    assert warmup[-1] == rate
    if schedule.num_warmup_steps:
        assert warmup[0] == schedule.warmup_starting_lr
        step = (rate - warmup[0]) / schedule.num_warmup_steps
        for earlier, later in pairwise(warmup):
            assert later - earlier == pytest.approx(step, abs=1e-12)
            assert later >= earlier


@given(schedules(), rates)
def test_each_period_is_stable_and_then_falls_to_exactly_the_minimum(schedule: Schedule, rate: float) -> None:
    """Up to the last step before the decay the rate is that of the group; then it falls to a fraction of it."""
    scheduler = schedule.scheduler(rate)
    m = schedule.lr_min

    for info in scheduler.get_decay_info():
        before, end, length = info["pre_decay_step"], info["period_end"], info["decay_steps"]
        first_stable = max(info["period_start"] + 1, schedule.num_warmup_steps)
        stable = [scheduler.get_updated_values(step)[0] for step in range(first_stable, before + 1)]
        decay = [scheduler.get_updated_values(step)[0] for step in range(before, end + 1)]

        assert set(stable) <= {rate}
        assert decay[0] == rate
        assert decay[-1] == (rate * m if length else rate)
        assert all(later < earlier for earlier, later in pairwise(decay))
        t = [index / length for index in range(1, length + 1)]
        root = [rate * (m + (1 - m) * (1 - math.sqrt(at))) for at in t]
        inverse = [rate / (at / m + (1 - at)) for at in t]
        assert decay[1:] == pytest.approx(root if schedule.use_inverse_sqrt_decay else inverse, rel=1e-6)


@given(schedules(), rates)
def test_the_last_rate_is_held_behind_the_last_checkpoint(schedule: Schedule, rate: float) -> None:
    """Steps behind the last checkpoint, those behind the end included, keep its rate."""
    scheduler = schedule.scheduler(rate)
    last = scheduler.get_checkpoint_steps()[-1]

    held = {scheduler.get_updated_values(step)[0] for step in range(last, schedule.total_steps + 20)}

    assert held == {rate * schedule.lr_min if scheduler.get_decay_info()[-1]["decay_steps"] else rate}


@pytest.mark.parametrize("rate", [0.11, 0.19, 0.22, 0.38, 0.44])
def test_rounding_passes_no_bound(rate: float) -> None:
    """Also where x is not 1 / (1 / x), the rate before a decay is exact, and a decay to the same rate is none."""
    decaying = Schedule(lr_min=0.001, use_inverse_sqrt_decay=False, decay_phase_ratio=0.5)
    level = replace(decaying, lr_min=1.0)

    assert 1 / (1 / rate) != rate
    assert decaying.values(rate, steps=range(50, 51)) == [[rate]]
    assert level.values(rate, steps=range(101)) == [[rate]] * 101


def test_a_period_that_is_too_short_for_a_decay_has_none() -> None:
    """Where the ratio leaves no whole step, the rate stays, also behind the end, and the phase says so."""
    scheduler = Schedule(total_steps=9).scheduler(1.0)

    assert [scheduler.get_updated_values(step) for step in range(20)] == [[1.0]] * 20
    assert [scheduler.get_phase_info(step)["phase"] for step in range(11)] == ["stable"] * 10 + ["finished"]


@given(schedules(), rates, rates)
def test_groups_are_independent(schedule: Schedule, one: float, other: float) -> None:
    """Each group follows the schedule that it would follow alone."""
    everything = range(schedule.total_steps + 1)

    together = schedule.values(one, other, steps=everything)

    alone = zip(schedule.values(one, steps=everything), schedule.values(other, steps=everything), strict=True)
    assert together == [first + second for first, second in alone]


@given(schedules(), rates, st.booleans(), st.data())
def test_a_resumed_schedule_is_the_uninterrupted_one(
    schedule: Schedule, rate: float, is_continuation: bool, data: st.DataObject
) -> None:
    """Saved as JSON after any number of steps and loaded elsewhere, the schedule goes on exactly."""
    schedule = replace(schedule, is_continuation_from_checkpoint=is_continuation)
    interrupted_after = data.draw(st.integers(0, schedule.total_steps - 1))
    scheduler = schedule.scheduler(rate)
    if is_continuation:
        scheduler.load_state_dict(Schedule(lr_min=0.0).scheduler(rate).state_dict())
    for _ in range(interrupted_after):
        scheduler.step()
    saved = json.dumps(scheduler.state_dict())

    resumed = schedule.scheduler(rate * 2)
    resumed.load_state_dict(json.loads(saved))

    for _ in range(schedule.total_steps + 3 - interrupted_after):
        assert rates_of(resumed) == rates_of(scheduler)
        assert resumed.get_current_phase_info() == scheduler.get_current_phase_info()
        scheduler.step()
        resumed.step()


@given(st.integers(2, 12), st.data())
def test_checkpoints_double_and_none_is_past_the_end(num_checkpoints: int, data: st.DataObject) -> None:
    """However many there are, neighbours have a ratio of 2, and the last one is as late as whole steps allow."""
    smallest = max(4, 2 ** (num_checkpoints - 1))
    total_steps = data.draw(st.integers(smallest, 10**9))

    steps = Schedule(total_steps, num_checkpoints=num_checkpoints).scheduler(1.0).get_checkpoint_steps()

    assert len(steps) == num_checkpoints
    assert all(later == 2 * earlier for earlier, later in pairwise(steps))
    assert steps[0] == total_steps // smallest
    assert steps[-1] <= total_steps


def test_the_queries_describe_the_schedule() -> None:
    """Periods, phases and the present step can be asked for; a checkpoint belongs to the period that it ends."""
    scheduler = Schedule(200, num_warmup_steps=5, num_checkpoints=3).scheduler(1.0)

    periods = scheduler.get_decay_info()
    phases = [scheduler.get_phase_info(step) for step in range(203)]

    assert periods == [
        {"period_start": 0, "period_end": 50, "decay_steps": 5, "pre_decay_step": 45},
        {"period_start": 50, "period_end": 100, "decay_steps": 5, "pre_decay_step": 95},
        {"period_start": 100, "period_end": 200, "decay_steps": 10, "pre_decay_step": 190},
    ]
    names = [info["phase"] for info in phases]
    assert names == (
        ["warmup"] * 5
        + ["stable"] * 40
        + ["decay"] * 6
        + ["stable"] * 44
        + ["decay"] * 6
        + ["stable"] * 89
        + ["decay"] * 11
        + ["finished"] * 2
    )
    assert [info["step"] for info in phases] == list(range(203))
    assert phases[50] == {"step": 50, "phase": "decay", **periods[0]}
    assert phases[51] == {"step": 51, "phase": "stable", **periods[1]}
    for step in range(3):
        assert scheduler.get_current_step() == step
        assert scheduler.get_current_phase_info() == phases[step]
        scheduler.step()


def test_the_length_is_given_in_steps_or_in_epochs() -> None:
    """Epochs times updates are the same schedule as that many steps."""
    optimizer = optimizer_of(1.0)

    by_epochs = WSDLrScheduler(optimizer, num_epochs=4, num_update_steps_per_epoch=25)

    assert by_epochs.get_decay_info() == Schedule(100).scheduler(1.0).get_decay_info()


def test_a_warmup_that_is_not_given() -> None:
    """The factory warms up for a tenth of all updates, the class for none, or for a hundredth where it is None."""
    optimizer = optimizer_of(1.0)

    assert WSDLrScheduler.create_scheduler_fn(4, 50)(optimizer).num_warmup_steps == 20
    assert WSDLrScheduler.create_scheduler_fn(4, 50, num_warmup_epochs=0)(optimizer).num_warmup_steps == 0
    factory = resolve_placeholders(
        WSDLrScheduler.create_scheduler_fn(), {"num_epochs": 7, "num_update_steps_per_epoch": 13}
    )
    assert factory(optimizer).num_warmup_steps == 9
    assert WSDLrScheduler(optimizer, total_steps=250).num_warmup_steps == 0
    assert WSDLrScheduler(optimizer, total_steps=250, num_warmup_steps=None).num_warmup_steps == 2


def test_arithmetic_on_placeholders_is_a_length_too() -> None:
    """A quotient that is a whole number is one, though Python makes a float of it."""
    half = TrainerPlaceholderValues.NUM_EPOCHS / 2
    factory = WSDLrScheduler.create_scheduler_fn(total_num_epochs=half)

    scheduler = resolve_placeholders(factory, {"num_epochs": 5, "num_update_steps_per_epoch": 10})(optimizer_of(1.0))

    assert scheduler.get_checkpoint_steps() == [25]
    assert type(scheduler.total_steps) is int


def test_the_constructor_applies_the_starting_rate() -> None:
    """Before the first step the groups have the starting rate, and remember their own as ``initial_lr``."""
    scheduler = Schedule(num_warmup_steps=10, warmup_starting_lr=0.125).scheduler(1.0, 2.0)

    assert rates_of(scheduler) == [0.125, 0.125]
    assert scheduler.initial_values == [1.0, 2.0]


def test_a_group_that_is_added_later_follows_from_its_own_rate() -> None:
    """It takes part in warm-up and decay with the rate it came with, and is never raised above that."""
    schedule = Schedule(total_steps=10, num_warmup_steps=4, warmup_starting_lr=0.5, decay_phase_ratio=0.5)
    scheduler = schedule.scheduler(1.0)
    scheduler.step()
    for rate in (4.0, 0.001):
        scheduler.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": rate})

    used: list[list[float]] = []
    for _ in range(10):
        scheduler.step()
        used.append(rates_of(scheduler))

    assert used[1] == [0.75, 2.25, 0.001]
    assert used[3] == [1.0, 4.0, 0.001]
    assert used[-1] == [0.01, 0.04, 0.00001]
    before_the_end = 0.01 + 0.99 * (1 - math.sqrt(0.8))
    assert used[-2] == pytest.approx([before_the_end, 4 * before_the_end, 0.001 * before_the_end])


CONTINUATION = Schedule(total_steps=40, is_continuation_from_checkpoint=True)


@pytest.mark.parametrize("saved_after", [90, 100, 57])
@pytest.mark.parametrize("other_warmup", [0, 10])
def test_a_continuation_begins_with_a_stable_phase(saved_after: int, other_warmup: int) -> None:
    """After a state from before or after a decay, the new length starts at the stable rate, without warm-up."""
    old = Schedule(num_warmup_steps=20).scheduler(1.0, 0.5)
    for _ in range(saved_after):
        old.step()
    new = replace(CONTINUATION, num_warmup_steps=other_warmup).scheduler(3.0, 3.0)

    new.load_state_dict(json.loads(json.dumps(old.state_dict())))

    assert new.get_current_step() == 0
    assert new.get_checkpoint_steps() == [40]
    assert rates_of(new) == [1.0, 0.5]
    values = [new.get_updated_values(step) for step in range(42)]
    assert values[:37] == [[1.0, 0.5]] * 37
    assert values[37:] == Schedule(total_steps=40).values(1.0, 0.5, steps=range(37, 42))


def test_a_continuation_of_a_finished_continuation_begins_anew() -> None:
    """Runs of equal length can be chained: the state of one that has ended has nothing to resume."""
    first, second = CONTINUATION.scheduler(1.0), CONTINUATION.scheduler(1.0)
    for _ in range(40):
        first.step()

    second.load_state_dict(first.state_dict())

    assert second.get_current_phase_info()["phase"] == "stable"
    assert second.get_current_step() == 0


def test_a_continuation_can_be_begun_by_hand() -> None:
    """A state of an equally long continuation is resumed, unless its end is asked to be a start."""
    first, second = CONTINUATION.scheduler(1.0), CONTINUATION.scheduler(1.0)
    for _ in range(38):
        first.step()
    second.load_state_dict(first.state_dict())
    assert second.get_current_step() == 38

    second.start_stable_phase()

    assert second.get_current_step() == 0
    assert rates_of(second) == [1.0]


def test_without_being_a_continuation_an_old_state_is_resumed() -> None:
    """A schedule that is no continuation takes over the plan and the position of the state."""
    old = Schedule().scheduler(1.0)
    for _ in range(95):
        old.step()
    new = Schedule(total_steps=40).scheduler(1.0)

    new.load_state_dict(old.state_dict())

    assert (new.get_current_step(), new.get_checkpoint_steps()) == (95, [100])
    assert rates_of(new) == rates_of(old)


def test_a_continuation_refuses_the_state_of_something_else() -> None:
    """A state of another schedule is an error, and changes nothing."""
    new = CONTINUATION.scheduler(1.0)
    before = new.state_dict()

    with pytest.raises(ValueError, match=r"WSDLrScheduler\.state_dict"):
        new.load_state_dict(CosineLrScheduler(optimizer_of(1.0), 1, 10).state_dict())

    assert new.state_dict() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_steps": None}, "num_epochs=None, num_update_steps_per_epoch=None, total_steps=None"),
        ({"num_epochs": 2, "num_update_steps_per_epoch": 5}, "num_epochs=2, num_update_steps_per_epoch=5, total_"),
        ({"total_steps": None, "num_epochs": 2}, "num_epochs=2, num_update_steps_per_epoch=None"),
        ({"total_steps": None, "num_update_steps_per_epoch": 2}, "num_epochs=None, num_update_steps_per_epoch=2"),
        ({"total_steps": 0}, "total_steps must be .* got 0"),
        ({"total_steps": 7.5}, "total_steps must be .* got 7.5"),
        ({"total_steps": None, "num_epochs": 0, "num_update_steps_per_epoch": 5}, "num_epochs must .* got 0"),
        ({"num_warmup_steps": 1.5}, "num_warmup_steps must be .* got 1.5"),
        ({"num_warmup_steps": 91}, "num_warmup_steps=91 before a decay of 10 steps"),
        ({"num_warmup_steps": 24, "num_checkpoints": 3}, "num_warmup_steps=24 before a decay of 2 steps"),
        ({"decay_phase_ratio": 1.1}, "decay_phase_ratio must be .* got 1.1"),
        ({"decay_phase_ratio": math.nan}, "decay_phase_ratio must be .* got nan"),
        ({"decay_phase_ratio": 0.34, "num_checkpoints": 2}, "at most 1/3 with num_checkpoints=2, got 0.34"),
        ({"num_checkpoints": 0}, "num_checkpoints must be .* got 0"),
        ({"num_checkpoints": 8}, "num_checkpoints=8 in 100 steps"),
        ({"lr_min": -1e-9}, "lr_min must be .* got -1e-09"),
        ({"lr_min": 1.5}, "lr_min must be .* got 1.5"),
        ({"lr_min": 0.0, "use_inverse_sqrt_decay": False}, "lr_min must be above 0 with use_inverse_sqrt_decay=False"),
        ({"total_steps": None, "num_epochs": 0.5, "num_update_steps_per_epoch": 3}, "steps_per_epoch must .* 1.5"),
        ({"warmup_starting_lr": -1.0}, "warmup_starting_lr must be .* got -1.0"),
        ({"warmup_starting_lr": 0.7}, "warmup_starting_lr=0.7 and lr=0.5"),
        ({"warmup_starting_lr": 0.7, "num_warmup_steps": 5}, "warmup_starting_lr=0.7 and lr=0.5"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """An argument that cannot work is named with its value, and the optimizer keeps its rates."""
    optimizer = optimizer_of(1.0, 0.5)
    all_arguments: dict[str, Any] = {"total_steps": 100, **arguments}
    with pytest.raises(ConfigurationError, match=message) as refused:
        WSDLrScheduler(optimizer, **all_arguments)
    assert_explained(refused.value)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.5]


def test_a_third_of_several_periods_may_decay() -> None:
    """The limit of the decay itself is accepted, and a single checkpoint may decay all along."""
    Schedule(num_checkpoints=2, decay_phase_ratio=1 / 3).scheduler(1.0)
    all_along = Schedule(decay_phase_ratio=1.0).scheduler(1.0)

    assert all_along.get_decay_info()[0]["pre_decay_step"] == 0


def test_a_tiny_rate_needs_no_start_below_it() -> None:
    """A default that is not used is not refused either."""
    scheduler = Schedule(lr_min=0.0).scheduler(1e-7)

    assert rates_of(scheduler) == [1e-7]


@pytest.mark.parametrize("step", [-1, 0.5])
def test_a_step_that_is_none_has_no_phase(step: int) -> None:
    """A negative or broken number of updates is refused."""
    with pytest.raises(ValueError, match=f"step must be .* got {step}"):
        Schedule().scheduler(1.0).get_phase_info(step)
