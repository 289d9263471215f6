"""Which run may save its states into a folder, under which name, and what becomes of what is there."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pa_checkpoint import FolderLock
from pa_checkpoint import _folder as folder_lock
from pa_core import (
    CheckpointError,
    ConfigurationError,
    FolderInUseError,
    Run,
    SaveTrainingStateCallback,
    StopTrainingError,
    distributed,
    gather_objects,
)
from pa_core.storage import StateFolder, newest_valid
from tests.launching import Launch
from tests.support.callbacks import CallAt
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    make_trainer,
    train,
)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "SECONDS_TO_DIE", 0.2)


def at(update: int, function: Callable[[], object]) -> CallAt:
    """Calls a function after an update."""
    return CallAt("on_optimizer_step_end", lambda _: function(), update)


def states_of(folder: Path) -> list[tuple[str, int]]:
    """The names of the states, and which runs they are of: 0 for the run of the oldest one, and so on."""
    records = StateFolder(folder).records()
    runs = list(dict.fromkeys(record.run for record in records))
    return [(record.path.name, runs.index(record.run)) for record in records]


def hidden(folder: Path) -> list[str]:
    """What is in a folder besides states."""
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


def train_until(update: int, saving: SaveTrainingStateCallback, **options: Any) -> None:
    """Run until an update after which the process fails."""
    with pytest.raises(Interrupted):
        train(make_trainer(saving, InterruptAt("on_train_step_end", update)), **options)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_folder_that_another_run_uses_is_refused_before_the_first_step(shared_tmp_path: Path) -> None:
    """On all processes, and without a trace; when the other run is over, the folder is free."""
    states = shared_tmp_path / "states"
    states.mkdir(exist_ok=True)
    gather_objects(None)
    other = FolderLock(states) if distributed.rank() == 0 else None
    gather_objects(None)
    trainer = make_trainer(SaveTrainingStateCallback(states))
    with pytest.raises(FolderInUseError, match="Another run is using this folder"):
        train(trainer, num_epochs=1)
    assert trainer.num_updates_completed == 0
    gather_objects(None)
    if other is not None:
        assert sorted(hidden(states)) == [".in_use", ".in_use_by"]
        other.release()
    gather_objects(None)
    train(make_trainer(SaveTrainingStateCallback(states)), num_epochs=1)
    gather_objects(None)
    assert [entry.name for entry in states.iterdir()] == ["final"]


def test_a_folder_is_free_however_the_run_ends(tmp_path: Path) -> None:
    """After a regular end, a request to stop, an error, Ctrl-C, in a loop of one's own too."""
    for error in (None, StopTrainingError(), OSError("a disk"), KeyboardInterrupt(), SystemExit(3)):

        def end(error: BaseException | None = error) -> None:
            assert sorted(hidden(tmp_path)) == [".in_use", ".in_use_by"]
            if error is not None:
                raise error

        with contextlib.suppress(OSError, KeyboardInterrupt, SystemExit):
            train(make_trainer(SaveTrainingStateCallback(tmp_path, asynchronous=True), at(2, end)), num_epochs=1)
        assert hidden(tmp_path) == []

    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for fails in (False, True):
        run = Run(model, optimizer, DrawingDataset(8), num_epochs=1, callbacks=[SaveTrainingStateCallback(tmp_path)])
        try:
            with run:
                for batch in run.batches():
                    assert sorted(hidden(tmp_path)) == [".in_use", ".in_use_by"]
                    if fails:
                        raise Interrupted
                    run.backward(model(batch[0][:, 1:]).sum())
                    run.step()
        except Interrupted:
            assert fails
        assert hidden(tmp_path) == []


