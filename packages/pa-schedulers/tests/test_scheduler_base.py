"""The base classes of schedulers: what they write to the groups, when, and how they are resumed."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from typing_extensions import override

from pa_core import ConfigurationError
from pa_schedulers import CosineLrScheduler, SchedulerBase, StatefulSchedulerBase, WSDLrScheduler


class Milestones(StatefulSchedulerBase):
    """Multiplies what is there, so that its values depend on the path and not only on the count."""

    def __init__(self, optimizer: Optimizer, gamma: float = 0.5, milestones: tuple[int, ...] = (2, 4)) -> None:
        super().__init__(optimizer, param_group_field="lr")
        self.milestones = set(milestones)
        self.gamma = gamma
        self.reached: list[int] = []

    @override
    def get_updated_values(self, num_updates: int) -> list[float] | None:
        if num_updates not in self.milestones:
            return None
        self.reached.append(num_updates)
        return [group["lr"] * self.gamma for group in self.optimizer.param_groups]


class Recipe(StatefulSchedulerBase):
    """Returns whatever the recipe says for a number of updates."""

    def __init__(self, optimizer: Optimizer, recipe: Callable[[int], Any], field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field=field)
        self.recipe = recipe

    @override
    def get_updated_values(self, num_updates: int) -> Any:
        return self.recipe(num_updates)


class Stateless(SchedulerBase):
    """Is one more than the number of updates."""

    @override
    def get_updated_values(self, num_updates: int) -> float:
        return 1.0 + num_updates


def two_groups(**first: Any) -> SGD:
    """Two groups with learning rates 0.1 and 0.2."""
    return SGD(
        [{"params": [nn.Parameter(torch.ones(2))], **first}, {"params": [nn.Parameter(torch.ones(3))], "lr": 0.2}],
        lr=0.1,
    )


def rates(optimizer: Optimizer) -> list[float]:
    """The learning rates that the next update uses."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def test_the_first_step_is_for_no_previous_update_and_each_later_one_for_one_more() -> None:
    """``step()`` asks for the values of 0, 1, 2, ... previous updates."""
    asked: list[int] = []
    scheduler = Recipe(two_groups(), asked.append)

    for _ in range(4):
        scheduler.step()

    assert asked == [0, 1, 2, 3]


def test_the_constructor_remembers_the_value_of_each_group() -> None:
    """Each group keeps the value it had before scheduling as ``initial_<field>``."""
    optimizer = two_groups(weight_decay=0.5)

    Recipe(optimizer, lambda _: 7.0, field="weight_decay").step()

    assert [group["initial_weight_decay"] for group in optimizer.param_groups] == [0.5, 0]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [7.0, 7.0]
    assert rates(optimizer) == [0.1, 0.2]


def test_the_values_before_scheduling_can_be_asked_for() -> None:
    """``base_lr_values``, the name of pytorch-accelerated, and ``initial_values``: also after the values changed."""
    scheduler = Milestones(two_groups(), milestones=(0,))
    scheduler.step()
    assert scheduler.base_lr_values == scheduler.initial_values == [0.1, 0.2]
    assert rates(scheduler.optimizer) == [0.05, 0.1]


def test_a_second_scheduler_starts_where_the_first_one_started() -> None:
    """A new scheduler on the same optimizer puts the groups back to their initial values."""
    optimizer = two_groups()
    Recipe(optimizer, lambda _: 1e-6).step()

    Milestones(optimizer)

    assert rates(optimizer) == [0.1, 0.2]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, [0.1, 0.2]),
        (3.0, [3.0, 3.0]),
        (3, [3, 3]),
        ([3.0, 4.0], [3.0, 4.0]),
        ((value for value in (3.0, 4.0)), [3.0, 4.0]),
    ],
)
def test_what_a_scheduler_may_return(returned: float | Iterable[float] | None, expected: list[float]) -> None:
    """None leaves the groups alone, a number goes to all of them, an iterable gives each its own."""
    optimizer = two_groups()

    Recipe(optimizer, lambda _: returned).step()

    assert rates(optimizer) == expected


@pytest.mark.parametrize(
    "returned",
    [
        numpy.float32(0.5),
        numpy.array(0.5),
        numpy.array([0.5, 0.5]),
        [numpy.float64(0.5), numpy.float64(0.5)],
        torch.tensor(0.5),
        torch.tensor([0.5, 0.5]),
    ],
)
def test_numbers_of_numpy_and_torch_become_plain_numbers(returned: Any) -> None:
    """A schedule computed with arrays leaves numbers in the groups that a checkpoint can hold."""
    optimizer = two_groups()

    Recipe(optimizer, lambda _: returned).step()

    assert rates(optimizer) == [0.5, 0.5]
    assert {type(group["lr"]) for group in optimizer.param_groups} == {float}


@pytest.mark.parametrize("returned", [[], [1.0], [1.0, 2.0, 3.0]])
def test_a_wrong_number_of_values_is_an_error_that_changes_nothing(returned: list[float]) -> None:
    """A list that does not fit the groups is refused with both numbers, and not counted as a step."""
    optimizer = two_groups()
    scheduler = Recipe(optimizer, lambda _: returned)

    with pytest.raises(ValueError, match=f"each of the 2 parameter groups is needed, got {len(returned)} values"):
        scheduler.step()

    assert rates(optimizer) == [0.1, 0.2]
    assert scheduler.state_dict()["_num_updates"] == 0


