"""Training states that accelerate wrote, as pytorch-accelerated saves them: recognised, and never unpickled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import SGD

from pa_core import CheckpointError, Trainer
from pa_core.testing import make_regression

DATA = make_regression(8)


def make_trainer(seed: int = 0) -> Trainer[nn.Linear]:
    """A trainer of a linear model."""
    torch.default_generator.manual_seed(seed)
    model = nn.Linear(4, 1)
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1, momentum=0.9), callbacks=[])


def save_with_accelerate(folder: Path, *, safetensors: bool = True, wrapped: bool = False) -> Trainer[nn.Linear]:
    """Train, save the state as accelerate does, with what a script adds, and return the trainer."""
    trainer = make_trainer()
    trainer.train(DATA, 1)
    # Of a model that was wrapped for several processes, the names begin with "module.".
    model = nn.ModuleDict({"module": trainer.model}) if wrapped else trainer.model
    accelerator: Any = Accelerator()
    accelerator.prepare(model, trainer.optimizer)
    accelerator.save_state(str(folder), safe_serialization=safetensors)
    (folder / "metadata.json").write_text('{"current_epoch": 1}')
    return trainer


WAYS: dict[str, Callable[[Trainer[nn.Linear], Path], object]] = {
    "resume": lambda trainer, path: trainer.train(DATA, 2, resume_from=path),
    "resume or start": lambda trainer, path: trainer.train(DATA, 2, resume_from=path, resume_missing="start"),
    "load state": lambda trainer, path: trainer.load_training_state(path),
    "load checkpoint": lambda trainer, path: trainer.load_checkpoint(path),
}


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
@pytest.mark.parametrize("safetensors", [True, False], ids=["safetensors", "pickled"])
def test_the_code_in_the_message_loads_the_weights_and_the_optimizer(
    tmp_path: Path, safetensors: bool, wrapped: bool
) -> None:
    """It is run as it stands, and the trainer goes on with the weights and the momentum that were saved."""
    saved = save_with_accelerate(tmp_path / "state", safetensors=safetensors, wrapped=wrapped)
    trainer = make_trainer(seed=1)
    with pytest.raises(CheckpointError, match="written by accelerate") as refused:
        trainer.load_training_state(tmp_path / "state")
    exec(refused.value.do.split("train(): ")[1], {"trainer": trainer, "torch": torch})
    assert torch.equal(trainer.model.weight, saved.model.weight)
    momenta = [one.optimizer.state[one.model.weight]["momentum_buffer"] for one in (trainer, saved)]
    assert torch.equal(momenta[0], momenta[1])
    trainer.train(DATA, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("folder", [False, True], ids=["state", "folder of states"])
def test_such_a_state_is_refused_wherever_it_is_given(way: str, folder: bool, tmp_path: Path) -> None:
    """Also where a run may start without a state, as it would start from nothing; nothing is loaded."""
    save_with_accelerate(tmp_path / "epoch_1")
    trainer = make_trainer(seed=1)
    before = trainer.model.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"epoch_1 with .*optimizer\.bin.*random_states_0\.pkl"):
        WAYS[way](trainer, tmp_path if folder else tmp_path / "epoch_1")
    assert torch.equal(trainer.model.weight, before)


def test_a_state_of_ones_own_is_no_checkpoint_file(tmp_path: Path) -> None:
    """The message says how to load it, and of another directory that a file is wanted."""
    trainer = make_trainer()
    trainer.train(DATA, 1)
    trainer.save_training_state(tmp_path / "state")
    with pytest.raises(CheckpointError, match=r"a training state(.|\n)*load_training_state") as refused:
        trainer.load_checkpoint(tmp_path / "state")
    other = make_trainer(seed=1)
    advice = str(refused.value).partition("Load it with ")[2].removesuffix(".")
    exec(f"trainer.{advice}", {"trainer": other})
    assert torch.equal(other.model.weight, trainer.model.weight)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="path of a file"):
        trainer.load_checkpoint(tmp_path / "empty")


def test_an_exported_model_is_no_training_state(tmp_path: Path) -> None:
    """Weights alone are not taken for what accelerate saves of a run."""
    trainer = make_trainer()
    trainer.save_model(tmp_path / "export")
    with pytest.raises(FileNotFoundError, match="resume_from"):
        trainer.train(DATA, 1, resume_from=tmp_path / "export")
