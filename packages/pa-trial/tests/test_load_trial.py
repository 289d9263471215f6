"""Trials that are made again from their checkpoints."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from pa_trial import (
    Batch,
    InternalException,
    InvalidExperimentException,
    NoCheckpointError,
    PyTorchTrialContext,
    Trainer,
    load_trial_from_checkpoint_path,
)
from pa_trial.errors import ConfigurationError
from tests.support.models import weights_of
from tests.support.trials import TinyTrial, fit

HPARAMS = {"lr": 0.1, "global_batch_size": 8}
EXP_CONF = {"data": {"path": "somewhere"}, "name": "tiny"}


class Asking(TinyTrial):
    """A tiny trial that asks for hyperparameters, and takes an argument of its own."""

    def __init__(self, context: PyTorchTrialContext, width: int = 1) -> None:
        super().__init__(context)
        self.width = width
        self.lr = context.get_hparam("lr")
        self.batch_size = context.get_per_slot_batch_size()


def save(folder: Path, trial_class: type[TinyTrial] = TinyTrial, **settings: Any) -> tuple[Path, TinyTrial]:
    """Train a trial; return its checkpoint and the trial itself."""
    trial = fit(trial_class, folder, settings=settings, max_length=Batch(2))
    (checkpoint,) = folder.iterdir()
    return checkpoint, trial


def change(checkpoint: Path, **entries: Any) -> None:
    """Change what a checkpoint says of its trial, and leave it without digests, as Determined's are."""
    path = checkpoint / "load_data.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
    (checkpoint / "trial_state.json").unlink()
    (checkpoint / "metadata.json").write_text(json.dumps({"steps_completed": 2}))


def test_the_class_is_found_in_the_code_that_determined_copied(tmp_path: Path) -> None:
    """It is imported together with modules beside it, and the search path stays as it was."""
    checkpoint, trained = save(tmp_path)
    change(checkpoint, trial_cls_spec="copied_trial:Copied")
    code = checkpoint / "code"
    code.mkdir()
    (code / "copied_base.py").write_text("from tests.support.trials import TinyTrial\n")
    (code / "copied_trial.py").write_text("from copied_base import TinyTrial\nclass Copied(TinyTrial): ...\n")
    before = list(sys.path)
    loaded = load_trial_from_checkpoint_path(checkpoint)
    assert sys.path == before
    assert isinstance(loaded, TinyTrial)
    assert type(loaded).__name__ == "Copied"
    assert torch.equal(weights_of(loaded.model), weights_of(trained.model))


def test_the_class_is_found_by_its_name(tmp_path: Path) -> None:
    """The trial has the weights, the hyperparameters and the configuration of the training."""
    checkpoint, trained = save(tmp_path, Asking, hparams=HPARAMS, exp_conf=EXP_CONF)
    trial = load_trial_from_checkpoint_path(str(checkpoint))
    assert type(trial) is Asking
    assert torch.equal(weights_of(trained.model), weights_of(trial.model))
    assert trial.context.get_hparams() == HPARAMS
    assert trial.context.get_experiment_config() == EXP_CONF
    assert trial.batch_size == 8
    assert trial.context.get_initial_batch() == 2


def test_hyperparameters_are_saved_without_an_experiment_configuration(tmp_path: Path) -> None:
    """Each on its own, so that a trial that asks for them can be made again."""
    checkpoint, _ = save(tmp_path, Asking, hparams=HPARAMS)
    trial = load_trial_from_checkpoint_path(checkpoint)
    assert isinstance(trial, Asking)
    assert trial.lr == 0.1
    with pytest.raises(ValueError, match="no experiment configuration"):
        trial.context.get_experiment_config()


def test_the_class_and_arguments_of_its_constructor_can_be_passed(tmp_path: Path) -> None:
    """They come after the context."""
    checkpoint, _ = save(tmp_path, hparams=HPARAMS)
    assert load_trial_from_checkpoint_path(checkpoint, Asking).width == 1
    assert load_trial_from_checkpoint_path(checkpoint, trial_class=Asking, trial_kwargs={"width": 3}).width == 3


