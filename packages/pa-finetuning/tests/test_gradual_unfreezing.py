"""Unfreezing stage by stage: which layer groups are trained in which epoch, in a loop of one's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from pa_finetuning import GradualUnfreezing, ModelFreezer
from tests.support.pa_finetuning.conv_net import ConvNet, WithTokens, modes, trainable


def make_freezer(num_groups: int = 4, *, frozen: int | None = None) -> ModelFreezer:
    """A freezer of linear layers, of which by default all but the last are frozen."""
    freezer = ModelFreezer(nn.Sequential(*[nn.Linear(1, 1) for _ in range(num_groups)]))
    freezer.freeze(0, -2 if frozen is None else frozen - 1)
    return freezer


def trained_groups(freezer: ModelFreezer) -> set[int]:
    """The indexes of the layer groups of which everything is trainable."""
    groups = enumerate(freezer.get_layer_groups())
    return {index for index, group in groups if all(p.requires_grad for p in group.module.parameters())}


@given(st.integers(2, 6), st.integers(1, 4), st.data())
def test_one_more_group_is_trained_in_each_stage(num_groups: int, epochs_per_stage: int, data: st.DataObject) -> None:
    """From the last group that was frozen on, each stage adds the one before it, until nothing is frozen."""
    frozen = data.draw(st.integers(1, num_groups))
    freezer = make_freezer(num_groups, frozen=frozen)
    unfreezing = GradualUnfreezing(freezer, epochs_per_stage=epochs_per_stage)

    for epoch in range(1, epochs_per_stage * (frozen + 2)):
        unfreezing.start_epoch(epoch)
        num_unfrozen = min((epoch - 1) // epochs_per_stage, frozen)
        assert trained_groups(freezer) == set(range(frozen - num_unfrozen, num_groups))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_what_is_unfrozen_follows_from_the_number_of_the_epoch(epochs: list[int]) -> None:
    """Epochs that are started twice, or left out as when a run goes on, leave what the latest one asks for."""
    freezer = make_freezer()
    unfreezing = GradualUnfreezing(freezer, epochs_per_stage=3)
    for epoch in epochs:
        unfreezing.start_epoch(epoch)

    other = make_freezer()
    GradualUnfreezing(other, epochs_per_stage=3).start_epoch(max(epochs))
    assert trainable(freezer.model) == trainable(other.model)


def test_stages_of_ones_own() -> None:
    """A mapping says from which epoch on which groups are trained, counted from either end."""
    freezer = make_freezer(5)
    unfreezing = GradualUnfreezing(freezer, stages={6: 0, 2: -3})

    trained: list[int] = []
    for epoch in range(1, 8):
        unfreezing.start_epoch(epoch)
        trained.append(len(trained_groups(freezer)))

    assert unfreezing.stages == {2: 2, 6: 0}
    assert trained == [1, 3, 3, 3, 3, 5, 5]


def test_groups_without_frozen_parameters_are_no_stage() -> None:
    """Activations, batch norm layers that are not frozen, and what is trainable anyway cost no stage."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 2)
    )
    freezer = ModelFreezer(model)
    freezer.freeze()

    assert GradualUnfreezing(freezer).stages == {2: 3, 3: 0}


def test_a_tied_weight_is_unfrozen_with_the_last_of_its_groups() -> None:
    """A head that shares its weight with the embedding is one stage, and what else is in the embedding another."""
    model = WithTokens()
    freezer = ModelFreezer(model)
    freezer.freeze()
    unfreezing = GradualUnfreezing(freezer)
    assert unfreezing.stages == {2: 2, 3: 1, 4: 0}
    assert trainable(model) == {"head.bias"}

    unfreezing.start_epoch(2)
    assert trainable(model) == {"head.bias", "embedding.weight"}

    unfreezing.start_epoch(4)
    assert trainable(model) == set(dict(model.named_parameters()))


def test_unfrozen_modules_follow_train_again() -> None:
    """Eval mode of frozen modules ends with the stage that unfreezes them, unless it is to stay."""
    model = ConvNet()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze(set_modules_as_eval=True)
    unfreezing = GradualUnfreezing(freezer)

    unfreezing.start_epoch(2)
    assert {name for name, training in modes(model.train()).items() if not training} == {
        name for name in modes(model) if name.startswith("stem")
    }

    freezer.freeze(set_modules_as_eval=True)
    GradualUnfreezing(freezer, set_modules_as_training=False).start_epoch(3)
    assert len(freezer.get_trainable_parameters()) == 10
    assert {name for name, training in modes(model.train()).items() if training} == {"", "head"}


