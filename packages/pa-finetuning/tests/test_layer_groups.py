"""Layer groups of one's own: given to a freezer, or returned by an override, and honoured wherever groups count."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_finetuning import GradualUnfreezing, Layer, LayerGroup, ModelFreezer, model_freezer
from tests.support.pa_finetuning.conv_net import ConvNet, WithTokens, modes, trainable


class Encoder(nn.Module):
    """All the layers of a model in one of its direct children, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Sequential(nn.Embedding(5, 3), nn.Dropout(0.5))
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.pooler = nn.Linear(3, 3)


class TinyBert(nn.Module):
    """Three direct children: the whole of the encoder, dropout, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = Encoder()
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(3, 2)


NAMES: list[str | list[str]] = [
    "bert.embeddings",
    "bert.layers.0",
    "bert.layers.1",
    "bert.layers.2",
    ["bert.pooler", "classifier"],
]
HEAD = {f"{name}.{kind}" for name in ("bert.pooler", "classifier") for kind in ("weight", "bias")}


class StemAndRest(ModelFreezer):
    """Two groups in the place of three, built anew at each call."""

    @override
    def get_layer_groups(self) -> list[LayerGroup]:
        stem, *rest = super().get_layer_groups()
        merged = nn.Sequential(*(group.module for group in rest))
        return [stem, LayerGroup((1, -1), merged, is_frozen=False)]


class OnlyModules(ModelFreezer):
    """Returns modules, not records."""

    @override
    def get_layer_groups(self) -> list[LayerGroup]:
        model = cast("ConvNet", self.model)
        return cast("list[LayerGroup]", [model.stem, nn.Sequential(model.body, model.head)])


@pytest.mark.parametrize("by_name", [True, False])
def test_groups_may_be_nested_and_of_several_modules(by_name: bool) -> None:
    """Groups of one's own are frozen and unfrozen by their index, whether they are given by name or as modules."""
    model = TinyBert()
    bert = model.bert
    modules = [bert.embeddings, *bert.layers, [bert.pooler, model.classifier]]
    freezer = ModelFreezer(model, layer_groups=NAMES if by_name else modules)

    freezer.freeze()
    assert trainable(model) == HEAD
    unfrozen = freezer.unfreeze(-2, -2)
    assert trainable(model) == {*HEAD, "bert.layers.2.weight", "bert.layers.2.bias"}
    assert unfrozen == {3: {"params": list(bert.layers[2].parameters())}}
    assert [group.layer_group_idx for group in freezer.get_layer_groups()] == [(i, i - 5) for i in range(5)]


def test_each_group_has_its_own_learning_rate() -> None:
    """Learning rates fall over the groups that were given, and each parameter is in one of them."""
    model = TinyBert()
    freezer = ModelFreezer(model, layer_groups=NAMES)

    rates = freezer.get_learning_rates(0.16, factor=0.5)
    groups = freezer.get_parameter_groups(rates)

    assert rates == [0.01, 0.02, 0.04, 0.08, 0.16]
    assert [(group["lr"], len(group["params"])) for group in groups] == [
        *((0.01, 1), (0.02, 2), (0.04, 2), (0.08, 2)),
        (0.16, 4),
    ]
    with pytest.raises(ValueError, match=r"Expected: 5, a rate for each layer group"):
        freezer.get_parameter_groups([0.1, 0.2, 0.3])


def test_gradual_unfreezing_goes_group_by_group() -> None:
    """A stage for each of the groups that were given, and the rates of the frozen ones added to the optimizer."""
    model = TinyBert()
    freezer = ModelFreezer(model, layer_groups=NAMES)
    freezer.freeze()
    optimizer = SGD(freezer.get_trainable_parameters(), lr=0.1)
    unfreezing = GradualUnfreezing(freezer)

    assert unfreezing.stages == {2: 3, 3: 2, 4: 1, 5: 0}
    unfreezing.start_epoch(3)
    assert trainable(model) == HEAD | {f"bert.layers.{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")}
    freezer.add_frozen_parameters(optimizer, freezer.get_learning_rates(0.1, factor=0.5))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.00625, 0.0125]


def test_eval_mode_lasts_in_groups_of_ones_own() -> None:
    """Modules of a frozen group stay in eval mode through ``train()``, and those around them do not."""
    model = TinyBert()
    freezer = ModelFreezer(model, layer_groups=NAMES)
    freezer.freeze(0, 1, set_modules_as_eval=True)

    in_eval_mode = {name for name, training in modes(model.train()).items() if not training}
    assert in_eval_mode == {"bert.embeddings", "bert.embeddings.0", "bert.embeddings.1", "bert.layers.0"}
    freezer.unfreeze()
    assert all(modes(model.train()).values())


def test_a_parameter_can_be_in_a_group_by_its_name() -> None:
    """A class token goes where it is named; without a name, what sits on the model is in the first group."""
    model = WithTokens()
    body_first = ["body", ["embedding", "class_token"], "head"]
    named = ModelFreezer(model, layer_groups=body_first)

    named.freeze(1, 1)
    assert trainable(model) == {"body.weight", "body.bias", "head.bias"}
    unnamed = ModelFreezer(model, layer_groups=[["body"], "embedding", "head"])
    unnamed.freeze(0, 0)
    assert trainable(model) == {"embedding.weight", "head.bias"}


