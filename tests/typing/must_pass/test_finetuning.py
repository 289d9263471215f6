"""The types of freezing and unfreezing."""

from __future__ import annotations

from typing import Any, assert_type

from torch import nn
from torch.optim import AdamW

from pa_core import Trainer, TrainerCallback
from pa_finetuning import GradualUnfreezing, Layer, LayerGroup, LayerGroupLike, LearningRates, ModelFreezer, TrainerLike
from tests.typing.vocabulary import Net, make_data


class Unfreeze(GradualUnfreezing, TrainerCallback):
    """Gradual unfreezing, as a callback."""


def test_a_freezer_gives_modules_and_parameters() -> None:
    """What is frozen, unfrozen and looked at has the types of torch."""
    freezer = ModelFreezer(Net())
    freezer.freeze()

    assert_type(freezer.model, nn.Module)
    assert_type(freezer.get_layer_groups(), list[LayerGroup])
    assert_type(freezer.get_layer_groups()[0].layer_group_idx, tuple[int, int])
    assert_type(freezer.get_layer_groups()[0].module, nn.Module)
    assert_type(freezer.get_layers(), list[Layer])
    assert_type(freezer.get_layers()[0].layer_group_idx, tuple[int, int] | None)
    assert_type(freezer.get_trainable_parameters(), list[nn.Parameter])
    unfrozen = freezer.unfreeze()
    assert_type(unfrozen, dict[int, dict[str, list[nn.Parameter]]])
    AdamW(unfrozen[0]["params"])


def test_layer_groups_come_by_name_and_as_modules() -> None:
    """A list may have names, modules, and lists of several in it."""
    net = Net()
    names: list[LayerGroupLike] = ["body", ["head.weight", net.head.bias]]

    assert len(ModelFreezer(net, layer_groups=names).get_layer_groups()) == 2
    assert len(ModelFreezer(net, layer_groups=[net.body, ["head"]]).get_layer_groups()) == 2


def test_learning_rates_come_in_three_forms() -> None:
    """One for all, a list, a mapping: the groups they make fit every optimizer of torch."""
    freezer = ModelFreezer(Net())
    forms: list[LearningRates] = [0.1, freezer.get_learning_rates(0.1, factor=0.5), {0: 0.01, 1: 0.1}]

    for rates in forms:
        groups = freezer.get_parameter_groups(rates)
        assert_type(groups, list[dict[str, Any]])
        assert len(AdamW(groups).param_groups) == 2


def test_unfreezing_is_a_callback_of_every_trainer() -> None:
    """What it reads of a trainer is a protocol, which every trainer of ours meets."""

    def read(trainer: TrainerLike) -> int:
        return trainer.run_history.current_epoch

    net = Net()
    freezer = ModelFreezer(net)
    freezer.freeze()
    optimizer = AdamW(freezer.get_parameter_groups(0.1, include_frozen=True))
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, callbacks=[Unfreeze(freezer)])
    trainer.train(make_data(), num_epochs=2)

    assert_type(trainer, Trainer[Net])
    assert read(trainer) == 3