def test_a_run_within_a_run_cannot_share_its_folder_but_callbacks_of_a_run_can(tmp_path: Path) -> None:
    """Two callbacks of one run know of each other's states; two runs do not."""

    def train_another() -> None:
        train(make_trainer(SaveTrainingStateCallback(tmp_path)), num_epochs=1)

    class SavesToo(SaveTrainingStateCallback):
        """A second callback that saves."""

    two = SaveTrainingStateCallback(tmp_path, save_every_n_steps=3, save_at_end=False), SavesToo(tmp_path)
    with pytest.raises(FolderInUseError, match=f"process {os.getpid()} "):
        train(make_trainer(*two, at(4, train_another)))
    assert states_of(tmp_path) == [("step_3", 0)]


def test_only_a_run_can_have_a_folder_for_itself(tmp_path: Path) -> None:
    """Outside of one, nobody would ever release it."""
    with pytest.raises(ConfigurationError, match="outside of a run"):
        make_trainer().reserve_state_folder(tmp_path)


def test_a_second_run_from_the_same_state_is_another_run(tmp_path: Path) -> None:
    """The states of neither are removed or replaced by the other, though both have the same seed and the same past."""
    train_until(6, SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    keeping_one = SaveTrainingStateCallback(tmp_path, save_every_n_steps=4, max_checkpoints=1)
    train(make_trainer(keeping_one), num_epochs=2, resume_from=tmp_path / "step_2")
    assert states_of(tmp_path) == [("step_2", 0), ("step_4", 0), ("step_6", 0), ("final", 1)]
    train(make_trainer(keeping_one), num_epochs=2, resume_from=tmp_path / "step_6")
    assert states_of(tmp_path) == [("final", 0), ("final_2", 1)]


def test_a_run_keeps_its_name_only_in_its_own_folders(tmp_path: Path) -> None:
    """In another folder it is another run, but one with two folders has one name in both of them."""
    saving = {name: SaveTrainingStateCallback(tmp_path / name, save_every_n_steps=2) for name in ("a", "b")}

    class SavesToo(SaveTrainingStateCallback):
        """A second callback that saves."""

    both = saving["a"], SavesToo(tmp_path / "b", save_every_n_steps=5)
    with pytest.raises(Interrupted):
        train(make_trainer(*both, InterruptAt("on_train_step_end", 6)))
    with pytest.raises(Interrupted):
        train(make_trainer(*both, InterruptAt("on_train_step_end", 8)), resume_from=tmp_path / "a")
    runs = {record.run for name in ("a", "b") for record in StateFolder(tmp_path / name).records()}
    assert len(runs) == 1

    train_until(10, saving["b"], resume_from=tmp_path / "a")
    assert states_of(tmp_path / "b") == [("step_5", 0), ("step_10", 1)]


def test_a_damaged_newer_state_does_not_make_another_run(tmp_path: Path) -> None:
    """What cannot be read was not branched off from; but as long as it is there, nothing older is removed for it."""
    train_until(6, SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    weights = next((tmp_path / "step_6").glob("models*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    saving = SaveTrainingStateCallback(tmp_path, save_at_end=False, max_checkpoints=1)
    with pytest.warns(UserWarning, match="step_6 is skipped"):
        train_until(5, saving, resume_from=tmp_path)
    assert [name for name, _ in states_of(tmp_path)] == ["step_2", "step_4", "step_6"]

    with pytest.warns(UserWarning, match="step_6 is skipped"):
        train(make_trainer(SaveTrainingStateCallback(tmp_path)), resume_from=tmp_path)
    assert states_of(tmp_path) == [("step_2", 0), ("step_4", 0), ("step_6", 0), ("final", 0)]


def test_a_state_in_a_folder_that_cannot_be_listed_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether it is the newest one there, so the run is another one."""
    train_until(3, SaveTrainingStateCallback(tmp_path / "old", save_every_n_steps=2))
    list_entries = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == "old":
            raise PermissionError(13, "Permission denied", str(path))
        return iter(list_entries(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        train(
            make_trainer(SaveTrainingStateCallback(tmp_path / "new")),
            num_epochs=1,
            resume_from=tmp_path / "old" / "step_2",
        )
    (old,), (new,) = (StateFolder(tmp_path / name).records() for name in ("old", "new"))
    assert old.run != new.run


def test_what_a_kill_at_the_very_end_has_left_goes_when_the_script_is_started_again(tmp_path: Path) -> None:
    """The run is complete, and saves nothing any more after which it would tidy up."""
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=3)
    train(make_trainer(saving), num_epochs=1)
    shutil.copytree(tmp_path / "step_3", tmp_path / f".removed.{'0' * 12}.0123abcd")
    shutil.copytree(tmp_path / "step_3", tmp_path / f".staging.{'0' * 12}.0123abcd")
    shutil.copytree(tmp_path / "step_3", tmp_path / ".final.set_aside")
    (tmp_path / ".in_use").write_text("{")

    again = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=3, max_checkpoints=2))
    train(again, num_epochs=1, resume_from=tmp_path)
    assert again.was_complete
    assert states_of(tmp_path) == [("step_6", 0), ("final", 0)]
    assert hidden(tmp_path) == []


def test_a_script_may_change_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are those from where the run was started, of states and of the best model."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    saving = SaveTrainingStateCallback("states", save_every_n_steps=2, asynchronous=True, max_checkpoints=2)
    trainer = make_trainer(saving, best=Path("best.pt"))

    def change() -> None:
        trainer.save_training_state("one")
        monkeypatch.chdir(tmp_path / "second")

    trainer.callback_handler.add_callbacks([at(3, change)])
    train(trainer, num_epochs=2)
    found = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert found == ["best.pt", "one", "states"]
    assert list((tmp_path / "second").iterdir()) == []
    assert [name for name, _ in states_of(tmp_path / "first" / "states")] == ["step_14", "final"]

    monkeypatch.chdir(tmp_path / "second")
    train(trainer, num_epochs=1)
    assert {path.name for path in (tmp_path / "second").iterdir()} == {"best.pt", "one", "states"}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("update", [2, 13])
def test_a_folder_that_is_replaced_in_mid_run_is_an_error(tmp_path: Path, asynchronous: bool, update: int) -> None:
    """With the next state, or when the run ends: the states that it has saved are not where it would resume from."""
    states = tmp_path / "states"

    def replace() -> None:
        while update > 7 and not (states / "epoch_1").exists():
            time.sleep(0.01)
        states.rename(tmp_path / "kept")
        states.mkdir()

    saving = SaveTrainingStateCallback(states, save_every_n_epochs=1, save_at_end=False, asynchronous=asynchronous)
    # a thread that writes may look between the two calls of replace()
    seen = "(another folder|where no folder is)" if asynchronous else "another folder"
    with pytest.raises(CheckpointError, match=rf"moved, replaced or removed while[\s\S]*states, {seen}"):
        train(make_trainer(saving, at(update, replace)), num_epochs=2 if update > 7 else 1)
    assert list(states.iterdir()) == []


def test_a_folder_that_is_replaced_after_the_last_state_is_an_error_when_the_run_ends(tmp_path: Path) -> None:
    """Even where nothing more is to be saved."""
    states = tmp_path / "states"
    saving = SaveTrainingStateCallback(states, save_every_n_steps=2, save_at_end=False, asynchronous=True)
    with pytest.raises(CheckpointError, match="moved, replaced or removed while"):
        train(make_trainer(saving, at(7, lambda: states.rename(tmp_path / "kept"))), num_epochs=1)
    assert newest_valid(tmp_path / "kept")[0] is not None


_SCRIPT = Path(__file__).with_name("runs_in_one_folder.py")


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_no_run_takes_or_loses_a_state_in_a_folder_that_others_want_too(launch: Launch) -> None:
    """In 4 folders two to four runs start at random moments, some are killed, and one more comes to the right end.

    `nox -s shared_folders` does so in 200.
    """
    launched = launch(_SCRIPT, "4", "7")

    assert launched.status == 0
    assert "4 tries" in launched.output
