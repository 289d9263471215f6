"""When states are saved, where, under which names, how many are kept, and which run may save into a folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

from pa_checkpoint import ANY_PROCESSES, Folder, FolderLock, compare, load
from pa_checkpoint import _folder as folder_lock
from pa_core import (
    AnyTrainer,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    FolderInUseError,
    PrintProgressCallback,
    Run,
    SaveTrainingStateCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
    distributed,
    gather_objects,
)
from tests import small_runs
from tests.launching import Launch
from tests.support.callbacks import AlsoAt, CallAt
from tests.support.disks import full_disk
from tests.support.pa_core.training_states import runs_in_one_folder
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    SavesToo,
    interrupting,
    make_trainer,
    train,
    updates_in,
)


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
    assert [record.complete for record in Folder(folders["end"]).records()] == [True]


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


def test_what_is_requested_is_saved_whichever_the_periods(tmp_path: Path) -> None:
    """By each callback that saves states; one with a period of seconds is the one that its own requests are for."""
    train(make_trainer(REQUEST_AT_THIRD, SaveTrainingStateCallback(tmp_path / "a", save_at_end=False)), num_epochs=1)
    assert updates_in(tmp_path / "a") == [3]

    by_time = SaveTrainingStateCallback(tmp_path / "b", save_every_n_seconds=3600, save_at_end=False)
    train(make_trainer(REQUEST_AT_THIRD, by_time, SavesToo(tmp_path / "c")), num_epochs=1)
    assert updates_in(tmp_path / "b") == [3]
    assert updates_in(tmp_path / "c") == [7]

    train(make_trainer(REQUEST_AT_THIRD, SaveTrainingStateCallback(tmp_path / "d", save_every_n_steps=3)), num_epochs=1)
    assert updates_in(tmp_path / "d") == [3, 6, 7]


def test_a_request_that_nobody_serves_is_warned_of() -> None:
    """Without a callback that saves it, no state is saved."""
    with pytest.warns(UserWarning, match=r"request_training_state\(\).*SaveTrainingStateCallback"):
        train(make_trainer(REQUEST_AT_THIRD), num_epochs=1)


def test_a_request_outside_of_a_training_run_is_warned_of(tmp_path: Path) -> None:
    """There is no update after which the state could be saved; `save_training_state` saves at once."""
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path))
    with pytest.warns(UserWarning, match=r"request_training_state\(\).*outside of a training run.*save_training_state"):
        trainer.request_training_state()


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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_may_go_on_without_a_state_for_which_the_disk_has_no_room(tmp_path: Path, asynchronous: bool) -> None:
    """A warning says how much was needed and how much is free; the next state is tried again."""
    disk = contextlib.ExitStack()

    def fill(_trainer: AnyTrainer) -> None:
        while updates_in(tmp_path) != [2]:
            time.sleep(0.01)
        disk.enter_context(full_disk(100))

    def free(_trainer: AnyTrainer) -> None:
        for thread in threading.enumerate():
            if "background writer" in thread.name:
                thread.join()
        disk.close()

    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2, asynchronous=asynchronous, on_save_error="warn")
    callbacks = [states, CallAt("on_optimizer_step_end", fill, 3), AlsoAt("on_optimizer_step_end", free, 5)]
    match = (
        r"could not be written.*tensors take [\d,]+ bytes, on a disk with [\d,]+ free bytes.*tries again with the next"
    )
    with disk, pytest.warns(UserWarning, match=match):
        train(make_trainer(*callbacks))
    assert updates_in(tmp_path)[:2] == [2, 6]


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
    with pytest.raises(CheckpointError, match=r"is missing[\s\S]*states"):
        train(make_trainer(SaveTrainingStateCallback(states, save_every_n_steps=2)))
    assert updates_in(kept) == [2]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("states", {"stop_on_signals": ("SIGTREM",)}, "SIGTREM"),
    ("states", {"save_every_n_seconds": 0}, "save_every_n_seconds must be .* got 0"),
    ("states", {"save_every_n_seconds": "60"}, "save_every_n_seconds must be .* got '60'"),
    ("states", {"save_every_n_steps": 0}, "save_every_n_steps"),
    ("s3://bucket/states", {}, "upload_to=.s3://bucket/states."),
    ("states", {"upload_to": "bucket/states"}, "s3://"),
    ("states", {"upload_to": "s3://bucket", "upload_errors": "ignore"}, ".raise."),
]


@pytest.mark.parametrize(("folder", "options", "message"), REFUSED)
def test_arguments_that_cannot_work_are_refused(folder: str, options: dict[str, Any], message: str) -> None:
    """When the callback is made, with what was given."""
    with pytest.raises(ConfigurationError, match=message):
        SaveTrainingStateCallback(folder, **options)


def test_a_folder_that_cannot_be_written_to_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    """Not after an hour."""
    (tmp_path / "file").write_text("")
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        train(trainer)
    assert trainer.num_updates_completed == 0


def names_in(folder: Path) -> list[str]:
    """The names of the states in a folder, in the order of saving."""
    return [record.path.name for record in Folder(folder).records()]


def test_states_are_named_by_epoch_and_by_update(tmp_path: Path) -> None:
    """As documented: epoch_1, step_5 and final; an interruption is a step too."""
    states = SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1, save_every_n_steps=5)
    train(make_trainer(states), num_epochs=2)
    assert names_in(tmp_path) == ["step_5", "epoch_1", "step_10", "epoch_2", "final"]
    preempt = CallAt("on_optimizer_step_end", AnyTrainer.request_preemption, 3)
    with pytest.raises(SystemExit):
        train(make_trainer(preempt, SaveTrainingStateCallback(tmp_path / "preempted")))
    assert names_in(tmp_path / "preempted") == ["step_3"]


def test_a_run_that_saves_again_replaces_its_own_state_and_no_other(tmp_path: Path) -> None:
    """The folder may be that of several runs; the newest state is the one that was written last."""
    train(make_trainer(SaveTrainingStateCallback(tmp_path)), num_epochs=1)
    second = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1, max_checkpoints=2), seed=2)
    train(second, num_epochs=2)
    assert names_in(tmp_path) == ["final", "epoch_2", "final_2"]
    longer = make_trainer(SaveTrainingStateCallback(tmp_path, max_checkpoints=2), seed=2)
    train(longer, num_epochs=3, resume_from=tmp_path)
    assert names_in(tmp_path) == ["final", "epoch_2", "final_2"]
    assert [record.update for record in Folder(tmp_path).records()] == [7, 14, 21]


def test_a_state_that_is_missing_is_told_with_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the error, and in the line of a run that begins anew."""
    train(make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=3)))
    with pytest.raises(FileNotFoundError, match=r"has 3 older states, step_12, step_15, step_18, step_21, final\)"):
        train(make_trainer(), resume_from=tmp_path / "epoch_5")
    capsys.readouterr()
    train(make_trainer(), num_epochs=1, resume_from=tmp_path / "epoch_5", resume_missing="start")
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"There is no training state in {tmp_path / 'epoch_5'} ({tmp_path} has 3 older states, ")
    assert line.endswith("): a new run begins.")