def test_a_field_that_no_group_has_is_an_error_that_names_the_fields() -> None:
    """A misspelt field is refused when the scheduler is made."""
    with pytest.raises(ValueError, match=r"'weight_decai'.*lr, maximize, momentum"):
        Recipe(two_groups(), lambda _: 1.0, field="weight_decai")


def test_a_stateless_scheduler_is_told_the_number_of_updates() -> None:
    """``step_update(n)`` writes the value for n updates, in any order."""
    optimizer = two_groups()
    scheduler = Stateless(optimizer)

    scheduler.step_update(5)
    assert rates(optimizer) == [6.0, 6.0]
    scheduler.step_update(num_updates=2)
    assert rates(optimizer) == [3.0, 3.0]
    with pytest.raises(ValueError, match="num_updates must be at least 0, got -1"):
        scheduler.step_update(-1)


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_schedule_before_its_start_is_refused(warmup: int) -> None:
    """Negative numbers of updates have no values, to look at as little as to write."""
    cosine = CosineLrScheduler(two_groups(), 2, 2, num_warmup_epochs=warmup)
    for scheduler in (cosine, WSDLrScheduler(two_groups(), total_steps=4, num_warmup_steps=warmup)):
        with pytest.raises(ConfigurationError, match="num_updates must be at least 0, got -1"):
            scheduler.get_updated_values(-1)


def test_a_tensor_is_changed_in_place() -> None:
    """A learning rate that is a tensor stays the same tensor, as compiled and captured optimizers need."""
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer = Adam([nn.Parameter(torch.ones(2))], lr=rate, foreach=False)
    held: Tensor = optimizer.param_groups[0]["lr"]

    Recipe(optimizer, lambda _: torch.tensor(0.025, dtype=torch.float64)).step()

    assert optimizer.param_groups[0]["lr"] is held
    assert held.item() == 0.025
    assert optimizer.param_groups[0]["initial_lr"] == pytest.approx(0.1)


def train(scheduler: StatefulSchedulerBase, optimizer: Optimizer, num_updates: int) -> list[list[float]]:
    """Train for some updates and return the rates that each update used."""
    used: list[list[float]] = []
    for _ in range(num_updates):
        optimizer.zero_grad()
        loss = sum((p**2).sum() for group in optimizer.param_groups for p in group["params"])
        assert isinstance(loss, Tensor)
        torch.autograd.backward(loss)
        used.append(rates(optimizer))
        optimizer.step()
        scheduler.step()
    return used


@pytest.mark.parametrize("optimizer_first", [True, False])
@pytest.mark.parametrize("interrupted_after", range(7))
def test_a_resumed_schedule_is_the_uninterrupted_one(interrupted_after: int, optimizer_first: bool) -> None:
    """A subclass that overrides nothing goes on exactly, whichever of the two states is loaded first."""
    optimizer = two_groups()
    uninterrupted = train(Milestones(optimizer), optimizer, 8)

    optimizer = two_groups()
    scheduler = Milestones(optimizer)
    before = train(scheduler, optimizer, interrupted_after)
    file = io.BytesIO()
    torch.save({"scheduler": scheduler.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    optimizer = two_groups()
    if optimizer_first:
        optimizer.load_state_dict(saved["optimizer"])
    scheduler = Milestones(optimizer)
    scheduler.load_state_dict(saved["scheduler"])
    if not optimizer_first:
        optimizer.load_state_dict(saved["optimizer"])
    after = train(scheduler, optimizer, 8 - interrupted_after)

    assert before + after == uninterrupted


def test_a_loaded_state_puts_its_values_in_force() -> None:
    """Where the state of the optimizer is not loaded, the next update has the right rates all the same."""
    scheduler = Milestones(two_groups())
    for _ in range(4):
        scheduler.step()
    fresh = two_groups()
    Milestones(fresh).load_state_dict(scheduler.state_dict())
    assert rates(fresh) == rates(scheduler.optimizer) == [0.05, 0.1]


def test_the_state_has_every_attribute_but_the_optimizer() -> None:
    """What a subclass keeps is in its state; the optimizer is not, under whatever name."""
    optimizer = two_groups()
    scheduler = Milestones(optimizer, gamma=0.1)
    vars(scheduler)["the_same_optimizer"] = optimizer

    state = scheduler.state_dict()

    assert state.keys() >= {"milestones", "gamma", "reached", "param_group_field"}
    assert not any(isinstance(value, Optimizer) for value in state.values())
    assert "the_same_optimizer" not in state


def test_a_state_is_a_copy() -> None:
    """Neither the scheduler it came from nor one it was loaded into changes a state that was taken."""
    optimizer = two_groups()
    scheduler = Milestones(optimizer)
    state = scheduler.state_dict()
    as_taken = copy.deepcopy(state)
    other = Milestones(two_groups())
    other.load_state_dict(state)

    train(scheduler, optimizer, 6)
    train(other, other.optimizer, 6)

    assert state == as_taken


def test_the_state_of_something_else_is_refused() -> None:
    """A state of another field, of another scheduler or of other groups is an error that changes nothing."""
    optimizer = two_groups()
    scheduler = Milestones(optimizer)
    before = scheduler.state_dict()
    of_weight_decay = Recipe(two_groups(), lambda _: None, field="weight_decay").state_dict()
    of_torch = torch.optim.lr_scheduler.StepLR(two_groups(), step_size=1).state_dict()
    of_one_group = Milestones(SGD([nn.Parameter(torch.ones(1))], lr=0.1)).state_dict()

    without_values = {name: value for name, value in before.items() if name != "param_group_values"}

    for state in (of_weight_decay, of_torch, of_one_group, without_values, {}):
        with pytest.raises(ConfigurationError, match=r"state_dict\(\) did not return|state has 1 groups|Leave it out"):
            scheduler.load_state_dict(state)

    assert scheduler.state_dict() == before


class Halve(StatefulSchedulerBase):
    """Halves the initial value of each group at each update."""

    @override
    def get_updated_values(self, num_updates: int) -> list[float]:
        return [value / 2**num_updates for value in self.initial_values]


def test_the_value_that_a_later_group_came_with_is_remembered_by_every_scheduler() -> None:
    """Also where one value goes to all groups, the new group's own one is kept before it is overwritten."""
    optimizer = two_groups()
    scheduler = Recipe(optimizer, lambda _: 0.5)
    scheduler.step()

    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 8.0})
    scheduler.step()

    assert rates(optimizer) == [0.5, 0.5, 0.5]
    assert scheduler.initial_values == scheduler.base_lr_values == [0.1, 0.2, 8.0]


