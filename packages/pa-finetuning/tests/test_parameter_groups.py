"""Parameter groups with a learning rate for each layer group, as optimizers take them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pa_finetuning import LearningRates, ModelFreezer
from tests.support.pa_finetuning.conv_net import ConvNet, WithTokens, changed, entries_below


def train(model: nn.Module, optimizer: Optimizer) -> None:
    """Three updates on random images."""
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.randn(8, 1, 6, 6)).square().mean())
        optimizer.step()


def make_frozen() -> tuple[ConvNet, ModelFreezer]:
    """A network of which only the head is trainable."""
    model = ConvNet()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze(set_modules_as_eval=True)
    return model, freezer


@given(st.floats(1e-8, 10.0), st.floats(0.01, 2.0), st.lists(st.booleans(), min_size=1, max_size=8).filter(any))
def test_rates_fall_by_the_factor_from_group_to_group(lr: float, factor: float, have_parameters: list[bool]) -> None:
    """The last group with parameters has the base rate, each one before it the factor of that; others do not count."""
    groups = [nn.Linear(1, 1) if has_parameters else nn.ReLU() for has_parameters in have_parameters]
    rates = ModelFreezer(nn.Sequential(*groups)).get_learning_rates(lr, factor)

    assert len(rates) == len(groups)
    of_groups = [rate for rate, has_parameters in zip(rates, have_parameters, strict=True) if has_parameters]
    assert of_groups[-1] == lr
    assert all(before == pytest.approx(after * factor) for before, after in pairwise(of_groups))


def test_the_factor_is_that_of_ulmfit_unless_another_is_given() -> None:
    """By default a group learns 2.6 times as slowly as the one behind it."""
    assert ModelFreezer(ConvNet()).get_learning_rates(0.26) == pytest.approx([0.26 / 2.6**2, 0.1, 0.26])


def test_a_group_that_only_shares_parameters_is_no_distance() -> None:
    """A head whose weight is that of the embedding does not make the group before it learn more slowly."""
    model = WithTokens()
    model.head.register_parameter("bias", None)

    assert ModelFreezer(model).get_learning_rates(0.1, factor=0.5) == [0.05, 0.1, 0.1]


@pytest.mark.parametrize(
    ("learning_rates", "expected"),
    [
        (0.1, [0.1, 0.1, 0.1]),
        ([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]),
        ((1, 2, 3), [1, 2, 3]),
        ({0: 0.1, -1: 0.3, 1: 0.2}, [0.1, 0.2, 0.3]),
    ],
)
def test_rates_come_as_a_number_a_list_or_a_mapping(learning_rates: LearningRates, expected: Sequence[float]) -> None:
    """Each layer group gets its own rate, whichever way it was given."""
    model = ConvNet()
    groups = ModelFreezer(model).get_parameter_groups(learning_rates)

    assert [group["lr"] for group in groups] == expected
    assert [group["params"] for group in groups] == [list(part.parameters()) for part in model.children()]


@pytest.mark.parametrize("include_frozen", [False, True])
def test_frozen_parameters_are_optional(include_frozen: bool) -> None:
    """Only what is trainable is in the groups, or all of it; a group without such parameters is left out."""
    model, freezer = make_frozen()

    groups = freezer.get_parameter_groups([0.1, 0.2, 0.3], include_frozen=include_frozen)

    assert [group["lr"] for group in groups] == ([0.1, 0.2, 0.3] if include_frozen else [0.3])
    assert sum(len(group["params"]) for group in groups) == (10 if include_frozen else 2)
    assert all(parameter in set(model.parameters()) for group in groups for parameter in group["params"])


def test_a_mapping_needs_no_rate_for_what_is_not_in_the_groups() -> None:
    """Frozen layer groups, and layer groups without parameters, need no rate of their own."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    freezer = ModelFreezer(model)
    freezer.freeze(0, 0)

    assert freezer.get_parameter_groups({2: 0.1}) == [{"params": list(model[2].parameters()), "lr": 0.1}]


class WithNorms(nn.Module):
    """A matrix, a bias, a vector of its own, a norm of images, and one of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm([2, 2]), nn.RMSNorm(4))
        self.head = nn.Linear(4, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(()))


def test_norms_and_biases_need_not_decay() -> None:
    """Only matrices are pulled towards zero, and each layer group keeps its rate, frozen or not."""
    torch.manual_seed(0)
    model = WithNorms()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, 1.0, 2.0)
    before = copy.deepcopy(model.state_dict())
    freezer = ModelFreezer(model)
    freezer.freeze()
    groups = freezer.get_parameter_groups([0.1, 0.2], include_frozen=True, decay_norms_and_biases=False)
    optimizer = AdamW(groups, weight_decay=0.5)
    freezer.unfreeze()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()

    assert changed(before, model) == {"body.0.weight", "head.weight"}
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, 0.2]


def groups_of_timm(model: nn.Module) -> list[dict[str, Any]]:
    """Groups such as those of timm's layer decay: one for each layer and kind of parameter."""
    body, head = model.get_submodule("body.0"), model.get_submodule("head")
    return [
        {"lr_scale": 0.5, "weight_decay": 0.0, "params": [body.get_parameter("bias"), model.get_parameter("scale")]},
        {"lr_scale": 0.5, "weight_decay": 0.3, "params": [body.get_parameter("weight")]},
        {"lr_scale": 1.0, "weight_decay": 0.3, "params": [head.get_parameter("weight")]},
    ]