def test_hyperparameters_can_be_passed(tmp_path: Path) -> None:
    """In place of those in the checkpoint, which Determined has not always saved."""
    checkpoint, _ = save(tmp_path)
    with pytest.raises(ValueError, match="no hyperparameters"):
        load_trial_from_checkpoint_path(checkpoint, Asking)
    assert load_trial_from_checkpoint_path(checkpoint, Asking, hparams={**HPARAMS, "lr": 0.3}).lr == 0.3


def test_the_context_cannot_train(tmp_path: Path) -> None:
    """Neither steps nor training are possible with it."""
    checkpoint, _ = save(tmp_path)
    trial = load_trial_from_checkpoint_path(checkpoint, TinyTrial)
    with pytest.raises(InternalException):
        trial.context.step_optimizer(trial.optimizer)
    with pytest.raises(InvalidExperimentException, match="loaded from a checkpoint"):
        Trainer(trial, trial.context).fit(max_length=Batch(4))


@pytest.mark.parametrize(
    "spec",
    ["no_such_module:Trial", f"{__name__}:NoSuchTrial", f"{__name__}:change", "os", "__main__:NoSuchTrial", None],
)
def test_a_class_that_cannot_be_imported_has_to_be_passed(spec: str | None, tmp_path: Path) -> None:
    """The error is a ValueError that says so."""
    checkpoint, _ = save(tmp_path)
    change(checkpoint, trial_cls_spec=spec)
    with pytest.raises(ValueError, match="trial_class=") as error:
        load_trial_from_checkpoint_path(checkpoint)
    assert isinstance(error.value, ConfigurationError)
    assert isinstance(load_trial_from_checkpoint_path(checkpoint, TinyTrial), TinyTrial)


def test_a_class_of_the_script_is_found_by_the_same_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook or a script can load what it has saved itself."""
    local = type("Local", (TinyTrial,), {"__module__": "__main__", "__qualname__": "Local"})
    monkeypatch.setattr(sys.modules["__main__"], "Local", local, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    checkpoint, _ = save(tmp_path, local)
    assert json.loads((checkpoint / "load_data.json").read_text())["trial_cls_spec"] == "__main__:Local"
    assert type(load_trial_from_checkpoint_path(checkpoint)) is local


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    """The error is also an AssertionError, as in Determined."""
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(NoCheckpointError) as error:
            load_trial_from_checkpoint_path(path)
        assert isinstance(error.value, AssertionError)
        assert isinstance(error.value, FileNotFoundError)


def test_arguments_of_torch_load(tmp_path: Path) -> None:
    """By ``torch_load_kwargs``; by name with a FutureWarning; in both ways not at all."""
    checkpoint, _ = save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_trial_from_checkpoint_path(checkpoint, TinyTrial, torch_load_kwargs={"map_location": "cpu"})
    with pytest.warns(FutureWarning, match="torch_load_kwargs={'map_location': 'cpu'}") as warned:
        load_trial_from_checkpoint_path(checkpoint, TinyTrial, map_location="cpu")
    assert warned[0].filename == __file__
    with pytest.raises(ValueError, match="in two ways"):
        load_trial_from_checkpoint_path(checkpoint, TinyTrial, torch_load_kwargs={}, map_location="cpu")


def test_the_rest_of_the_trial_is_left_alone(tmp_path: Path) -> None:
    """Models alone are loaded, and the global generators go on from where they were."""
    checkpoint, _ = save(tmp_path)
    states: list[torch.Tensor] = []

    class Keeps(TinyTrial):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            states.append(torch.get_rng_state())

    trial = load_trial_from_checkpoint_path(checkpoint, Keeps)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert trial.optimizer.state == {}
