"""Damage to any file of a checkpoint is found before anything is loaded."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pa_trial import Batch, InvalidCheckpointException, load_trial_from_checkpoint_path
from tests.support.models import weights_of
from tests.support.pa_trial.saved_checkpoints import changed_trial_state
from tests.support.trials import TinyTrial, fit, fit_and_fail

FILES = ["state_dict.pth", "trial_state.json", "load_data.json", "metadata.json", "manifest.json"]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that every test damages a copy of."""
    folder = tmp_path_factory.mktemp("intact")
    fit(TinyTrial, folder, max_length=Batch(2))
    (checkpoint,) = folder.iterdir()
    return checkpoint


def refuse(checkpoint: Path) -> InvalidCheckpointException:
    """Return the error of resuming from a checkpoint, which has to leave the trial as it was."""
    asked: dict[str, Any] = {"max_length": Batch(4), "latest_checkpoint": checkpoint.name}
    trial, error = fit_and_fail(TinyTrial, checkpoint.parent, InvalidCheckpointException, "damaged", **asked)
    assert trial.trained == []
    assert torch.equal(weights_of(trial.model), trial.first)
    return error


def damage(path: Path, how: str) -> None:
    """Damage a file."""
    content = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes({"empty": b"", "truncated": content[:-7], "longer": content + b"x"}[how])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "truncated", "longer"])
def test_a_damaged_file_is_named(how: str, name: str, intact: Path, tmp_path: Path) -> None:
    """Whatever has become of it."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(intact, checkpoint)
    damage(checkpoint / name, how)
    assert name in refuse(checkpoint).given


@pytest.mark.parametrize("name", FILES)
def test_one_wrong_bit_is_found(name: str, intact: Path, tmp_path: Path) -> None:
    """Wherever it is; only the space between entries of a document may change."""
    chance = random.Random(name)
    content = (intact / name).read_bytes()
    for _ in range(12):
        place = chance.randrange(len(content))
        while content[place : place + 1].isspace():
            place = chance.randrange(len(content))
        checkpoint = tmp_path / "checkpoint"
        shutil.copytree(intact, checkpoint)
        changed = bytearray(content)
        changed[place] ^= 1 << chance.randrange(8)
        (checkpoint / name).write_bytes(changed)
        refuse(checkpoint)
        with pytest.raises(InvalidCheckpointException):
            load_trial_from_checkpoint_path(checkpoint, TinyTrial)
        shutil.rmtree(checkpoint)


def test_a_checkpoint_of_a_later_release_is_refused(intact: Path, tmp_path: Path) -> None:
    """Its files may mean something else."""
    shutil.copytree(intact, tmp_path / intact.name)
    checkpoint = changed_trial_state(tmp_path / intact.name, format_version=2)
    with pytest.raises(InvalidCheckpointException, match="release of pa-trial") as error:
        fit(TinyTrial, tmp_path, max_length=Batch(4), latest_checkpoint=checkpoint)
    assert "format_version 2" in error.value.given