def test_rates_are_scaled_as_in_groups_of_timm() -> None:
    """Torch's optimizers pass over ``lr_scale``; here each parameter has the rate and the decay that it stands for."""
    model = WithNorms()
    model.body = nn.Sequential(nn.Linear(3, 4))
    groups = ModelFreezer(model).get_parameter_groups([0.1, 0.2], timm_groups=groups_of_timm(model))

    found = {parameter: (group["lr"], group["weight_decay"]) for group in groups for parameter in group["params"]}
    assert {name: found[parameter] for name, parameter in model.named_parameters()} == {
        "scale": (0.05, 0.0),
        "body.0.weight": (0.05, 0.3),
        "body.0.bias": (0.05, 0.0),
        "head.weight": (0.2, 0.3),
    }
    assert not any("lr_scale" in group for group in groups)


def test_groups_of_timm_without_some_parameters_are_refused() -> None:
    """As they are made of a model that is partly frozen already."""
    model = WithNorms()
    with pytest.raises(ValueError, match=r"body.1.weight, one of 3 parameters .* before you freeze it"):
        ModelFreezer(model).get_parameter_groups(0.1, timm_groups=groups_of_timm(model))


def test_each_parameter_is_in_one_group() -> None:
    """A tied weight goes with the first of its groups, and a class token on the model itself is not lost."""
    model = WithTokens()
    groups = ModelFreezer(model).get_parameter_groups([0.1, 0.2, 0.3])

    assert [group["params"] for group in groups] == [
        [model.class_token, model.embedding.weight],
        [model.body.weight, model.body.bias],
        [model.head.bias],
    ]


def test_a_parameter_that_cannot_be_trained_is_in_no_group() -> None:
    """Integers of quantised layers are not given to an optimizer, which would refuse them."""
    model = nn.Linear(2, 2)
    model.register_parameter("counts", nn.Parameter(torch.tensor([1, 2]), requires_grad=False))

    (group,) = ModelFreezer(model).get_parameter_groups(0.1, include_frozen=True)

    assert [id(p) for p in group["params"]] == [id(model.weight), id(model.bias)]


def test_an_optimizer_keeps_no_state_for_what_is_frozen() -> None:
    """Frozen parameters that wait in an optimizer take no memory there, and start afresh when they are unfrozen."""
    model, freezer = make_frozen()
    optimizer = Adam(freezer.get_parameter_groups(0.1, include_frozen=True))
    train(model, optimizer)
    assert set(optimizer.state) == set(model.head.parameters())

    freezer.unfreeze(1, 1)
    train(model, optimizer)
    steps = {name: optimizer.state[p]["step"].item() for name, p in model.named_parameters() if p in optimizer.state}
    assert {name for name, step in steps.items() if step == 3} == set(dict(model.named_parameters())) & entries_below(
        model, "body"
    )
    assert steps["head.weight"] == 6


def test_frozen_parameters_are_added_to_an_optimizer() -> None:
    """An optimizer of the head gets a group for each frozen layer group, and keeps the state of the head."""
    model, freezer = make_frozen()
    optimizer = Adam(freezer.get_trainable_parameters(), lr=0.3, weight_decay=0.1)
    train(model, optimizer)
    momentum = optimizer.state[model.head.weight]["exp_avg"].clone()

    freezer.add_frozen_parameters(optimizer, [0.1, 0.2, 0.3])

    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.1, 0.2]
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}
    assert optimizer.param_groups[1]["params"] == list(model.stem.parameters())
    assert torch.equal(optimizer.state[model.head.weight]["exp_avg"], momentum)
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer)
    assert changed(before, model) == {"head.weight", "head.bias"}


def test_frozen_parameters_of_some_groups_are_added() -> None:
    """A range of layer groups can be added; one that stays frozen needs no rate."""
    model, freezer = make_frozen()
    optimizer = SGD(freezer.get_trainable_parameters(), lr=0.3)

    freezer.add_frozen_parameters(optimizer, {1: 0.2}, 1, -1)

    assert [group["params"] for group in optimizer.param_groups[1:]] == [list(model.body.parameters())]


