"""The names of states, and the line that says which of them a run resumes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pa_core import AnyTrainer, PrintProgressCallback, SaveTrainingStateCallback, StateNotFoundError
from pa_core.storage import StateFolder
from tests.support.callbacks import CallAt
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    make_trainer,
    train,
)


def names_in(folder: Path) -> list[str]:
    """The names of the states in a folder, in the order of saving."""
    return [record.path.name for record in StateFolder(folder).records()]


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
    assert [record.update for record in StateFolder(tmp_path).records()] == [7, 14, 21]


def test_a_state_that_is_missing_is_told_with_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the error, and in the line of a run that begins anew."""
    train(make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=3)))
    with pytest.raises(FileNotFoundError, match=r"has 3 older ones, step_12, step_15, step_18, step_21, final\)"):
        train(make_trainer(), resume_from=tmp_path / "epoch_5")
    capsys.readouterr()
    train(make_trainer(), num_epochs=1, resume_from=tmp_path / "epoch_5", resume_missing="start")
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"There is no training state in {tmp_path / 'epoch_5'} ({tmp_path} has 3 older ones, ")
    assert line.endswith("): a new run begins.")


def test_states_of_others_next_to_a_missing_folder_are_not_told_as_its_own(tmp_path: Path) -> None:
    """What lies about under names that no run gives, as in a folder of temporary files, is nothing to resume from."""
    trainer = make_trainer()
    train(trainer, num_epochs=1)
    for name in ("tmp1", "tmp2"):
        trainer.save_training_state(tmp_path / name)
    with pytest.raises(StateNotFoundError) as caught:
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
    assert said.endswith("pass num_epochs=2 to train one more on this dataset.")
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
        return "loses everything since update 0. Pass save_every_n_epochs=1" in capsys.readouterr().out

    folder, never = tmp_path / "end", SaveTrainingStateCallback(tmp_path / "never", save_at_end=False)
    assert said(SaveTrainingStateCallback(folder), resume_from=folder, resume_missing="start")
    assert said(never, resume_from=tmp_path / "never", resume_missing="start")
    assert not said(SaveTrainingStateCallback(folder), resume_from=folder)
    assert not said(SaveTrainingStateCallback(tmp_path / "new"))
    for period in ("save_every_n_epochs", "save_every_n_steps", "save_every_n_seconds"):
        options: dict[str, Any] = {period: 1}
        states = SaveTrainingStateCallback(tmp_path / period, **options)
        assert not said(states, resume_from=tmp_path / period, resume_missing="start")
