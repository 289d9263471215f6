"""What a checkpoint consists of, how it is named, and what happens when it does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import pa_trial
from pa_checkpoint import CheckpointError
from pa_trial import (
    Batch,
    CheckpointNotFound,
    InvalidCheckpointException,
    LRScheduler,
    PyTorchCallback,
    PyTorchTrialContext,
    Trainer,
)
from tests.support.models import weights_of
from tests.support.pa_trial.saved_checkpoints import changed_trial_state
from tests.support.trials import ErrorT, TinyTrial, callback, fit, fit_and_fail, raising, returning, variant


def saved(trial_class: Any, folder: Path, length: int = 3, **asked: Any) -> Path:
    """Train, and return the folder of the checkpoint."""
    fit(trial_class, folder, max_length=Batch(length), **asked)
    (checkpoint,) = folder.iterdir()
    return checkpoint


class Scheduled(TinyTrial):
    """A tiny trial with a schedule."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.context.wrap_lr_scheduler(StepLR(self.optimizer, 2), LRScheduler.StepMode.STEP_EVERY_BATCH)


def scaled(*, enabled: bool) -> Callable[[PyTorchTrialContext], TinyTrial]:
    """A tiny trial with a gradient scaler."""

    def make(context: PyTorchTrialContext) -> TinyTrial:
        context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=4.0, enabled=enabled))
        return TinyTrial(context)

    return make


def refused(
    make: Any, checkpoint: Path, error: type[ErrorT], *, callbacks: dict[str, PyTorchCallback] | None = None
) -> ErrorT:
    """Resume from a checkpoint, which fails and changes no weight of the trial."""
    before: list[Tensor] = []

    def make_and_keep(context: PyTorchTrialContext) -> TinyTrial:
        trial: TinyTrial = make(context)
        before.extend(map(weights_of, context.models))
        return trial

    asked: dict[str, Any] = {"max_length": Batch(4), "latest_checkpoint": checkpoint.name, "callbacks": callbacks}
    trial, raised = fit_and_fail(make_and_keep, checkpoint.parent, error, **asked)
    assert all(map(torch.equal, before, map(weights_of, trial.context.models)))
    return raised


# The files


def test_the_files_of_a_checkpoint(tmp_path: Path) -> None:
    """They have the names that Determined gave them, and nothing needs to be unpickled to read them."""
    hparams = {"lr": 0.1, "layers": [1, 2]}
    checkpoint = saved(Scheduled, tmp_path, settings={"hparams": hparams})

    files = {"state_dict.pth", "trial_state.json", "load_data.json"}
    assert {path.name for path in checkpoint.iterdir()} == {*files, "metadata.json", "manifest.json"}
    state = torch.load(checkpoint / "state_dict.pth", weights_only=True)
    assert {"models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict", "callbacks"} <= state.keys()
    assert {"cpu_rng_state", "np_rng_state", "random_rng_state"} <= state["rng_state"].keys()
    assert "scaler_state_dict" not in state
    assert [set(weights) for weights in state["models_state_dict"]] == [{"weight", "bias"}]
    assert json.loads((checkpoint / "trial_state.json").read_text())["batches_trained"] == 3
    assert json.loads((checkpoint / "load_data.json").read_text()) == {
        "trial_type": "PyTorchTrial",
        "experiment_config": None,
        "hparams": hparams,
        "trial_cls_spec": f"{__name__}:Scheduled",
        "is_trainer": True,
    }
    metadata = json.loads((checkpoint / "metadata.json").read_text())
    assert (metadata["steps_completed"], metadata["format"]) == (3, "pickle")
    assert metadata["framework"] == f"torch-{torch.__version__}"
    assert json.loads((checkpoint / "manifest.json").read_text())["files"].keys() == {*files, "metadata.json"}


def test_hyperparameters_that_json_has_no_form_for_are_left_out(tmp_path: Path) -> None:
    """With one warning that names them, however many checkpoints are saved."""
    settings = {"hparams": {"lr": 0.1, "activation": nn.ReLU}}
    with pytest.warns(UserWarning, match=r"hparams\['activation'\] cannot be written as JSON") as warnings:
        fit(TinyTrial, tmp_path, settings=settings, max_length=Batch(3), checkpoint_period=Batch(1))
    assert len(warnings) == 1
    for checkpoint in tmp_path.iterdir():
        assert json.loads((checkpoint / "load_data.json").read_text())["hparams"] == {"lr": 0.1}


# The callbacks


def test_a_callback_without_a_saved_state_begins_anew_with_a_warning(tmp_path: Path) -> None:
    """One that has no state to load is not warned of."""
    checkpoint = saved(TinyTrial, tmp_path)

    added = {"later": callback(load_state_dict=raising(LookupError("nothing to load"))), "plain": PyTorchCallback()}
    with pytest.warns(UserWarning, match="no state of the callback 'later'") as warnings:
        fit(TinyTrial, tmp_path, added, max_length=Batch(4), latest_checkpoint=checkpoint.name)
    assert len(warnings) == 1


