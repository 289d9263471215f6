"""When states are saved, where, and how many of them are kept."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pa_core import AnyTrainer, CheckpointError, SaveTrainingStateCallback, distributed
from pa_core.storage import StateFolder
from tests.support.callbacks import CallAt
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted, make_trainer, train


def updates_in(folder: Path) -> list[int]:
    """The updates after which the states in a folder were saved, in the order of saving."""
    return [record.update for record in StateFolder(folder).records()]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_states_are_saved_at_the_intervals_and_at_the_end(shared_tmp_path: Path) -> None:
    """After every so many updates, after every so many epochs, and once when the run is complete."""
    per_epoch = 7 if distributed.num_processes() == 1 else 4
    folders = {name: shared_tmp_path / name for name in ("steps", "epochs", "end", "never")}
    train(make_trainer(SaveTrainingStateCallback(folders["steps"], save_every_n_steps=3, save_at_end=False)))
    train(make_trainer(SaveTrainingStateCallback(folders["epochs"], save_every_n_epochs=2, save_at_end=False)))
    train(make_trainer(SaveTrainingStateCallback(folders["end"])))
    train(make_trainer(SaveTrainingStateCallback(folders["never"], save_at_end=False)))
    assert updates_in(folders["steps"]) == list(range(3, 3 * per_epoch + 1, 3))
    assert updates_in(folders["epochs"]) == [2 * per_epoch]
    assert updates_in(folders["end"]) == [3 * per_epoch]
    assert updates_in(folders["never"]) == []
    assert [record.complete for record in StateFolder(folders["end"]).records()] == [True]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_states_are_saved_when_time_has_passed_on_the_clock_of_the_first_process(shared_tmp_path: Path) -> None:
    """All processes save after the same update, whatever their own clocks say."""

    def wait_on_first(_: AnyTrainer) -> None:
        if distributed.rank() == 0:
            time.sleep(1.6)

    states = SaveTrainingStateCallback(shared_tmp_path, save_every_n_seconds=1.5, save_at_end=False)
    train(make_trainer(CallAt("on_optimizer_step_end", wait_on_first, 3), states), num_epochs=1)
    # Of several processes, the others hear of it with the next update.
    assert updates_in(shared_tmp_path) == [3 if distributed.num_processes() == 1 else 4]


REQUEST_AT_THIRD = CallAt("on_optimizer_step_end", AnyTrainer.request_training_state, 3)


class SavesElsewhere(SaveTrainingStateCallback):
    """A second callback that saves."""


def test_what_is_requested_is_saved_whichever_the_periods(tmp_path: Path) -> None:
    """By each callback that saves states; one with a period of seconds is the one that its own requests are for."""
    train(make_trainer(REQUEST_AT_THIRD, SaveTrainingStateCallback(tmp_path / "a", save_at_end=False)), num_epochs=1)
    assert updates_in(tmp_path / "a") == [3]

    by_time = SaveTrainingStateCallback(tmp_path / "b", save_every_n_seconds=3600, save_at_end=False)
    train(make_trainer(REQUEST_AT_THIRD, by_time, SavesElsewhere(tmp_path / "c")), num_epochs=1)
    assert updates_in(tmp_path / "b") == [3]
    assert updates_in(tmp_path / "c") == [7]

    train(make_trainer(REQUEST_AT_THIRD, SaveTrainingStateCallback(tmp_path / "d", save_every_n_steps=3)), num_epochs=1)
    assert updates_in(tmp_path / "d") == [3, 6, 7]


def test_a_request_that_nobody_serves_is_warned_of() -> None:
    """Without a callback that saves it, no state is saved."""
    with pytest.warns(UserWarning, match=r"request_training_state\(\).*SaveTrainingStateCallback"):
        train(make_trainer(REQUEST_AT_THIRD), num_epochs=1)


def test_only_the_newest_states_of_a_run_are_kept(tmp_path: Path) -> None:
    """Those of other runs in the folder stay, and a resumed run counts its own from before the interruption."""
    train(make_trainer(SaveTrainingStateCallback(tmp_path)), num_epochs=1)
    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1, max_checkpoints=2)
    with pytest.raises(Interrupted):
        train(make_trainer(states, InterruptAt("on_train_step_end", 4)))
    assert updates_in(tmp_path) == [7, 3, 4]
    train(
        make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=5, max_checkpoints=2)), resume_from=tmp_path
    )
    assert updates_in(tmp_path) == [7, 20, 21]


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_cannot_be_removed_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """The run comes to its end, and what can be removed is: docs/maintainers/failures.md shows the warning."""
    rename, states = Path.rename, tmp_path / "states"

    def fail(path: Path, target: Path) -> Path:
        if path.name == "step_1" and target.name.startswith(".removed"):
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    saving = SaveTrainingStateCallback(states, save_every_n_steps=1, max_checkpoints=2, asynchronous=asynchronous)
    trainer = make_trainer(saving)
    with pytest.warns(
        UserWarning, match=r"could not be removed.*Permission denied.*step_1.*the run continues"
    ) as warned:
        train(trainer, num_epochs=1)
    assert len({str(one.message) for one in warned}) == 1  # of which Python shows the first
    assert updates_in(states) == [1, 7, 7]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_state_that_cannot_be_written_ends_the_run_with_the_reason(tmp_path: Path, asynchronous: bool) -> None:
    """At once or, written in the background, with the next state or the end of the run; earlier states stay."""

    def take_folder_away(_: AnyTrainer) -> None:
        while updates_in(tmp_path / "states") != [2, 4]:
            time.sleep(0.01)
        (tmp_path / "states").rename(tmp_path / "kept")
        (tmp_path / "states").write_text("no folder")

    states = SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=2, asynchronous=asynchronous)
    with pytest.raises((CheckpointError, OSError), match="states"):
        train(make_trainer(states, CallAt("on_optimizer_step_end", take_folder_away, 5)))
    assert updates_in(tmp_path / "kept") == [2, 4]


def test_a_run_that_fails_says_what_became_of_its_last_state(tmp_path: Path) -> None:
    """What failed first is raised; what could not be written in the background is a note to it."""

    def save(trainer: AnyTrainer) -> None:
        trainer.save_training_state(tmp_path / "states" / "last", asynchronous=True, on_saved=take_away)

    def take_away(path: Path) -> None:
        raise CheckpointError("Removed.", given=str(path), expected="a state", do="Nothing.")

    with pytest.raises(Interrupted) as raised:
        train(make_trainer(CallAt("on_optimizer_step_end", save, 2), InterruptAt("on_train_step_end", 4)))
    assert [note.splitlines()[0] for note in raised.value.__notes__] == [
        "Besides, the last training state could not be written: Removed."
    ]


def test_a_state_that_somebody_takes_away_at_once_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on would believe that it can be resumed from there."""
    states, kept, fsync = tmp_path / "states", tmp_path / "kept", os.fsync

    def take_what_is_complete(descriptor: int) -> None:
        fsync(descriptor)
        if (states / "step_2").exists():
            kept.mkdir()
            (states / "step_2").rename(kept / "step_2")

    monkeypatch.setattr(os, "fsync", take_what_is_complete)
    with pytest.raises(CheckpointError, match=r"not there any more[\s\S]*states"):
        train(make_trainer(SaveTrainingStateCallback(states, save_every_n_steps=2)))
    assert updates_in(kept) == [2]


def test_a_folder_that_cannot_be_written_to_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    """Not after an hour."""
    (tmp_path / "file").write_text("")
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        train(trainer)
    assert trainer.num_updates_completed == 0