@pytest.mark.parametrize("kind", [StemAndRest, OnlyModules])
def test_an_override_of_the_layer_groups_is_honoured(kind: type[ModelFreezer]) -> None:
    """Freezing, unfreezing, learning rates and gradual unfreezing follow what ``get_layer_groups`` returns."""
    model = ConvNet()
    freezer = kind(model, freeze_batch_norms=True)

    freezer.freeze()

    assert trainable(model) == {name for name, _ in model.named_parameters() if not name.startswith("stem.")}
    assert GradualUnfreezing(freezer).stages == {2: 0}
    assert freezer.get_learning_rates(0.1, factor=0.5) == [0.05, 0.1]
    assert len(freezer.get_parameter_groups([0.1, 0.2], include_frozen=True)) == 2
    assert [layer.layer_group_idx for layer in freezer.get_layers()] == [(0, -2)] * 4 + [(1, -1)] * 6
    assert [layer.is_frozen for layer in freezer.get_layers()][:3] == [True, True, False]
    assert list(freezer.unfreeze()) == [0]
    with pytest.raises(IndexError, match="ConvNet has 2"):
        freezer.freeze(2, 2)


def test_records_say_what_is_frozen() -> None:
    """A group is frozen if ``freeze`` would change nothing about it; so is a layer that has parameters."""
    model = ConvNet()
    freezer = ModelFreezer(model)

    freezer.freeze(1, 1)

    assert freezer.get_layer_groups() == [
        LayerGroup((0, -3), model.stem, is_frozen=False),
        LayerGroup((1, -2), model.body, is_frozen=True),
        LayerGroup((2, -1), model.head, is_frozen=False),
    ]
    convolution, batch_norm, *rest = [layer for layer in freezer.get_layers() if layer.layer_group_idx == (1, -2)]
    assert convolution == Layer((1, -2), model.body[0], is_frozen=True)
    assert not batch_norm.is_frozen  # it goes on learning
    assert [layer.is_frozen for layer in rest] == [False] * 3  # without parameters
    assert model_freezer.LayerGroup is LayerGroup
    assert model_freezer.Layer is Layer


def test_a_layer_without_a_group_has_no_index() -> None:
    """What has no parameters need not be in a group; ``freeze`` and ``unfreeze`` leave it alone."""
    model = TinyBert()
    freezer = ModelFreezer(model, layer_groups=NAMES)

    of_layer = {layer.module: layer.layer_group_idx for layer in freezer.get_layers()}

    assert of_layer.pop(model.dropout) is None
    assert set(of_layer.values()) == {(i, i - 5) for i in range(5)}


@pytest.mark.parametrize(
    ("layer_groups", "error", "message"),
    [
        (["bert.embeddings", "bert.layers", "classifier"], ValueError, r"bert\.pooler\.weight.*bert\.pooler\.bias"),
        (["embeddings", "bert", "classifier"], ValueError, r"'embeddings'.*bert\.embeddings"),
        (["bert.layers.0", "bert", "classifier"], ValueError, r"'bert\.layers\.0'.*group 0.*'bert'.*group 1"),
        (["bert", "classifier", "classifier"], ValueError, r"'classifier'.*group 1.*'classifier'.*group 2"),
        ([["bert", "bert.pooler"], "classifier"], ValueError, r"'bert'.*group 0.*'bert\.pooler'.*group 0"),
        (["bert", [], "classifier"], ValueError, r"layer_groups\[1\].*empty"),
        ([], ValueError, "no layer group"),
        (["bert", nn.Linear(3, 2), "classifier"], ValueError, r"layer group 1: Linear.*not part of TinyBert"),
        ("bert", TypeError, r"'bert'.*\['bert'\]"),
        (["bert", 1], TypeError, r"layer_groups\[1\].*1, of type int"),
        (2, TypeError, r"2, of type int"),
    ],
)
def test_groups_that_cannot_be_are_an_error(layer_groups: Any, error: type[Exception], message: str) -> None:
    """Parameters in no group, or in two, and names that are not there are refused when the freezer is made."""
    model = TinyBert()

    with pytest.raises(error, match=message):
        ModelFreezer(model, layer_groups=layer_groups)


def test_an_override_that_leaves_parameters_out_is_an_error() -> None:
    """What no group has would be neither frozen nor given to an optimizer, without a word."""

    class WithoutHead(ModelFreezer):
        @override
        def get_layer_groups(self) -> list[LayerGroup]:
            return super().get_layer_groups()[:-1]

    freezer = WithoutHead(ConvNet())
    for call in (freezer.freeze, freezer.unfreeze, lambda: freezer.get_parameter_groups(0.1)):
        with pytest.raises(ValueError, match=r"head\.weight"):
            call()


def test_an_override_that_returns_no_groups_of_modules_is_an_error() -> None:
    """A name is not taken for a layer group where records or modules are expected."""

    class Names(ModelFreezer):
        @override
        def get_layer_groups(self) -> list[LayerGroup]:
            return cast("list[LayerGroup]", ["stem", "body", "head"])

    with pytest.raises(TypeError, match=r"layer group 0: 'stem', of type str"):
        Names(ConvNet()).freeze()


def test_tied_weights_in_two_groups_are_no_overlap() -> None:
    """A weight, or a whole module, that the model uses at two places may be in the groups of both."""
    model = WithTokens()
    ModelFreezer(model, layer_groups=["embedding", "body", "head"])
    shared = nn.Linear(2, 2)
    twice = nn.Sequential(nn.Sequential(shared, nn.Linear(2, 2)), nn.Sequential(shared, nn.Linear(2, 2)))

    freezer = ModelFreezer(twice, layer_groups=["0", "1"])

    assert [len(group["params"]) for group in freezer.get_parameter_groups(0.1)] == [4, 2]
    assert torch.equal(freezer.get_parameter_groups(0.1)[0]["params"][0], shared.weight)