@pytest.mark.parametrize("added_after", [0, 1, 3])
@pytest.mark.parametrize("with_optimizer", [True, False])
def test_a_run_to_which_a_group_was_added_is_resumed(added_after: int, with_optimizer: bool) -> None:
    """A state with more groups than the scheduler was made with goes on exactly, at every step."""

    def add_group(optimizer: Optimizer) -> None:
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 8.0})

    optimizer = two_groups()
    scheduler = Halve(optimizer)
    train(scheduler, optimizer, added_after)
    add_group(optimizer)
    for _ in range(4):
        saved = copy.deepcopy(scheduler.state_dict()), copy.deepcopy(optimizer.state_dict())
        resumed_optimizer = two_groups()
        resumed = Halve(resumed_optimizer)
        add_group(resumed_optimizer)
        resumed.load_state_dict(saved[0])
        if with_optimizer:
            resumed_optimizer.load_state_dict(saved[1])
        uninterrupted = copy.deepcopy((scheduler, optimizer))
        assert train(resumed, resumed_optimizer, 3) == train(*uninterrupted, 3)
        train(scheduler, optimizer, 1)


def test_a_state_with_other_groups_is_refused_with_the_order_to_do_it_in() -> None:
    """Groups that are missing, or not yet known to the state, are an error that says what to do first."""
    scheduler, larger = Halve(two_groups()), Halve(two_groups())
    larger.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 8.0})
    before = scheduler.state_dict()

    with pytest.raises(ValueError, match=r"state has 3 groups, .* has 2\. Call optimizer.add_param_group"):
        scheduler.load_state_dict(larger.state_dict())
    with pytest.raises(ValueError, match=r"state has 2 groups, .* has 3\. Load the state first"):
        larger.load_state_dict(before)

    assert scheduler.state_dict() == before


def test_the_values_that_a_schedule_starts_from_are_part_of_its_state() -> None:
    """Loaded into an optimizer that was made with other rates, a state goes on with those it was saved with."""
    optimizer = two_groups()
    scheduler = Halve(optimizer)
    train(scheduler, optimizer, 3)

    other = SGD([{"params": [nn.Parameter(torch.ones(1))]} for _ in range(2)], lr=7.0)
    resumed = Halve(other)
    resumed.load_state_dict(scheduler.state_dict())

    for _ in range(3):
        assert rates(other) == rates(optimizer)
        resumed.step()
        scheduler.step()


def test_the_state_of_another_class_is_refused() -> None:
    """A state without what this class keeps is named as such, and nothing of it is taken over."""
    scheduler = CosineLrScheduler(two_groups(), 10, 10)
    before = scheduler.state_dict()

    with pytest.raises(ValueError, match=r"CosineLrScheduler\.state_dict.* lacks 'k_decay'"):
        scheduler.load_state_dict(Milestones(two_groups()).state_dict())

    assert scheduler.state_dict() == before


def test_a_field_that_is_no_number_is_refused() -> None:
    """The two betas of Adam cannot be scheduled as one number."""
    optimizer = Adam([nn.Parameter(torch.ones(1))])

    with pytest.raises(ValueError, match=r"'betas' .* must be a single number, got \(0.9, 0.999\)"):
        Recipe(optimizer, lambda _: 1.0, field="betas")

    assert "initial_betas" not in optimizer.param_groups[0]