# Finding one


def test_a_checkpoint_is_named_by_its_uuid_or_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a string or a Path, absolute or relative to the working directory."""
    checkpoint = saved(TinyTrial, tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path)
    for name in (checkpoint.name, str(checkpoint), checkpoint, Path("checkpoints") / checkpoint.name):
        folder = tmp_path / ("checkpoints" if name == checkpoint.name else "elsewhere")
        assert fit(TinyTrial, folder, max_length=Batch(4), latest_checkpoint=name).trained == [(0, 3)]


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    """It is told where it was looked for; the folder of all checkpoints, a likely mistake, is told from damage."""
    saved(TinyTrial, tmp_path)
    for name, text in (("no-such-checkpoint", "no-such-checkpoint"), (tmp_path, "but is not a checkpoint")):
        _, error = fit_and_fail(
            TinyTrial, tmp_path, CheckpointNotFound, text, max_length=Batch(4), latest_checkpoint=name
        )
        assert isinstance(error, FileNotFoundError)
        assert str(tmp_path) in str(error)


# What does not fit


def changed(change: Callable[[PyTorchTrialContext], object], trial_class: type[TinyTrial] = TinyTrial) -> Any:
    """Make a trial, and change what it has wrapped."""

    def make(context: PyTorchTrialContext) -> TinyTrial:
        trial = trial_class(context)
        change(context)
        return trial

    return make


def add_adam(context: PyTorchTrialContext) -> None:
    """Wrap one more optimizer."""
    context.wrap_optimizer(torch.optim.Adam(context.models[0].parameters()))


def take_adam(context: PyTorchTrialContext) -> None:
    """Wrap another optimizer instead."""
    context.optimizers.clear()
    add_adam(context)


def widen(context: PyTorchTrialContext) -> None:
    """Wrap a model of another shape instead."""
    context.models.clear()
    context.wrap_model(nn.Linear(2, 3))
    take_adam(context)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (changed(widen), "models_state_dict, of Linear: weight: (1, 2) in the checkpoint, (3, 2) in the model"),
        (changed(lambda context: context.wrap_model(nn.Linear(1, 1))), "models_state_dict of 1 objects"),
        (changed(take_adam), "optimizers_state_dict, of Adam: "),
        (changed(add_adam), "optimizers_state_dict of 1 objects"),
        (Scheduled, "lr_schedulers_state_dict of 0 objects"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_changes(other: Any, named: str, tmp_path: Path) -> None:
    """The error is a RuntimeError, as torch's for wrong shapes, and names what is different."""
    checkpoint = saved(TinyTrial, tmp_path)
    error = refused(other, checkpoint, InvalidCheckpointException)
    assert isinstance(error, RuntimeError)
    assert named in error.given


def test_a_callback_saves_objects_of_any_kind_if_pickle_is_trusted(tmp_path: Path) -> None:
    """Both when they are saved and when they are loaded."""
    state = {"path": Path("somewhere")}
    loaded: list[object] = []
    holds = {"holds": callback(state_dict=lambda: state, load_state_dict=loaded.append)}
    with pytest.raises(CheckpointError, match="not safely loaded again") as error:
        fit(TinyTrial, tmp_path / "refused", holds, max_length=Batch(2))
    assert "['callbacks']['holds']['path']" in error.value.given
    assert list((tmp_path / "refused").iterdir()) == []
    name = saved(TinyTrial, tmp_path / "saved", callbacks=holds, trust_pickle=True)
    with pytest.raises(InvalidCheckpointException, match="trust_pickle=True"):
        fit(TinyTrial, tmp_path, holds, max_length=Batch(4), latest_checkpoint=name)
    fit(TinyTrial, tmp_path, holds, max_length=Batch(4), latest_checkpoint=name, trust_pickle=True)
    assert loaded == [state]


def test_a_callback_that_refuses_its_state_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """It is the last to be asked; models and optimizers are brought back."""
    refuses = callback(state_dict=lambda: {"number": 3}, load_state_dict=raising(LookupError("not mine")))
    checkpoint = saved(TinyTrial, tmp_path, callbacks={"refuses": refuses})
    refused(TinyTrial, checkpoint, LookupError, callbacks={"refuses": refuses})