def test_states_of_others_next_to_a_missing_folder_are_not_told_as_its_own(tmp_path: Path) -> None:
    """What lies about under names that no run gives, as in a folder of temporary files, is nothing to resume from."""
    trainer = make_trainer()
    train(trainer, num_epochs=1)
    for name in ("tmp1", "tmp2"):
        trainer.save_training_state(tmp_path / name)
    with pytest.raises(CheckpointNotFoundError) as caught:
        train(make_trainer(), resume_from=tmp_path / "states")
    assert caught.value.given == f"resume_from={str(tmp_path / 'states')!r}"


def test_a_resumed_run_says_from_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the state, the epoch and the update, before anything else; also without callbacks that print."""
    place = tmp_path / "states"

    def lines(num_epochs: int = 3, folder: Path = place) -> list[str]:
        capsys.readouterr()
        train(make_trainer(), num_epochs, resume_from=folder, resume_missing="start")
        return capsys.readouterr().out.splitlines()

    assert lines() == [f"There is no training state in {place}: a new run begins."]
    states = SaveTrainingStateCallback(place, save_every_n_steps=4, save_every_n_epochs=1)
    with pytest.raises(Interrupted):
        train(make_trainer(states, InterruptAt("on_train_step_end", 8)))
    assert lines() == [f"Resuming from {place / 'step_8'}: in epoch 2, after update 8."]
    assert lines(folder=place / "epoch_1") == [
        f"Resuming from {place / 'epoch_1'}: at the start of epoch 2, after update 7."
    ]
    train(make_trainer(states), resume_from=place)
    assert lines() == [
        f"Resuming from {place / 'final'}: this run was complete after update 21, and nothing is left to train. "
        "Raise num_epochs or max_num_train_steps to train for longer."
    ]
    assert lines(num_epochs=4)[0] == f"Resuming from {place / 'final'}: at the start of epoch 4, after update 21."
    train(make_trainer())
    assert capsys.readouterr().out == ""


def test_rounds_on_a_dataset_that_grows_train_or_say_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same epochs on more samples are a complete run, which says so and how many to ask for; that many train."""

    def round_of(num_samples: int, num_epochs: int) -> tuple[int, str]:
        trainer, data = make_trainer(SaveTrainingStateCallback(tmp_path)), DrawingDataset(num_samples)
        train(
            trainer,
            num_epochs,
            dataset=data,
            resume_from=tmp_path,
            resume_missing="start",
            resume_allow=("dataset_length",),
        )
        return trainer.num_updates_completed, capsys.readouterr().out.splitlines()[0]

    assert round_of(52, num_epochs=1)[0] == 7
    updates, said = round_of(80, num_epochs=1)
    assert updates == 7
    assert said.startswith(
        f"Resuming from {tmp_path / 'final'}: this run was complete after update 7, and nothing is left to train."
    )
    assert said.endswith("pass num_epochs=2 to train another epoch on this data.")
    assert round_of(80, num_epochs=2)[0] == 7 + 10
    assert round_of(104, num_epochs=2)[0] == 7 + 10
    assert round_of(104, num_epochs=3)[0] == 7 + 10 + 13


