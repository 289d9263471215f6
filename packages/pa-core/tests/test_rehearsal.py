"""A reproducible run whose micro-batches depend on those before them is refused before its first update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pa_core import Trainer, UnsupportedConfigurationError
from pa_core.testing import make_regression
from tests.support.held_state import WAYS, make
from tests.support.pa_core.independent_models import HEALTHY, HIDDEN

DATA = make_regression(24)
ARGUMENTS: dict[str, Any] = {
    "num_epochs": 2,
    "samples_per_update": 12,
    "per_device_batch_size": 4,
    "train_dataloader_kwargs": {"num_workers": 0},
}


def trained(model: nn.Module, loss_func: Any = None, trainer_class: Any = Trainer) -> Trainer[Any]:
    """A reproducible run."""
    trainable = [one for one in model.parameters() if one.requires_grad]
    trainer: Trainer[Any] = trainer_class(
        model, loss_func or nn.MSELoss(), SGD(trainable, lr=0.1), [], reproducible="any_processes"
    )
    trainer.train(DATA, **ARGUMENTS)
    return trainer


PLACES = ("model", "loss_func", "step", "hook")


@pytest.mark.parametrize(("way", "place"), [(way, PLACES[number % 4]) for number, way in enumerate(WAYS)])
def test_state_that_a_micro_batch_moves_is_refused(way: str, place: str) -> None:
    """Wherever the script keeps it; weights and state are as before, and the message says what to do."""
    script = make(way, place)
    given = script.trainer
    options: dict[str, Any] = {"reproducible": "any_processes"}
    trainer = type(given)(given.model, given.loss_func, given.optimizer, [], **options)
    if place == "step":
        vars(trainer)["move"] = script.move
    before = given.model.layer.weight.tolist()
    with pytest.raises(UnsupportedConfigurationError, match="on_optimizer_step_end"):
        trainer.train(script.arguments["train_dataset"], **ARGUMENTS)
    assert given.model.layer.weight.tolist() == before
    assert script.move is not None
    fresh = make(way, place).move
    assert fresh is not None


@pytest.mark.parametrize("name", HIDDEN)
def test_models_that_learn_outside_of_gradients_are_refused(name: str) -> None:
    """Teachers, queues, banks and centres that a forward pass moves."""
    torch.manual_seed(0)
    with pytest.raises(UnsupportedConfigurationError, match=r"first micro-batch|each micro-batch"):
        trained(*HIDDEN[name]())


def _nothing(*_: object) -> None:
    """In the place of the rehearsal."""


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_are_as_without_the_rehearsal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They train, and their weights are those of a run that was not rehearsed."""
    torch.manual_seed(0)
    rehearsed = trained(*HEALTHY[name]()).fingerprint()
    monkeypatch.setattr("pa_core.engine.session.Session._rehearse", _nothing)
    torch.manual_seed(0)
    assert trained(*HEALTHY[name]()).fingerprint() == rehearsed