@pytest.mark.parametrize(
    ("before", "after", "warning"),
    [
        (TinyTrial, scaled(enabled=False), "no state of a gradient scaler"),
        (scaled(enabled=False), scaled(enabled=True), "no state of a gradient scaler"),
        (scaled(enabled=True), TinyTrial, "has no scaler to load it into"),
    ],
)
def test_a_scaler_on_one_side_only_is_warned_of(before: Any, after: Any, warning: str, tmp_path: Path) -> None:
    """Training goes on, also where it began on a CPU, where scalers are disabled, and they are not now."""
    checkpoint = saved(before, tmp_path)
    with pytest.warns(UserWarning, match=warning):
        trial = fit(after, tmp_path, max_length=Batch(4), latest_checkpoint=checkpoint.name)
    assert trial.trained == [(0, 3)]


def test_a_checkpoint_without_rng_states_is_warned_of(tmp_path: Path) -> None:
    """A callback may take them out, or Determined may not have saved them; training goes on."""
    checkpoint = saved(TinyTrial, tmp_path)
    forgets = {"forgets": callback(on_checkpoint_load_start=methodcaller("pop", "rng_state"))}
    with pytest.warns(UserWarning, match="no RNG state"):
        trial = fit(TinyTrial, tmp_path, forgets, max_length=Batch(4), latest_checkpoint=checkpoint.name)
    assert trial.trained == [(0, 3)]


def test_epochs_of_another_length_are_warned_of(tmp_path: Path) -> None:
    """The same number of batches is another place in other data."""
    checkpoint = saved(TinyTrial, tmp_path)
    with pytest.warns(UserWarning, match="An epoch has 6 batches, and had 4"):
        fit(variant(TinyTrial, num_samples=24), tmp_path, max_length=Batch(4), latest_checkpoint=checkpoint.name)


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    """Each has random states of its own; a warm start takes the weights alone."""
    checkpoint = saved(TinyTrial, tmp_path)
    checkpoint = changed_trial_state(checkpoint, num_processes=2)

    with pytest.raises(InvalidCheckpointException, match="a different number of processes") as error:
        fit(TinyTrial, tmp_path, max_length=Batch(4), latest_checkpoint=checkpoint.name)
    assert error.value.do.startswith("Start 2 processes, or start over with its weights: fit(warm_start=")
    trial = fit(TinyTrial, tmp_path, max_length=Batch(4), warm_start=checkpoint.name)
    assert len(trial.trained) == 4


# Warm start, and the newest one


def test_a_warm_start_takes_the_weights_alone(tmp_path: Path) -> None:
    """Counters, optimizers and schedules begin; nothing else needs to be the same."""
    checkpoint = saved(Scheduled, tmp_path)
    weights = torch.load(checkpoint / "state_dict.pth", weights_only=True)["models_state_dict"][0]

    still = variant(TinyTrial, train_batch=returning({"loss": 0.0}))
    trial = fit(changed(take_adam, still), tmp_path, max_length=Batch(1), warm_start=checkpoint)
    assert trial.context.current_train_batch() == 0
    assert all(torch.equal(weights[name], value) for name, value in trial.model.state_dict().items())
    assert trial.context.optimizers[0].state == {}


def test_the_newest_checkpoint_is_the_newest_intact_one(tmp_path: Path) -> None:
    """A damaged one is skipped with a warning; other folders and files do not count."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".staging.0123456789ab.cd").mkdir()
    names = [Path(folder).name for folder in fit(TinyTrial, tmp_path, max_length=Batch(2)).heard.folders]
    names += [Path(folder).name for folder in fit(TinyTrial, tmp_path, max_length=Batch(2)).heard.folders]
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        assert context.get_latest_checkpoint() == names[-1]
        (tmp_path / names[-1] / "state_dict.pth").write_bytes(b"")
        with pytest.warns(UserWarning, match=f"{names[-1]} is skipped"):
            assert context.get_latest_checkpoint() == names[-2]
        (tmp_path / names[-1] / "manifest.json").write_bytes(b"")
        with pytest.warns(UserWarning, match=f"{names[-1]} is skipped"):
            assert context.get_latest_checkpoint() == names[-2]


def test_a_script_that_always_resumes_from_the_newest_checkpoint(tmp_path: Path) -> None:
    """The first time there is none, and training begins."""
    for length, trained in ((2, [(0, 0), (0, 1)]), (3, [(0, 2)])):
        with pa_trial.init(checkpoint_dir=tmp_path / "run", seed=0) as context:
            trial = TinyTrial(context)
            latest = context.get_latest_checkpoint()
            Trainer(trial, context).fit(max_length=Batch(length), latest_checkpoint=latest, checkpoint_policy="none")
            assert trial.trained == trained


def test_leftovers_of_a_process_that_is_gone_are_removed(tmp_path: Path) -> None:
    """What a killed process was writing is deleted with the next checkpoint."""
    abandoned = tmp_path / ".staging.0123456789ab.cd"
    abandoned.mkdir()
    (abandoned / "state_dict.pth").write_bytes(b"half of it")
    fit(TinyTrial, tmp_path, max_length=Batch(1))
    assert not abandoned.exists()
