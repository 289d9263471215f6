"""What a training state holds of a run with several models, optimizers and schedulers, through a file and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from pa_checkpoint._checkpoint import write_checkpoint
from pa_checkpoint._encoding import JsonScalar, encode
from pa_core import CheckpointError, Trainer
from pa_core.progress import Phase, Position
from pa_core.storage import read_state
from pa_core.testing import make_regression
from pa_core.training_state.run_state import RunState, SavedRun, capture
from tests.support.pa_core.training_states.several_models import TwoModels

_SUMMARY: dict[str, JsonScalar] = {"run": "a run", "sequence": 1, "update": 3, "epoch": 0, "complete": False}


def state_of(run: TwoModels) -> RunState:
    """What a run by hand would add to its objects."""
    return RunState(
        position=Position(Phase.STEP, epochs=0, updates=3),
        seed=7,
        algorithm=None,
        settings={
            "num_epochs": 3,
            "max_num_train_steps": 30,
            "num_processes": 1,
            "samples_per_update": 4,
            "loader": "keyed",
            "shuffle": True,
        },
        hyperparameters=run.asked,
        nominal_items={"generator": 8.0, "discriminator": None},
    )


def save(run: TwoModels, state: RunState, directory: Path) -> None:
    """Write everything to a directory, as a run does."""
    parts = {**capture(run, state), "extras": {}}
    write_checkpoint(directory, {name: encode(part, name) for name, part in parts.items()}, _SUMMARY)


@pytest.fixture
def saved(tmp_path: Path) -> SavedRun:
    """The state of a run after three updates."""
    run = TwoModels()
    state = state_of(run)
    run.train(3)
    save(run, state, tmp_path / "state")
    return SavedRun(read_state(tmp_path / "state"))


def test_models_optimizers_and_schedulers_go_on_bit_for_bit(tmp_path: Path) -> None:
    """Also where an optimizer holds parameters of two models, and where models are made with other weights."""
    run = TwoModels()
    state = state_of(run)
    run.train(3)
    save(run, state, tmp_path / "state")
    expected = run.train(4)

    resumed = TwoModels(seed=1)
    saved = SavedRun(read_state(tmp_path / "state"))
    assert saved.restore(resumed, hyperparameters=resumed.asked) == []
    saved.restore_rng_state(resumed)

    assert resumed.train(4) == expected
    assert all(map(torch.equal, resumed.weights(), run.weights()))
    assert saved.nominal_items == {"generator": 8.0, "discriminator": None}
    assert [one.get_last_lr() for one in resumed.schedulers.values()] == [
        one.get_last_lr() for one in run.schedulers.values()
    ]


def test_another_learning_rate_changes_that_optimizer_alone(saved: SavedRun) -> None:
    """In proportion, and it is named with its optimizer."""
    same, other = TwoModels(), TwoModels(rate=0.2)
    saved.restore(same, hyperparameters=same.asked)
    (difference,) = saved.restore(other, hyperparameters=other.asked)

    assert difference.name == "generator, group 0: lr"
    rates = {
        name: (optimizer.param_groups[0]["lr"], same.optimizers[name].param_groups[0]["lr"])
        for name, optimizer in other.optimizers.items()
    }
    assert rates["generator"][0] == pytest.approx(2 * rates["generator"][1])
    assert rates["discriminator"][0] == rates["discriminator"][1]


def rename_model(run: TwoModels) -> None:
    """Train another model in the place of the discriminator."""
    models = {"generator": run.generator, "critic": run.discriminator}
    vars(run)["named_models"] = lambda: models


def reshape_model(run: TwoModels) -> None:
    """Give the second model another shape; the first one still matches."""
    run.discriminator = nn.Linear(3, 1)


def rename_optimizer(run: TwoModels) -> None:
    """Give an optimizer another name."""
    run.optimizers = {"generator": run.optimizers["generator"], "critic": run.optimizers["discriminator"]}


def swap_parameters(run: TwoModels) -> None:
    """Let an optimizer hold other parameters than before."""
    run.optimizers["discriminator"] = SGD(run.discriminator.parameters(), lr=0.1, momentum=0.9)


REFUSED: dict[Callable[[TwoModels], None], str] = {
    rename_model: r"(?s)another model.*the models generator, critic.*the models generator, discriminator",
    reshape_model: r"discriminator, of type Linear: weight: \(1, 2\) in the state, \(1, 3\) in the model",
    rename_optimizer: r"(?s)other optimizers.*generator, critic.*generator, discriminator",
    swap_parameters: r"(?s)group 0 with discriminator.weight, discriminator.bias\n.*generator.3.weight",
}


@pytest.mark.parametrize("change", REFUSED)
def test_a_run_with_other_objects_is_refused_by_name(saved: SavedRun, change: Callable[[TwoModels], None]) -> None:
    """And where it is a model, no weight of any model was changed."""
    run = TwoModels(seed=1)
    change(run)
    before = run.weights()
    with pytest.raises(CheckpointError, match=REFUSED[change]):
        saved.restore_training(run, None)
    if "model" in change.__name__:
        assert all(map(torch.equal, run.weights(), before))


@pytest.mark.parametrize("change", [rename_model, reshape_model])
def test_what_still_matches_is_taken_over_where_that_is_allowed(
    saved: SavedRun, change: Callable[[TwoModels], None]
) -> None:
    """The model that is the same gets its weights, and optimizers begin anew."""
    run, whole = TwoModels(seed=1), TwoModels()
    change(run)
    saved.restore_training(run, None, allowed=("model",))
    saved.restore_training(whole, None)
    assert all(map(torch.equal, run.generator.state_dict().values(), whole.generator.state_dict().values()))
    assert not any(optimizer.state for optimizer in run.optimizers.values())


def test_a_run_with_one_of_each_is_stored_without_their_names(tmp_path: Path) -> None:
    """So that every version reads its states: parameters have their plain names, settings are in no mapping."""
    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), Adam(model.parameters()), callbacks=[])
    trainer.train(make_regression(8), 1)
    trainer.save_training_state(tmp_path / "state")

    parts: Any = read_state(tmp_path / "state").parts
    assert (list(parts["models"]), list(parts["optimizers"])) == (["model", "loss_func"], ["optimizer"])
    assert parts["optimizers"]["optimizer"]["parameters"] == [["weight", "bias"]]
    assert parts["run"]["hyperparameters"][0]["lr"] == 0.001
    assert parts["run"]["nominal_items"] is None