def test_a_run_that_goes_on_keeps_its_stages() -> None:
    """The state holds plain values; loaded, it decides what is unfrozen, whatever the script asks for now."""
    began = GradualUnfreezing(make_freezer(), epochs_per_stage=2)
    state = began.state_dict()
    assert state == {"stages": {3: 2, 5: 1, 7: 0}}

    freezer = make_freezer()
    goes_on = GradualUnfreezing(freezer, epochs_per_stage=9)
    goes_on.start_epoch(5)
    assert trained_groups(freezer) == {3}
    goes_on.load_state_dict(state)
    assert trained_groups(freezer) == {1, 2, 3}
    goes_on.start_epoch(7)
    assert trained_groups(freezer) == {0, 1, 2, 3}


def test_a_state_of_a_larger_model_is_an_error() -> None:
    """Stages of layer groups that the model does not have are refused, and its own are kept."""
    unfreezing = GradualUnfreezing(make_freezer(2))

    with pytest.raises(IndexError, match="no layer group 3"):
        unfreezing.load_state_dict(GradualUnfreezing(make_freezer(5)).state_dict())

    assert unfreezing.stages == {2: 0}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epochs_per_stage": 0}, ValueError, r"epochs_per_stage=0.*at least 1"),
        ({"epochs_per_stage": 1.5}, TypeError, r"epochs_per_stage: 1.5.*Expected: an integer"),
        ({"epochs_per_stage": True}, TypeError, r"epochs_per_stage: True"),
        ({"stages": {}}, ValueError, r"without an epoch.*Pass at least a stage"),
        ({"stages": {0: 1}}, ValueError, r"epoch 0.*from 1"),
        ({"stages": {2.5: 1}}, TypeError, r"an epoch of stages: 2.5"),
        ({"stages": {2: "head"}}, TypeError, r"'head'.*Expected: an integer"),
        ({"stages": {2: 4}}, IndexError, r"no layer group 4.*from -4 to 3"),
        ({"stages": {2: 3}}, ValueError, r"epoch 2 unfreezes nothing.*Correct the stage"),
        ({"stages": {2: 1, 4: 2}}, ValueError, r"epoch 4 unfreezes nothing.*Correct the stage"),
    ],
)
def test_stages_that_cannot_be_are_an_error(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """Epochs and layer groups that are not there, and stages that would unfreeze nothing, are refused at once."""
    with pytest.raises(error, match=message):
        GradualUnfreezing(make_freezer(), **arguments)


def test_unfreezing_what_is_not_frozen_is_an_error() -> None:
    """Without ``freeze()`` before it, all would be trained from the first epoch."""
    with pytest.raises(ValueError, match=r"no parameter of ConvNet is frozen.*Call freezer.freeze\(\)"):
        GradualUnfreezing(ModelFreezer(ConvNet()))


def make_trainer(optimizer: SGD | None) -> Any:
    """What the events read of a trainer: the optimizer, the epoch, the length of the run."""
    return SimpleNamespace(
        optimizer=optimizer,
        scheduler=None,
        run_history=SimpleNamespace(current_epoch=1),
        run_config=SimpleNamespace(num_epochs=3),
        num_epochs_completed=0,
        num_updates=0,
    )


def test_an_optimizer_that_lacks_what_is_unfrozen_is_an_error() -> None:
    """Parameters that would be unfrozen and never updated are named before the run begins."""
    freezer = make_freezer()
    trainer = make_trainer(SGD(freezer.get_trainable_parameters(), lr=0.1))

    with pytest.raises(ValueError, match=r"SGD without the frozen.*groups \[1, 2\].*include_frozen=True"):
        GradualUnfreezing(freezer, stages={2: 1}).on_training_run_start(trainer)


def test_a_scheduler_that_was_made_too_early_is_an_error() -> None:
    """A scheduler that knows nothing of the added groups would fail after the first update."""
    freezer = make_freezer()
    optimizer = SGD(freezer.get_trainable_parameters(), lr=0.1)
    trainer = make_trainer(optimizer)
    trainer.scheduler = StepLR(optimizer, 1)
    unfreezing = GradualUnfreezing(freezer, learning_rates=0.01)
    unfreezing.on_prepare_start(trainer)

    with pytest.raises(ValueError, match=r"StepLR made for 1 .*all 4.*create_scheduler_fn"):
        unfreezing.on_training_run_start(trainer)


def test_only_what_the_stages_unfreeze_is_added() -> None:
    """A layer group that stays frozen needs no learning rate, and is not added to the optimizer."""
    freezer = make_freezer()
    optimizer = SGD(freezer.get_trainable_parameters(), lr=0.1)

    GradualUnfreezing(freezer, learning_rates={2: 0.02, 1: 0.01}, stages={2: 1}).on_prepare_start(
        make_trainer(optimizer)
    )

    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01, 0.02]


def test_what_only_evaluates_is_left_alone() -> None:
    """A trainer without an optimizer can be prepared for an evaluation."""
    freezer = make_freezer()
    unfreezing = GradualUnfreezing(freezer, learning_rates=0.01)

    unfreezing.on_prepare_start(make_trainer(None))

    assert trained_groups(freezer) == {3}
