"""The checkpoints of a folder: those that Determined wrote, damaged ones, and how many are kept."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typing_extensions import override

import pa_trial
from pa_trial import Batch, InvalidCheckpointException, Trainer, load_trial_from_checkpoint_path
from tests.support.models import weights_of
from tests.support.pa_trial.saved_checkpoints import changed_trial_state
from tests.support.trials import TinyTrial, fit, fit_and_fail, variant

WEIGHTS = {"weight": torch.tensor([[2.0, 3.0]]), "bias": torch.tensor([4.0])}
WEIGHTS_IN_A_ROW = [2.0, 3.0, 4.0]


class Witness:
    """Tells when it is unpickled."""

    unpickled = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        Witness.unpickled += 1

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {"some": "state"}


def determined(folder: Path, *, prefix: str = "", steps: int | None = 3, **entries: Any) -> Path:
    """Write a checkpoint as Determined 0.38 does, with numpy's arrays in the RNG states and a pickled trial state."""
    checkpoint = folder / "d9a1c2"
    checkpoint.mkdir(parents=True)
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.05)
    state = {
        "models_state_dict": [{prefix + name: value for name, value in WEIGHTS.items()}],
        "optimizers_state_dict": [optimizer.state_dict()],
        "lr_schedulers_state_dict": [],
        "callbacks": {},
        "rng_state": {
            "cpu_rng_state": torch.Generator().manual_seed(11).get_state(),
            "np_rng_state": np.random.RandomState(11).get_state(),
            "random_rng_state": random.Random(11).getstate(),
        },
        **entries,
    }
    torch.save(state, checkpoint / "state_dict.pth")
    trial_state: dict[str, Any] = {"trial_id": 0, "last_ckpt": 3, "step_id": 1, "last_val": 2, "batches_trained": 3}
    trial_state |= {"epochs_trained": 0, "witness": Witness()}
    (checkpoint / "trial_state.pkl").write_bytes(pickle.dumps(trial_state))
    description: dict[str, Any] = {
        "trial_type": "PyTorchTrial",
        "trial_cls_spec": "model_def:MyTrial",
        "is_trainer": True,
    }
    description |= {"experiment_config": None, "hparams": None}
    (checkpoint / "load_data.json").write_text(json.dumps(description))
    metadata = {"determined_version": "0.38.1", "framework": "torch-2.3", "format": "pickle"}
    (checkpoint / "metadata.json").write_text(
        json.dumps(metadata if steps is None else {**metadata, "steps_completed": steps})
    )
    (checkpoint / "code").mkdir()
    return checkpoint


def resume(checkpoint: Path, *, length: int = 5, **options: Any) -> TinyTrial:
    """Train from a checkpoint on."""
    return fit(TinyTrial, checkpoint.parents[1] / "own", max_length=Batch(length), **options)


@pytest.mark.parametrize("prefix", ["", "module.", "module.module."])
def test_its_weights_are_loaded(prefix: str, tmp_path: Path) -> None:
    """Those of models within DistributedDataParallel too, whose names have a prefix."""
    checkpoint = determined(tmp_path, prefix=prefix)
    trial = load_trial_from_checkpoint_path(checkpoint, TinyTrial)
    assert weights_of(trial.model).tolist() == WEIGHTS_IN_A_ROW
    assert Witness.unpickled == 0


def test_its_class_has_to_be_passed(tmp_path: Path) -> None:
    """The code in a checkpoint is not run; what it imports is Determined's."""
    with pytest.raises(ValueError, match="model_def"):
        load_trial_from_checkpoint_path(determined(tmp_path))


def test_training_continues_from_it(tmp_path: Path) -> None:
    """Batches from its metadata, weights, and random numbers; nothing is unpickled but what numpy's arrays are."""
    drawn: list[tuple[float, float, float]] = []

    def before_batch(_trial: TinyTrial, _batch_idx: int) -> None:
        drawn.append((random.random(), float(np.random.rand()), torch.rand(()).item()))

    trial = fit(
        variant(TinyTrial, before_batch=before_batch),
        tmp_path / "own",
        settings={"seed": None},
        max_length=Batch(5),
        latest_checkpoint=determined(tmp_path),
    )
    assert trial.trained == [(0, 3), (1, 4)]
    generator = torch.Generator().manual_seed(11)
    expected = random.Random(11).random(), np.random.RandomState(11).rand(), torch.rand((), generator=generator).item()
    assert drawn[0] == expected
    assert Witness.unpickled == 0


