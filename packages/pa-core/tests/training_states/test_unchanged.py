"""States cost what changed: tensors that are as in the state before are linked, not written again."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_checkpoint import Folder, load
from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback

CONSTANT = "models.constant.safetensors"
SAMPLES = TensorDataset(torch.randn(64, 512, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 4)


def _model(frozen_layers: int = 1) -> nn.Sequential:
    """Frozen layers of a MiB each, beside BatchNorm, whose statistics change all the same, and a trained layer."""
    torch.manual_seed(0)
    frozen = nn.Sequential(*(nn.Linear(512, 512) for _ in range(frozen_layers)), nn.BatchNorm1d(512))
    return nn.Sequential(frozen.requires_grad_(False), nn.Linear(512, 512), nn.Linear(512, 4))


def _first_layer(model: nn.Module) -> nn.Linear:
    layer = model.get_submodule("0.0")
    assert isinstance(layer, nn.Linear)
    return layer


class _After(TrainerCallback):
    """Does something to the model after an update, before its state is saved."""

    def __init__(self, update: int, do: Callable[[nn.Module], object]) -> None:
        self.update, self.do = update, do

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update >= self.update:
            self.do(trainer.get_model())


def _train(folder: Path, model: nn.Module, *callbacks: TrainerCallback, steps: int, **given: Any) -> list[Path]:
    """Save a state after each of the steps, and return the states."""
    save = SaveTrainingStateCallback(
        folder, save_every_n_steps=1, save_at_end=False, asynchronous=given.pop("asynchronous", False)
    )
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()), callbacks=[*callbacks, save])
    trainer.train(SAMPLES, 1, per_device_batch_size=16, max_num_train_steps=steps, **given)
    return [folder / f"step_{update}" for update in range(1, steps + 1)]


def _require_weights(model: nn.Module, state: Path) -> None:
    saved: dict[str, Tensor] = load(state).parts["models"]["model"]["weights"]
    assert all(weight.equal(saved[name]) for name, weight in model.state_dict().items())


def _num_files(states: list[Path]) -> int:
    """How many different files hold what was found constant in some states."""
    return len({(state / CONSTANT).stat().st_ino for state in states})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_state_costs_what_changed(tmp_path: Path, asynchronous: bool) -> None:
    """With 99 % frozen, a state takes 1.05 times the trained weights and their optimizer state, after a resume too."""
    model = _model(frozen_layers=99)
    model[2].requires_grad_(False)
    trained = 3 * sum(parameter.nbytes for parameter in model[1].parameters())

    _train(tmp_path, model, steps=2, asynchronous=asynchronous)
    states = _train(tmp_path, _model(99), steps=3, asynchronous=asynchronous, resume_from=tmp_path)

    for state in states[1:]:
        written = sum(file.stat().st_size for file in state.iterdir() if file.stat().st_nlink == 1)
        assert trained < written <= 1.05 * trained
    assert _num_files(states) == 1


def test_a_second_state_of_an_update_links_what_the_first_one_does(tmp_path: Path) -> None:
    """That trained weights are as in the state before, since both are of one update, has nothing written again."""
    model = _model()
    save = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2)
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()), callbacks=[save])
    trainer.train(SAMPLES, 1, per_device_batch_size=16)
    assert _num_files([tmp_path / "step_2", tmp_path / "step_4", tmp_path / "final"]) == 1


def test_what_is_unfrozen_is_written(tmp_path: Path) -> None:
    """A layer that is trained from an update on is in each state as it was then; the others are still linked."""
    model = _model(frozen_layers=2)
    states = _train(tmp_path, model, _After(2, lambda model: _first_layer(model).requires_grad_(True)), steps=4)
    _require_weights(model, states[3])
    assert _num_files(states) == 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_change_that_torch_does_not_note_is_written(tmp_path: Path, asynchronous: bool) -> None:
    """Weights that change through ``.data``, as those of teachers do, are in each state; others are still linked."""
    model = _model(frozen_layers=2)
    change = _After(2, lambda model: _first_layer(model).weight.data.mul_(0.5))
    states = _train(tmp_path, model, change, steps=4, asynchronous=asynchronous)
    _require_weights(model, states[3])
    for update, state in enumerate(states, start=1):
        saved = load(state).parts["models"]["model"]["weights"]["0.0.weight"]
        assert saved.equal(_first_layer(_model(2)).weight * 0.5 ** (update - 1))
    assert _num_files(states) == 2


def test_a_damaged_file_is_not_linked_again(tmp_path: Path) -> None:
    """A run that is started again writes what an earlier process has written and a disk has damaged."""
    (state,) = _train(tmp_path, _model(), steps=1)
    content = bytearray((state / CONSTANT).read_bytes())
    content[-1] ^= 1
    (state / CONSTANT).write_bytes(content)

    model = _model()
    _train(tmp_path, model, steps=2)

    found, skipped = Folder(tmp_path).newest_readable(load)
    assert found is not None
    assert [one.path for one in skipped] == []
    _require_weights(model, found.path)


def test_without_links_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no hard links, each state has files of its own."""

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    model = _model()
    states = _train(tmp_path, model, steps=2)
    _require_weights(model, states[1])
    assert _num_files(states) == 2


def test_few_constant_bytes_stay_in_one_file(tmp_path: Path) -> None:
    """States of small models have the first version of the format, with one file for each part."""
    model = nn.Sequential(nn.Linear(512, 8).requires_grad_(False), nn.Linear(8, 4))
    state = _train(tmp_path, model, steps=2)[1]
    assert json.loads((state / "manifest.json").read_text())["version"] == 1
    assert not (state / CONSTANT).exists()
