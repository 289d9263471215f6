"""Epochs of different lengths: what a run plans, shows, saves and resumes."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from pa_core import ProgressBarCallback, SaveTrainingStateCallback, Trainer, TrainerPlaceholderValues
from pa_core.callbacks import PrintProgressCallback
from pa_core.distributed import num_processes
from pa_core.epoch_lengths import EpochLengths
from pa_core.errors import EmptyDatasetError
from pa_core.orders import Order
from tests.small_runs import NoteBatches, make_trainer, samples
from tests.support.callbacks import KillAt, KilledError
from tests.support.histories import updates_of
from tests.support.pa_core.stages import Stages

SAMPLES = [16, 40, 24]
UPDATES = [2, 5, 3]


def train(trainer: Trainer, num_epochs: int = 3, **options: Any) -> Trainer:
    """Train on batches of 8 on all processes together, in epochs of 2, 5 and 3 updates."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {"per_device_batch_size": 8 // num_processes(), "order": Stages(SAMPLES)}
    trainer.train(samples(40), num_epochs, **{**settings, **options})
    return trainer


@pytest.mark.parametrize("are_equal", [True, False])
@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_what_is_counted_is_what_the_epochs_add_up_to(are_equal: bool, accumulation_steps: int) -> None:
    """Updates before an epoch, epochs of an update and ends of epochs agree with a count by hand."""
    steps = [7] * 6 if are_equal else [7, 2, 1, 9, 4, 5]
    lengths = EpochLengths(steps.__getitem__, accumulation_steps, are_equal=are_equal)
    updates = [math.ceil(number / accumulation_steps) for number in steps]

    assert [lengths.updates_before(epoch) for epoch in range(7)] == [sum(updates[:epoch]) for epoch in range(7)]
    by_hand = [epoch for epoch, number in enumerate(updates, start=1) for _ in range(number)]
    assert [lengths.epochs_for(update) for update in range(1, sum(updates) + 1)] == by_hand
    ends = [update for update in range(1, sum(updates) + 1) if lengths.is_end_of_epoch(update)]
    assert ends == [sum(updates[:epoch]) for epoch in range(1, 7)]
    assert lengths.mean_updates(4) == math.ceil(sum(updates[:4]) / 4)
    assert lengths.mean_steps(4) == math.ceil(sum(steps[:4]) / 4)


def test_equal_epochs_are_asked_for_once() -> None:
    """An order whose epochs are equal is asked for its first epoch alone, however many there are."""
    asked: list[int] = []

    def num_steps(epoch: int) -> int:
        asked.append(epoch)
        return 10

    lengths = EpochLengths(num_steps, are_equal=True)

    assert lengths.updates_before(1_000_000) == 10_000_000
    assert (lengths.epochs_for(95), lengths.is_end_of_epoch(100)) == (10, True)
    assert asked == [0]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_has_the_updates_of_all_its_epochs() -> None:
    """The config has their sum and their mean, the placeholders too, and that many updates are made."""
    schedule = partial(
        StepLR, step_size=TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    )

    trainer = train(make_trainer(), create_scheduler_fn=schedule)

    config = trainer.run_config
    assert (config.num_epochs, config.max_num_train_steps, config.num_update_steps_per_epoch) == (3, 10, 4)
    assert isinstance(trainer.scheduler, StepLR)
    assert trainer.scheduler.step_size == 12
    assert (trainer.num_updates_completed, trainer.num_epochs_completed) == (10, 3)
    assert [trainer.epoch_lengths.updates_of(epoch) for epoch in range(3)] == UPDATES
    assert updates_of(trainer, "train_loss_epoch") == [2, 7, 10]


def test_displays_show_the_length_of_each_epoch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The line of an epoch names its batches, also of the one that is cut short; the first line the sum of updates."""
    trainers = [make_trainer(Trainer, display) for display in (PrintProgressCallback, ProgressBarCallback)]
    for trainer in trainers:
        train(trainer)
    whole = capsys.readouterr().out
    for trainer in trainers:
        train(trainer, num_epochs=1, max_num_train_steps=5)
    cut = capsys.readouterr().out

    assert "Training starts: 3 epochs of 4 updates on average, 10 updates, 8 samples per update" in whole
    assert [line.split(",")[0] for line in whole.splitlines() if " batches," in line] == [
        "Epoch 1: 2/2 batches",
        "Epoch 2: 5/5 batches",
        "Epoch 3: 3/3 batches",
    ]
    assert "Training starts: 2 epochs of 4 updates, at most 5 updates" in cut
    assert "Epoch 2: 3/3 batches" in cut

    saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)
    with pytest.raises(KilledError):
        train(make_trainer(Trainer, saving, KillAt(4, "on_train_step_start")))
    resumed = make_trainer(Trainer, ProgressBarCallback())
    train(resumed, num_epochs=1, max_num_train_steps=6, resume_from=tmp_path)
    assert "Epoch 2: 4/4 batches" in capsys.readouterr().out


def test_a_run_resumes_after_any_update_of_any_epoch(tmp_path: Path) -> None:
    """Killed after each of its updates, it trains on the rest of that epoch and of all others: the same batches."""
    note = NoteBatches()
    whole = train(make_trainer(Trainer, note))
    for update in range(1, 10):
        folder = tmp_path / str(update)
        saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
        before, after = NoteBatches(), NoteBatches()
        with pytest.raises(KilledError):
            train(make_trainer(Trainer, before, saving, KillAt(update, "on_train_step_start")))
        resumed = train(make_trainer(Trainer, after), resume_from=folder)

        assert before.trained + after.trained == note.trained
        torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
        assert updates_of(resumed, "train_loss_epoch") == [2, 7, 10]


@pytest.mark.parametrize("order", [None, Stages(SAMPLES)])
def test_a_run_that_is_made_longer_again_and_again_trains_all_of_each_epoch(
    tmp_path: Path, order: Order | None
) -> None:
    """Each time it ends within an epoch, also in one that it was resumed in; then come the samples that are left."""
    note = NoteBatches()
    train(make_trainer(Trainer, note), num_epochs=1, max_num_train_steps=9, order=order)
    trained: list[list[int]] = []
    for updates in (1, 4, 6, 9):
        part = NoteBatches()
        saving = SaveTrainingStateCallback(tmp_path)
        options = {"resume_from": tmp_path, "resume_missing": "start", "order": order}
        train(make_trainer(Trainer, part, saving), num_epochs=1, max_num_train_steps=updates, **options)
        trained += part.trained

    assert trained == note.trained


def test_an_epoch_without_samples_is_refused_before_the_first_step() -> None:
    """The error says which epoch it is; nothing was trained."""
    note = NoteBatches()
    with pytest.raises(EmptyDatasetError, match="0 samples in epoch 1, counted from 0"):
        train(make_trainer(Trainer, note), order=Stages([8, 0]))

    assert note.trained == []
