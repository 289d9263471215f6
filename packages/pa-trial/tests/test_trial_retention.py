"""How many checkpoints are kept, and whose are deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from typing_extensions import override

import pa_trial
from pa_trial import Batch, Trainer
from tests.support.trials import TinyTrial, fit


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


def test_the_checkpoint_that_a_second_call_of_fit_saves_is_not_of_the_first(tmp_path: Path) -> None:
    """Each call begins a training of its own, unless it is told to continue."""
    with pa_trial.init(checkpoint_dir=tmp_path, seed=0, max_checkpoints=1) as context:
        trainer = Trainer(TinyTrial(context), context)
        for _ in range(2):
            trainer.fit(max_length=Batch(3), checkpoint_period=Batch(1), checkpoint_policy="none")
    assert [saved_after(path) for path in tmp_path.iterdir()] == [3, 3]
