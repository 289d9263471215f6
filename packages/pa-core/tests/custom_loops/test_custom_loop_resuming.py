"""A custom loop that is interrupted resumes as if it had not been, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pa_checkpoint import Folder
from pa_core import SaveTrainingStateCallback
from tests.support.callbacks import KilledError
from tests.support.pa_core.custom_loops.loops import fingerprint, make_run, train


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Any]:
    """What an uninterrupted run ends with."""
    run = make_run()
    train(run)
    return fingerprint(run)


@pytest.mark.parametrize("dies_at", [1, 3, 4, 5, 8, 11])
def test_a_loop_that_fails_anywhere_resumes_bit_for_bit(
    tmp_path: Path, uninterrupted: dict[str, Any], dies_at: int
) -> None:
    """Weights, optimizer, schedule, history, samples, draws and random streams are those of the whole run."""
    with pytest.raises(KilledError):
        train(make_run(SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)), dies_at=dies_at)
    assert Folder(tmp_path).records()[-1].update == dies_at - 1 if dies_at > 1 else True

    resumed = make_run(seed=7, resume_from=tmp_path, resume_missing="start")
    train(resumed)
    expected = uninterrupted
    if dies_at == 1:  # nothing was saved: a new run begins, with its own seed
        other = make_run(seed=7)
        train(other)
        expected = fingerprint(other)
    assert fingerprint(resumed) == expected


def test_a_run_that_is_interrupted_again_and_again_comes_to_the_same_end(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """States of resumed runs are as good as those of the first one, with states after epochs and with workers too."""
    workers = {"num_workers": 2}
    for dies_at in (3, 6, 7, 10):
        save = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2, save_every_n_epochs=1, max_checkpoints=2)
        seed = 1 if dies_at == 3 else dies_at
        run = make_run(save, seed=seed, resume_from=tmp_path, resume_missing="start", train_dataloader_kwargs=workers)
        with pytest.raises(KilledError):
            train(run, dies_at=dies_at)
    last = make_run(seed=9, resume_from=tmp_path, train_dataloader_kwargs=workers)
    train(last)
    assert fingerprint(last) == uninterrupted


def test_a_complete_run_is_not_run_again(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """Its loop has no epoch any more, however often it begins, and everything is as it had ended."""
    train(make_run(SaveTrainingStateCallback(tmp_path)))
    again = make_run(SaveTrainingStateCallback(tmp_path), seed=5, resume_from=tmp_path)
    train(again)
    assert again.was_complete
    assert fingerprint(again) == uninterrupted
    assert [record.path.name for record in Folder(tmp_path).records()] == ["final"]
    with make_run(resume_from=tmp_path) as again:
        for _ in range(2):
            assert list(again.batches()) == []


def test_what_is_registered_before_the_loop_is_restored(tmp_path: Path) -> None:
    """An object that is registered within the block, before the loop, has its state when the loop begins."""
    run = make_run(SaveTrainingStateCallback(tmp_path))
    average = torch.nn.Linear(1, 1)
    with run:
        run.register_for_checkpointing(average)
        for inputs, _ in run.batches():
            run.backward(run.model(inputs).square().mean())
            run.step()
        average.weight.data.fill_(3.0)
    resumed = make_run(resume_from=tmp_path)
    other = torch.nn.Linear(1, 1)
    with resumed:
        resumed.register_for_checkpointing(other)
        assert list(resumed.updates()) == []
    assert other.weight.item() == 3.0
