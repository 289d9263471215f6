"""Which parameters and modules a freezer freezes and unfreezes, and what training then changes."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from pa_finetuning import ModelFreezer
from tests.support.pa_finetuning.conv_net import ConvNet, WithTokens, changed, entries_below, modes, trainable


def train(model: nn.Module, optimizer: Optimizer, epochs: int = 2) -> None:
    """A training loop that knows nothing of freezing, on random images."""
    for _ in range(epochs):
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(model(torch.randn(8, 1, 6, 6)).square().mean())
            optimizer.step()
        model.eval()
        model(torch.randn(2, 1, 6, 6))


def adam(model: nn.Module) -> Optimizer:
    """Adam with weight decay, for all parameters."""
    return Adam(model.parameters(), lr=0.1, weight_decay=0.1)


def sgd(model: nn.Module) -> Optimizer:
    """Gradient descent with momentum and weight decay, for all parameters."""
    return SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def test_making_a_freezer_makes_everything_trainable() -> None:
    """A second freezer starts from a model on which nothing is frozen, eval mode included."""
    model = ConvNet()
    ModelFreezer(model, freeze_batch_norms=True).freeze(set_modules_as_eval=True)

    freezer = ModelFreezer(model)

    assert freezer.get_trainable_parameters() == list(model.parameters())
    assert all(modes(model.train()).values())


def test_by_default_all_but_the_last_group_are_frozen() -> None:
    """``freeze()`` leaves the last group, and the batch norm layers of all groups, trainable."""
    model = ConvNet()
    freezer = ModelFreezer(model)

    freezer.freeze()

    assert trainable(model) == {
        *("head.weight", "head.bias"),
        *("stem.1.weight", "stem.1.bias", "body.1.0.weight", "body.1.0.bias"),
    }
    assert {id(p) for p in freezer.get_trainable_parameters()} == {id(p) for p in model.parameters() if p.requires_grad}


@given(st.integers(1, 6), st.data())
def test_both_ends_of_a_range_are_included(num_groups: int, data: st.DataObject) -> None:
    """Indexes count from either end and come in either order; exactly the range is frozen and unfrozen."""
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(num_groups)])
    freezer = ModelFreezer(model)
    indexes = st.integers(-num_groups, num_groups - 1)
    one, other = data.draw(indexes), data.draw(indexes)
    first, last = sorted((one % num_groups, other % num_groups))
    in_range = {f"{index}.{name}" for index in range(first, last + 1) for name in ("weight", "bias")}

    freezer.freeze(one, other)
    assert trainable(model) == {name for name, _ in model.named_parameters()} - in_range

    freezer.freeze(0, -1)
    unfrozen = freezer.unfreeze(one, other)
    assert trainable(model) == in_range
    assert list(unfrozen) == list(range(first, last + 1))


NO_GROUP = r"ConvNet has 3.*from -3 to 2"
NO_INTEGER = r"Expected: an integer.*get_layer_groups"


@pytest.mark.parametrize(
    ("range_of_groups", "error", "message"),
    [
        *(((first, last), IndexError, NO_GROUP) for first, last in ((0, 3), (3, 0), (-4, 0), (0, -4), (7, 9))),
        *(((0, index), TypeError, re.escape(repr(index)) + ".*" + NO_INTEGER) for index in ("0", 0.0, None, True)),
    ],
)
def test_an_index_without_a_group_is_an_error(range_of_groups: Any, error: type[Exception], message: str) -> None:
    """Out of range, it names the number of groups; a flag is no index. Nothing is frozen or unfrozen."""
    model = ConvNet()
    freezer = ModelFreezer(model)
    freezer.freeze(1, 1)
    before = trainable(model)

    for call in (freezer.freeze, freezer.unfreeze):
        with pytest.raises(error, match=message):
            call(*range_of_groups)

    assert trainable(model) == before


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.Linear(2, 2), IndexError, r"Linear has 1.*0, 0 for the whole"),
        (nn.ReLU(), ValueError, r"Given: ReLU without parameters.*Build"),
        (nn.DataParallel(nn.Linear(2, 2)), TypeError, r"Given: a model in DataParallel.*wrap it afterwards"),
    ],
)
def test_a_model_that_cannot_be_frozen_is_an_error(model: nn.Module, error: type[Exception], message: str) -> None:
    """One group has none before it, a wrapper would not see what is unfrozen, and no parameters are nothing."""
    with pytest.raises(error, match=message):
        ModelFreezer(model).freeze()


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
def test_weights_that_are_frozen_after_some_training_do_not_drift(
    make_optimizer: Callable[[nn.Module], Optimizer],
) -> None:
    """Momentum, weight decay and a gradient that is still there do not move a weight once it is frozen."""
    model = ConvNet()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    optimizer = make_optimizer(model)
    train(model, optimizer)
    torch.autograd.backward(model(torch.randn(4, 1, 6, 6)).square().mean())

    freezer.freeze(set_modules_as_eval=True)
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    train(model, optimizer)

    assert changed(before, model) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("freeze_batch_norms", [False, True])
@pytest.mark.parametrize("set_modules_as_eval", [False, True])
def test_two_flags_decide_about_batch_norm_and_dropout(freeze_batch_norms: bool, set_modules_as_eval: bool) -> None:
    """Weights are frozen by the one, dropout ends by the other, and statistics are frozen by both together."""
    model = ConvNet()
    ModelFreezer(model, freeze_batch_norms=freeze_batch_norms).freeze(set_modules_as_eval=set_modules_as_eval)
    before = copy.deepcopy(model.state_dict())

    train(model, adam(model))

    names = {name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    of_batch_norms = set[str]().union(*(entries_below(model, name) for name in names))
    weights = of_batch_norms & set(dict(model.named_parameters()))
    expected = {"head.weight", "head.bias"}
    expected |= set() if freeze_batch_norms else weights
    expected |= set() if freeze_batch_norms and set_modules_as_eval else of_batch_norms - weights
    assert changed(before, model) == expected
    assert model.train().stem[3].training != set_modules_as_eval


def test_eval_mode_of_frozen_modules_survives_train() -> None:
    """What is frozen stays in eval mode through ``train()`` and ``eval()`` calls; what is not follows them."""
    model = ConvNet()
    ModelFreezer(model).freeze(0, 0, set_modules_as_eval=True)

    for _ in range(2):
        model.train()
        in_eval_mode = {name for name, training in modes(model).items() if not training}
        assert in_eval_mode == {"stem", "stem.0", "stem.2", "stem.3"}  # stem.1 is a batch norm, which is not frozen
        model.eval()
        assert not any(modes(model).values())


def test_a_copy_of_a_frozen_model_is_its_own() -> None:
    """Copied, pickled or saved whole, a frozen model keeps its modes, and is unfrozen on its own."""
    model = ConvNet()
    ModelFreezer(model, freeze_batch_norms=True).freeze(set_modules_as_eval=True)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies: list[ConvNet] = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ]

    for other in copies:
        assert {name for name, training in modes(other.train()).items() if training} == {"", "head"}
        ModelFreezer(other)
        assert all(modes(other.train()).values())
        assert not model.stem.train().training


def test_a_compiled_model_can_be_frozen_before_it_is_compiled() -> None:
    """``train()`` of a compiled model leaves the frozen modules inside it in eval mode."""
    model = ConvNet()
    ModelFreezer(model, freeze_batch_norms=True).freeze(set_modules_as_eval=True)
    before = copy.deepcopy(model.state_dict())
    compiled = cast("nn.Module", torch.compile(model, backend="eager", fullgraph=True))

    train(compiled, adam(model))

    assert changed(before, model) == {"head.weight", "head.bias"}


def test_unfreezing_returns_what_an_optimizer_can_take() -> None:
    """Groups that were frozen come back by index, ready for ``add_param_group``, and then train."""
    model = ConvNet()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze(set_modules_as_eval=True)
    optimizer = Adam(freezer.get_trainable_parameters(), lr=0.1)
    train(model, optimizer)
    before = copy.deepcopy(model.state_dict())
    steps_before = optimizer.state[model.head.weight]["step"].item()

    unfrozen = freezer.unfreeze(-1, 1)

    assert unfrozen == {1: {"params": list(model.body.parameters())}}
    for parameter_group in unfrozen.values():
        optimizer.add_param_group(parameter_group)
    train(model, optimizer)
    assert changed(before, model) == entries_below(model, "body") | entries_below(model, "head")
    assert optimizer.state[model.head.weight]["step"].item() == steps_before + 6


def test_unfreezing_puts_modules_into_training_mode() -> None:
    """Unfrozen modules are in training mode at once, and follow ``train()`` and ``eval()`` again."""
    model = ConvNet()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze(set_modules_as_eval=True)
    model.eval()

    freezer.unfreeze(0, 0)

    assert all(modes(model.stem).values())
    assert not any(modes(model.body).values())
    assert not any(modes(model.eval()).values())
    assert all(modes(model.train().stem).values())


def test_unfreezing_may_leave_modules_in_eval_mode() -> None:
    """With ``set_modules_as_training=False`` the parameters train and the modules stay in eval mode."""
    model = ConvNet()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze(set_modules_as_eval=True)

    freezer.unfreeze(set_modules_as_training=False)

    assert trainable(model) == {name for name, _ in model.named_parameters()}
    assert not any(modes(model.train().stem).values())


def test_a_shared_parameter_follows_the_last_call_and_is_returned_once() -> None:
    """A tied weight is frozen with either of its groups, and no optimizer gets it twice."""
    model = WithTokens()
    freezer = ModelFreezer(model)

    freezer.freeze(0, 0)
    assert not model.head.weight.requires_grad
    freezer.freeze(0, -1)
    unfrozen = freezer.unfreeze()

    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    for parameter_group in unfrozen.values():
        optimizer.add_param_group(parameter_group)
    assert {index: len(group["params"]) for index, group in unfrozen.items()} == {0: 2, 1: 2, 2: 1}
    assert trainable(model) == {"class_token", "embedding.weight", "body.weight", "body.bias", "head.bias"}


def test_a_model_without_modules_inside_is_one_group() -> None:
    """A single layer can be frozen as a whole."""
    model = nn.Linear(2, 2)
    freezer = ModelFreezer(model)

    freezer.freeze(0, 0, set_modules_as_eval=True)

    assert freezer.get_layer_groups() == [((0, -1), model, True)]
    assert freezer.get_layers() == [((0, -1), model, True)]
    assert freezer.get_trainable_parameters() == []
    assert not model.train().training
    assert freezer.unfreeze(0, 0) == {0: {"params": [model.weight, model.bias]}}


def test_integer_parameters_are_left_alone() -> None:
    """A parameter of integers, as in quantised layers, cannot be trained and disturbs nothing."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    counts = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)
    model[0].register_parameter("counts", counts)
    freezer = ModelFreezer(model)

    freezer.freeze()
    unfrozen = freezer.unfreeze()

    assert not counts.requires_grad
    assert [id(p) for p in unfrozen[0]["params"]] == [id(model[0].weight), id(model[0].bias)]


def test_a_compiled_model_is_frozen_by_the_groups_of_what_was_compiled() -> None:
    """A freezer looks through ``torch.compile``."""
    model = ConvNet()
    compiled = cast("nn.Module", torch.compile(model, backend="eager"))

    freezer = ModelFreezer(compiled)
    freezer.freeze()

    assert freezer.model is model
    assert trainable(model) >= {"head.weight", "head.bias"}
    assert not model.stem[0].weight.requires_grad