def test_a_run_that_was_complete_does_not_say_that_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the line that says so there is the table of its metrics, and nothing about a training."""
    train(make_trainer(SaveTrainingStateCallback(tmp_path)), num_epochs=1)
    capsys.readouterr()
    train(make_trainer(PrintProgressCallback()), num_epochs=1, resume_from=tmp_path)
    said, heading, *_ = capsys.readouterr().out.splitlines()
    assert "was complete after update 7" in said
    assert heading.split() == ["metric", "last", "best", "epoch"]


def test_a_run_that_is_to_be_resumed_and_saves_at_its_end_only_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where resume_from shows that it is meant to survive a kill; once it is complete there is nothing to lose."""

    def said(states: SaveTrainingStateCallback, **options: Any) -> bool:
        capsys.readouterr()
        train(make_trainer(states), num_epochs=1, **options)
        return "loses all progress since update 0. Pass save_every_n_epochs=1" in capsys.readouterr().out

    folder, never = tmp_path / "end", SaveTrainingStateCallback(tmp_path / "never", save_at_end=False)
    assert said(SaveTrainingStateCallback(folder), resume_from=folder, resume_missing="start")
    assert said(never, resume_from=tmp_path / "never", resume_missing="start")
    assert not said(SaveTrainingStateCallback(folder), resume_from=folder)
    assert not said(SaveTrainingStateCallback(tmp_path / "new"))
    for period in ("save_every_n_epochs", "save_every_n_steps", "save_every_n_seconds"):
        options: dict[str, Any] = {period: 1}
        states = SaveTrainingStateCallback(tmp_path / period, **options)
        assert not said(states, resume_from=tmp_path / period, resume_missing="start")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "SECONDS_TO_DIE", 0.2)


def at(update: int, function: Callable[[], object]) -> CallAt:
    """Calls a function after an update."""
    return CallAt("on_optimizer_step_end", lambda _: function(), update)


def states_of(folder: Path) -> list[tuple[str, int]]:
    """The names of the states, and which runs they are of: 0 for the run of the oldest one, and so on."""
    records = Folder(folder).records()
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

    two = SaveTrainingStateCallback(tmp_path, save_every_n_steps=3, save_at_end=False), SavesToo(tmp_path)
    with pytest.raises(FolderInUseError, match=f"process {os.getpid()} "):
        train(make_trainer(*two, at(4, train_another)))
    assert states_of(tmp_path) == [("step_3", 0)]


def test_only_a_run_can_have_a_folder_for_itself(tmp_path: Path) -> None:
    """Outside of one, nobody would ever release it."""
    with pytest.raises(ConfigurationError, match="outside of a run"):
        make_trainer().reserve_state_folder(tmp_path)


