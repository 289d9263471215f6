"""States of models, optimizers and schedulers that would not fit are told before they are loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer, lr_scheduler
from typing_extensions import override

from pa_checkpoint import StoredTensor
from pa_checkpoint.torch_states import misfit

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "ASGD": optim.ASGD,
    "Adadelta": optim.Adadelta,
    "Adagrad": optim.Adagrad,
    "Adam": optim.Adam,
    "AdamW with amsgrad": lambda one: optim.AdamW(one, amsgrad=True),
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": lambda one: optim.RMSprop(one, momentum=0.9, centered=True),
    "Rprop": optim.Rprop,
    "SGD with momentum": lambda one: optim.SGD(one, lr=0.1, momentum=0.9),
    "a rate that is a tensor": lambda one: optim.Adam(one, lr=torch.tensor(0.1)),
}


def parameters() -> list[nn.Parameter]:
    """Of all numbers of dimensions, and with sizes that are easily taken for others."""
    shapes: list[tuple[int, ...]] = [(4, 5), (4,), (2, 1, 3), (), (1,), (2, 0)]
    return [nn.Parameter(torch.ones(shape)) for shape in shapes]


def trained_state(make: Callable[[list[nn.Parameter]], Optimizer]) -> dict[str, Any]:
    """The state of an optimizer that has made updates."""
    trained = parameters()
    optimizer = make(trained)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_an_optimizer_fits_another_one_of_the_same_parameters(name: str) -> None:
    """Whatever an optimizer of torch gathers, and in whatever precision its parameters are."""
    make = OPTIMIZERS[name]
    assert misfit(make(parameters()), trained_state(make)) is None
    assert misfit(make(parameters()), make(parameters()).state_dict()) is None
    half = make([nn.Parameter(parameter.detach().bfloat16()) for parameter in parameters()])
    assert misfit(half, trained_state(make)) is None


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"ASGD", "Rprop"}))  # which look at values in each step
def test_an_entry_of_another_shape_is_named(name: str) -> None:
    """Loaded, it would fail in the next step, as that of an optimizer of other parameters would."""
    make = OPTIMIZERS[name]
    state = trained_state(make)
    for number, entries in state["state"].items():
        for entry, value in entries.items():
            if isinstance(value, Tensor):
                changed = copy.deepcopy(state)
                changed["state"][number][entry] = value[None].repeat(2, *[1] * value.dim())
                found = misfit(make(parameters()), changed)
                assert found is not None
                assert found.startswith(f"state.{number}.{entry} is of shape ")


@pytest.mark.parametrize(("saved", "own"), [("Adam", "SGD with momentum"), ("Adam", "Adamax"), ("Adamax", "Adam")])
def test_the_state_of_another_kind_of_optimizer_is_told(saved: str, own: str) -> None:
    """One with settings or with entries that the other lacks, and would miss in its next step."""
    found = misfit(OPTIMIZERS[own](parameters()), trained_state(OPTIMIZERS[saved]))
    assert str(found).endswith("is missing")


def without(entry: str) -> Callable[[dict[str, Any]], object]:
    """Leave out an entry of the first parameter."""
    return lambda state: state["state"][0].pop(entry)


WRONG_STATES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no groups": (lambda state: state.pop("param_groups"), "not what an optimizer's state_dict() returns"),
    "no entries": (lambda state: state.pop("state"), "not what an optimizer's state_dict() returns"),
    "a group more": (lambda state: state["param_groups"].append({"params": []}), "it has 2 groups, not 1"),
    "a parameter less": (
        lambda state: state["param_groups"][0]["params"].pop(),
        "params is [0, 1, 2, 3, 4], not the numbers",
    ),
    "no rate": (lambda state: state["param_groups"][0].pop("lr"), "param_groups.0.lr is missing"),
    "a group that is none": (lambda state: state.update(param_groups=[3]), "param_groups.0 is 3, not a dictionary"),
    "a parameter twice": (
        lambda state: state["param_groups"][0].update(params=[0, 0, 1, 2, 3, 4]),
        "params is [0, 0, 1, 2, 3, 4], not the numbers of 6 parameters",
    ),
    "parameters by name": (
        lambda state: state["param_groups"][0].update(params=["a"] * 6),
        "not the numbers of 6 parameters",
    ),
    "another flag": (lambda state: state["param_groups"][0].update(fused=torch.ones(2)), "not True or False"),
    "another rate": (lambda state: state["param_groups"][0].update(lr="high"), "lr is 'high', not a number"),
    "other betas": (
        lambda state: state["param_groups"][0].update(betas=[0.9, None, "x"]),
        "betas has 3 entries, not 2",
    ),
    "entries that are none": (lambda state: state["state"].update({1: "x"}), "state.1 is 'x', not a dictionary"),
    "an entry that is no tensor": (lambda state: state["state"][0].update(exp_avg=["a"]), "['a'], not a tensor"),
    "a counter of whole numbers": (
        lambda state: state["state"][0].update(step=torch.tensor(3)),
        "state.0.step is of whole numbers",
    ),
    "half of an entry": (without("exp_avg"), "state.0.exp_avg is missing"),
}


@pytest.mark.parametrize("name", WRONG_STATES)
def test_what_is_not_the_state_of_this_optimizer_is_named(name: str) -> None:
    """Groups, parameters and entries are those of the optimizer."""
    change, expected = WRONG_STATES[name]
    state = trained_state(OPTIMIZERS["Adam"])
    change(state)
    assert expected in str(misfit(OPTIMIZERS["Adam"](parameters()), state))


def test_groups_that_are_still_to_be_added_are_compared_too() -> None:
    """A run that unfreezes layers adds the group when it takes over the state."""
    state = trained_state(lambda all_of_them: optim.Adam([{"params": all_of_them[:2]}, {"params": all_of_them[2:]}]))
    own = parameters()
    assert misfit(optim.Adam(own[:2]), state, groups=[own[:2], own[2:]]) is None
    state["state"][2]["exp_avg"] = torch.ones(7)
    assert "state.2.exp_avg" in str(misfit(optim.Adam(own[:2]), state, groups=[own[:2], own[2:]]))


def test_an_optimizer_with_a_form_of_its_own_decides_itself() -> None:
    """Only its load_state_dict() knows what fits, as only its own method knows for a scheduler that is not of torch."""

    class OwnForm(optim.SGD):
        @override
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    assert misfit(OwnForm(parameters(), lr=0.1), {"anything": 1}) is None
    assert misfit(object(), {"anything": 1}) is None


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "ChainedScheduler": lambda one: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(one), lr_scheduler.StepLR(one, 3)]
    ),
    "CosineAnnealingLR": lambda one: lr_scheduler.CosineAnnealingLR(one, 5),
    "CyclicLR": lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.1),
    "LambdaLR": lambda one: lr_scheduler.LambdaLR(one, lambda step: 1 / (step + 1)),
    "MultiStepLR": lambda one: lr_scheduler.MultiStepLR(one, [2, 4]),
    "OneCycleLR": lambda one: lr_scheduler.OneCycleLR(one, 0.1, total_steps=20),
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
    "SequentialLR": lambda one: lr_scheduler.SequentialLR(
        one, [lr_scheduler.LinearLR(one), lr_scheduler.StepLR(one, 3)], [3]
    ),
}


def stepped(name: str, times: int) -> Any:
    """A scheduler after some steps."""
    optimizer = optim.SGD(parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(times):
        optimizer.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    return scheduler


@pytest.mark.filterwarnings("ignore:.*epoch parameter")  # SequentialLR passes it on
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_state_of_a_scheduler_fits_another_one_of_its_kind(name: str) -> None:
    """One of fewer groups does not."""
    state = stepped(name, 7).state_dict()
    new = stepped(name, 0)
    assert misfit(new, state) is None
    if "base_lrs" in state:
        assert "base_lrs has 0 entries" in str(misfit(new, {**state, "base_lrs": []}))
        assert misfit(new, {**state, "last_epoch": "ten"}) == "last_epoch is 'ten', not a number"


def test_states_of_schedulers_within_schedulers_are_compared_too() -> None:
    """They would be set as attributes in the same way."""
    new = stepped("ChainedScheduler", 0)
    state = new.state_dict()
    state["_schedulers"][1]["base_lrs"] = []
    assert misfit(new, state) == "_schedulers.1.base_lrs has 0 entries, not 1"
    assert misfit(new, {**state, "_schedulers": []}) == "_schedulers has 0 entries, not 2"
    assert "not what" in str(misfit(new, []))
    cosine = stepped("CosineAnnealingLR", 0)
    assert "is missing" in str(misfit(cosine, {}))


def test_weights_are_compared_by_name_shape_and_kind() -> None:
    """In memory or on disk; the first few differences are listed, and what was left out on purpose does not matter."""
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    weights = {name: StoredTensor.of(value) for name, value in model.state_dict().items()}
    assert misfit(model, weights) is None
    del weights["0.bias"]
    assert misfit(model, weights) == "missing: 0.bias"
    assert misfit(model, weights, left_out=["0.bias"]) is None
    other = {**weights, "0.bias": torch.ones(1, dtype=torch.int8), "more": torch.ones(1)}
    assert misfit(model, other, source="file") == (
        "unexpected: more; 0.bias: whole numbers in a tensor of layout strided in the file, "
        "numbers in a tensor of layout strided in the model"
    )
    assert str(misfit(model, {str(number): torch.ones(1) for number in range(9)})).endswith("; and 8 more")