def test_a_warm_start_takes_its_weights(tmp_path: Path) -> None:
    """Also where it does not tell how far its training got."""
    checkpoint = determined(tmp_path, prefix="module.", steps=None)
    trial = resume(checkpoint, length=0, warm_start=checkpoint)
    assert weights_of(trial.model).tolist() == WEIGHTS_IN_A_ROW


def test_its_trial_state_is_unpickled_only_when_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the last validation, and the number of batches where the metadata lack it."""
    monkeypatch.setattr(Witness, "unpickled", 0)
    checkpoint = determined(tmp_path, steps=None)
    with pytest.raises(InvalidCheckpointException, match="how far its training got"):
        resume(checkpoint, latest_checkpoint=checkpoint)
    assert Witness.unpickled == 0
    trial = resume(checkpoint, latest_checkpoint=checkpoint, trust_pickle=True)
    assert Witness.unpickled == 1
    assert trial.trained == [(0, 3), (1, 4)]


@pytest.mark.parametrize("way", ["a trial", "latest_checkpoint", "warm_start"])
def test_objects_of_other_kinds_are_unpickled_only_when_they_are_trusted(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names their class, and what to pass; nothing has been run."""
    monkeypatch.setattr(Witness, "unpickled", 0)
    checkpoint = determined(tmp_path, callbacks={"mine": {"held": Witness()}})

    def load(**options: Any) -> None:
        if way == "a trial":
            load_trial_from_checkpoint_path(checkpoint, TinyTrial, **options)
        else:
            options[way] = checkpoint
            resume(checkpoint, **options)

    with pytest.raises(InvalidCheckpointException, match="trust_pickle=True") as error:
        load()
    assert "Witness" in error.value.given
    assert Witness.unpickled == 0
    load(trust_pickle=True)
    assert Witness.unpickled > 0