def test_a_folder_is_reserved_only_where_the_state_can_be_saved(tmp_path: Path) -> None:
    """A callback that saves in its own way learns before the first step what it could not save at the end."""

    class Unsaveable(TrainerCallback):
        @override
        def state_dict(self) -> dict[str, Any]:
            return {"lock": threading.Lock()}

        @override
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """There is nothing to load."""

        @override
        def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            trainer.reserve_state_folder(tmp_path)

    trainer = make_trainer(Unsaveable())
    with pytest.raises(CheckpointError, match="Unsaveable"):
        train(trainer)
    assert trainer.num_updates_completed == 0


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

    both = saving["a"], SavesToo(tmp_path / "b", save_every_n_steps=5)
    resuming: dict[str, Any] = {"resume_from": tmp_path / "a"}
    for update, options in ((6, {}), (8, resuming)):
        with interrupting(trainer := make_trainer(*both), update):
            train(trainer, **options)
    runs = {record.run for name in ("a", "b") for record in Folder(tmp_path / name).records()}
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
    (old,), (new,) = (Folder(tmp_path / name).records() for name in ("old", "new"))
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
    assert Folder(tmp_path / "kept").newest_readable(load)[0] is not None


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_no_run_takes_or_loses_a_state_in_a_folder_that_others_want_too(launch: Launch) -> None:
    """In 2 folders two to four runs start at random moments, some are killed, and one more comes to the right end.

    `nox -s shared_folders` does so in 200.
    """
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    launched = launch(Path(runs_in_one_folder.__file__), "2", "7", env=path)

    assert launched.status == 0
    assert "2 tries" in launched.output


def test_two_states_of_one_run_are_the_same_but_for_the_clock(tmp_path: Path) -> None:
    """Also the RNG states; with another learning rate, the first entry that differs is a weight."""
    for name, rate in (("one", 0.01), ("again", 0.01), ("faster", 0.02)):
        trainer = make_trainer(SaveTrainingStateCallback(tmp_path / name))
        trainer.optimizer.param_groups[0]["lr"] = rate
        train(trainer)
    assert compare(tmp_path / "one", tmp_path / "again", "history.*seconds") is None
    assert compare(tmp_path / "one", tmp_path / "again", ANY_PROCESSES) is None

    difference = compare(tmp_path / "one", tmp_path / "faster", ANY_PROCESSES)
    assert difference is not None
    assert difference.entry == "models.model.weights.layers.0.weight"
    assert re.fullmatch(r"80 of 80 elements differ, by [\d.]+ at most", difference.found)
    weights_and_rates = ["models", "optimizers.*", "schedulers.*", "history.*", "callbacks", *ANY_PROCESSES]
    assert str(compare(tmp_path / "one", tmp_path / "faster", weights_and_rates)) == (
        "run.hyperparameters.0.lr: 0.01 in the first, 0.02 in the second"
    )


EXACT_RUN = """
import sys, torch
from torch import nn
from torch.utils.data import TensorDataset
from pa_core import SaveTrainingStateCallback, Trainer

torch.manual_seed(0)
model = nn.Linear(2, 1, bias=False)
nn.init.ones_(model.weight)
data = TensorDataset(torch.randint(-2, 3, (16, 2)).float(), torch.randint(-2, 3, (16, 1)).float())
states = SaveTrainingStateCallback(sys.argv[1], save_every_n_steps=1)
trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.5), callbacks=[states])
options = {"per_device_batch_size": 4, "train_dataloader_kwargs": {"num_workers": 0}}
trainer.train(data, 1, samples_per_update=8, **options)
"""


def test_states_of_one_run_are_the_same_on_any_number_of_processes(launch: Launch, tmp_path: Path) -> None:
    """Within an epoch and at the end, where the arithmetic is exact; without the patterns, they differ."""
    for ranks in (1, 2):
        assert launch(EXACT_RUN, str(tmp_path / str(ranks)), ranks=ranks).status == 0
    for name in ("step_1", "final"):
        one, two = (tmp_path / str(ranks) / name for ranks in (1, 2))
        assert compare(one, two, ANY_PROCESSES) is None
        assert compare(one, two, "history.*seconds") is not None


def test_a_requested_state_is_saved_although_a_callback_stops_the_run_at_that_moment(tmp_path: Path) -> None:
    """The stop of the event before the save leaves the request, which is served when the run ends."""

    class StopsOnce(TrainerCallback):
        has_stopped = False

        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            if update == 2:
                trainer.save_training_state(tmp_path / "state")

        @override
        def on_training_state_save(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            if not self.has_stopped:
                self.has_stopped = True
                raise StopTrainingError

    trainer = small_runs.make_trainer(Trainer, StopsOnce())
    trainer.train(small_runs.samples(32), 1, per_device_batch_size=4)
    assert (tmp_path / "state").is_dir()