def test_a_tied_weight_is_added_with_the_group_that_is() -> None:
    """A weight that the head shares with the embedding is not lost where only the head is added."""
    model = WithTokens()
    freezer = ModelFreezer(model)
    freezer.freeze(0, 0)
    optimizer = SGD(freezer.get_trainable_parameters(), lr=0.3)

    freezer.add_frozen_parameters(optimizer, 0.1, 1, -1)

    assert optimizer.param_groups[1]["params"] == [model.head.weight]


def test_an_optimizer_with_named_parameters_gets_names() -> None:
    """Parameters are added with their names where the optimizer was made with names."""
    model, freezer = make_frozen()
    optimizer = SGD(((name, p) for name, p in model.named_parameters() if p.requires_grad), lr=0.3)

    freezer.add_frozen_parameters(optimizer, 0.1)

    names = [group["param_names"] for group in optimizer.param_groups]
    assert names[0] == ["head.weight", "head.bias"]
    assert names[1] == [f"stem.{name}" for name, _ in model.stem.named_parameters()]


@pytest.mark.parametrize(
    ("learning_rates", "error", "message"),
    [
        ([0.1, 0.2], ValueError, r"Given: 2 learning rates.*Expected: 3.*ConvNet.*mapping"),
        ({}, ValueError, r"empty mapping.*Pass a rate"),
        ({0: 0.1, 3: 0.1}, IndexError, r"no layer group 3.*from -3 to 2"),
        ({0: 0.1, "head": 0.1}, TypeError, r"'head'.*Expected: an integer"),
        ({2: 0.1, -1: 0.2}, ValueError, r"\[2, -1\].*same layer group, 2.*Remove"),
        ({1: 0.1}, ValueError, r"for layer groups \[1\].*\[0, 2\] lack a rate.*Add rates"),
        ([0.1, -0.2, 0.3], ValueError, r"learning_rates\[1\]=-0.2.*above 0.*Freeze"),
        (float("nan"), ValueError, r"learning_rates=nan.*finite"),
        ("0.1", TypeError, r"learning_rates\[0\]='0', of type str.*Expected: a number"),
        ([0.1, True, 0.1], TypeError, r"learning_rates\[1\]=True, of type bool"),
        (None, TypeError, r"learning_rates=None.*a list or a mapping"),
    ],
)
def test_rates_that_do_not_fit_are_an_error(learning_rates: Any, error: type[Exception], message: str) -> None:
    """Too few rates, unknown groups and what is no rate are refused; nothing is added to an optimizer."""
    model = ConvNet()
    freezer = ModelFreezer(model)
    with pytest.raises(error, match=message):
        freezer.get_parameter_groups(learning_rates)

    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    freezer.freeze(0, -1)
    freezer.freeze_batch_norms = True
    freezer.freeze(0, -1)
    with pytest.raises(error, match=message):
        freezer.add_frozen_parameters(optimizer, learning_rates)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("lr", "factor", "error", "message"),
    [
        (0.1, 0.0, ValueError, r"factor=0.0.*above 0"),
        (0.1, float("nan"), ValueError, r"factor=nan.*finite"),
        (0.1, "0.5", TypeError, r"factor='0.5'.*Expected: a number"),
        (0.0, 0.5, ValueError, r"lr=0.0.*above 0"),
        (None, 0.5, TypeError, r"lr=None.*Expected: a number"),
    ],
)
def test_a_factor_or_rate_that_cannot_be_is_an_error(
    lr: Any, factor: Any, error: type[Exception], message: str
) -> None:
    """A factor outside of zero and infinity is refused, and so is a base rate."""
    with pytest.raises(error, match=message):
        ModelFreezer(ConvNet()).get_learning_rates(lr, factor)


def test_groups_of_nothing_are_an_error() -> None:
    """Where all is frozen, no groups can be made of what is not."""
    freezer = ModelFreezer(ConvNet(), freeze_batch_norms=True)
    freezer.freeze(0, -1)

    with pytest.raises(ValueError, match=r"all of ConvNet is frozen.*include_frozen=True"):
        freezer.get_parameter_groups(0.1)


@pytest.mark.parametrize(
    ("in_optimizer", "range_of_groups", "error", "message"),
    [
        ("head", (2, 2), ValueError, r"nothing to add.*\[2\].*Freeze some first"),
        ("", (0, -1), ValueError, r"SGD that already holds.*groups \[0, 1\].*get_trainable_parameters"),
        ("head", (3, 0), IndexError, "no layer group 3"),
    ],
)
def test_what_cannot_be_added_is_an_error(
    in_optimizer: str, range_of_groups: tuple[int, int], error: type[Exception], message: str
) -> None:
    """What is not frozen, what the optimizer holds already, or a range that is not there; nothing is added."""
    model, freezer = make_frozen()
    optimizer = SGD(model.get_submodule(in_optimizer).parameters(), lr=0.1)

    with pytest.raises(error, match=message):
        freezer.add_frozen_parameters(optimizer, 0.1, *range_of_groups)

    assert len(optimizer.param_groups) == 1