def test_arrays_of_earlier_releases_of_numpy_are_loaded(tmp_path: Path) -> None:
    """Their functions had other names then."""
    checkpoint = determined(tmp_path)
    path = checkpoint / "state_dict.pth"
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    changed = {name: content.replace(b"numpy._core", b"numpy.core") for name, content in records.items()}
    assert changed != records
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in changed.items():
            archive.writestr(name, content)
    path.write_bytes(buffer.getvalue())
    assert resume(checkpoint, latest_checkpoint=checkpoint).trained == [(0, 3), (1, 4)]


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """It has no digests; torch's own checksums tell."""
    checkpoint = determined(tmp_path)
    path = checkpoint / "state_dict.pth"
    content = bytearray(path.read_bytes())
    content[content.index(np.float32(2.0).tobytes() + np.float32(3.0).tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidCheckpointException, match="damaged"):
        load_trial_from_checkpoint_path(checkpoint, TinyTrial)


def test_one_of_the_time_before_the_trainer(tmp_path: Path) -> None:
    """Without ``is_trainer``, it has the same files; before that, it had no description of its trial."""
    checkpoint = determined(tmp_path)
    description = json.loads((checkpoint / "load_data.json").read_text())
    del description["is_trainer"]
    (checkpoint / "load_data.json").write_text(json.dumps({**description, "hparams": {"lr": 0.1}}))
    assert load_trial_from_checkpoint_path(checkpoint, TinyTrial).context.get_hparam("lr") == 0.1

    (checkpoint / "load_data.json").unlink()
    with pytest.raises(InvalidCheckpointException, match="did not store how to rebuild"):
        load_trial_from_checkpoint_path(checkpoint, TinyTrial)


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
        error = refuse(checkpoint)
        assert name in error.given or name == "manifest.json"  # which the others are compared with
        with pytest.raises(InvalidCheckpointException):
            load_trial_from_checkpoint_path(checkpoint, TinyTrial)
        shutil.rmtree(checkpoint)


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


def test_a_checkpoint_of_a_later_release_is_refused(intact: Path, tmp_path: Path) -> None:
    """Its files may mean something else."""
    shutil.copytree(intact, tmp_path / intact.name)
    checkpoint = changed_trial_state(tmp_path / intact.name, format_version=2)
    with pytest.raises(InvalidCheckpointException, match="release of pa-trial") as error:
        fit(TinyTrial, tmp_path, max_length=Batch(4), latest_checkpoint=checkpoint)
    assert "format_version 2" in error.value.given


class Scored(TinyTrial):
    """A tiny trial that is best after four batches."""

    @override
    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": abs(4 - self.context.get_initial_batch() - len(self.trained))}


def train(folder: Path, length: int, latest: str | None = None, *, keep: int | None = 2, **asked: Any) -> None:
    """Train with a checkpoint after each batch."""
    settings = {"max_checkpoints": keep, "metric": "error"}
    asked = {"max_length": Batch(length), "checkpoint_period": Batch(1), "latest_checkpoint": latest, **asked}
    fit(Scored, folder, settings=settings, **asked)


def saved_after(path: Path) -> int:
    """After how many batches a checkpoint was saved."""
    number: int = json.loads((path / "metadata.json").read_text())["steps_completed"]
    return number


def kept(folder: Path) -> dict[int, str]:
    """The names of the checkpoints in a folder, by the batch that they were saved after."""
    return {saved_after(path): path.name for path in folder.iterdir()}


def names(folder: Path) -> set[str]:
    """The names of all that is in a folder."""
    return {path.name for path in folder.iterdir()}


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    """As many as asked for; all of them by default."""
    train(tmp_path / "two", 5)
    assert sorted(kept(tmp_path / "two")) == [4, 5]
    train(tmp_path / "all", 5, keep=None)
    assert sorted(kept(tmp_path / "all")) == [1, 2, 3, 4, 5]


def test_the_best_checkpoint_is_kept_beside_them(tmp_path: Path) -> None:
    """That is the one that was saved after the best validation."""
    train(tmp_path, 8, validation_period=Batch(2), checkpoint_policy="best")
    assert sorted(kept(tmp_path)) == [4, 7, 8]


def test_a_resumed_training_deletes_what_it_continues(tmp_path: Path) -> None:
    """But for the checkpoint that it was given, which others may be given too; the next one deletes that as well."""
    train(tmp_path, 4)
    train(tmp_path, 7, kept(tmp_path)[4])
    assert sorted(kept(tmp_path)) == [4, 6, 7]
    train(tmp_path, 10, kept(tmp_path)[7])
    assert sorted(kept(tmp_path)) == [7, 9, 10]


def test_checkpoints_of_other_trainings_stay(tmp_path: Path) -> None:
    """Of one that was there before, of one that began at the same checkpoint, and of what cannot be read."""
    train(tmp_path, 3, keep=None)
    others = names(tmp_path)
    train(tmp_path, 4)
    assert len(names(tmp_path) - others) == 2

    shared = next(name for name in names(tmp_path) - others if saved_after(tmp_path / name) == 4)
    train(tmp_path, 6, shared, keep=1)
    of_first = names(tmp_path)
    train(tmp_path, 8, shared, keep=1)
    assert {*others, *of_first, shared} <= names(tmp_path)
    assert len(names(tmp_path) - others - of_first) == 1


def test_a_training_that_goes_on_from_an_earlier_checkpoint_leaves_the_later_ones(tmp_path: Path) -> None:
    """They belong to the training that went on to them."""
    train(tmp_path, 5, keep=None)
    before = kept(tmp_path)
    train(tmp_path, 4, before[3], keep=1)
    assert names(tmp_path) - {*before.values()}  # its own
    assert names(tmp_path) & {*before.values()} == {before[3], before[4], before[5]}


def test_the_checkpoint_that_a_second_call_of_fit_saves_is_not_of_the_first(tmp_path: Path) -> None:
    """Each call begins a training of its own, unless it is told to continue."""
    with pa_trial.init(checkpoint_dir=tmp_path, seed=0, max_checkpoints=1) as context:
        trainer = Trainer(TinyTrial(context), context)
        for _ in range(2):
            trainer.fit(max_length=Batch(3), checkpoint_period=Batch(1), checkpoint_policy="none")
    assert [saved_after(path) for path in tmp_path.iterdir()] == [3, 3]


def test_what_is_not_a_checkpoint_stays(tmp_path: Path) -> None:
    """Files, links, folders of something else, and checkpoints whose description is damaged."""
    train(tmp_path, 1)
    (name,) = kept(tmp_path).values()
    shutil.copytree(tmp_path / name, tmp_path / "damaged")
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "link").symlink_to(tmp_path / name, target_is_directory=True)
    train(tmp_path, 5, name, keep=1)
    assert {"damaged", "notes", "notes.txt", "link", name} <= names(tmp_path)
