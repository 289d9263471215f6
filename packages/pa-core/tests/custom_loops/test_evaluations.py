"""The evaluations of a custom training loop."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import Run, SaveTrainingStateCallback
from tests.small_runs import samples
from tests.support.callbacks import CallAt, KilledError
from tests.support.histories import epochs_of, moments, updates_of
from tests.support.pa_core.custom_loops.loops import make_line, make_update, seed_all, step_through


def test_each_sample_counts_once() -> None:
    """The mean over ten samples in batches of four is that of the samples, and is on the clock of the run."""
    run = make_line(lr=0.0)
    with run:
        for _ in run.epochs():
            step_through(run)
            for inputs, _ in run.evaluation_batches(samples(10)):
                run.log("number", inputs[:, 0].mean())
                run.log("loss", inputs[:, 0].mean() + 1)
    assert run.run_history.get_latest_metric("eval_number_epoch") == pytest.approx(4.5)
    assert run.run_history.get_latest_metric("eval_loss_epoch") == pytest.approx(5.5)
    assert [clock for metric, _, *clock in moments(run) if "eval" in metric] == [[1, 3, 10], [1, 3, 10]]


def test_within_it_the_model_is_in_eval_mode_without_gradients() -> None:
    """Both are as before when it has ended, also by a break."""
    run = make_line()
    with run:
        for stops in (False, True):
            for inputs, _ in run.evaluation_batches(samples(10)):
                assert not run.model.training
                assert not run.model(inputs).requires_grad
                if stops:
                    break
            assert run.model.training
            assert torch.is_grad_enabled()
        step_through(run)


def test_an_evaluation_changes_nothing_of_the_training() -> None:
    """Order, logged values, random numbers and losses of the epoch continue after it."""
    seed_all(0)
    plain, with_evaluation = make_line(number=30, lr=1e-4), make_line(number=30, lr=1e-4)
    for run in (plain, with_evaluation):
        torch.manual_seed(3)
        with run:
            for update in run.updates():
                for inputs, targets in update:
                    run.log("number", inputs[:, 0].mean())
                    update.backward((run.model(inputs + torch.rand(())) - targets).square().mean())
                update.step()
                if run is with_evaluation:
                    for inputs, _ in run.evaluation_batches(samples(5), name="mid"):
                        run.log("number", inputs.mean() + torch.rand(()))
    assert torch.equal(plain.model.weight, with_evaluation.model.weight)
    for name in ("train_loss_epoch", "train_number_epoch"):
        assert plain.run_history.get_latest_metric(name) == with_evaluation.run_history.get_latest_metric(name)


def test_evaluations_have_names() -> None:
    """By default that of the trainer's, also among updates; or one of the loop's own, by which metrics are told."""
    run = make_line(number=4)
    with run:
        for _ in run.epochs():
            for update in run.updates():
                make_update(run, update)
                for _ in run.evaluation_batches(samples(4)):
                    run.log("loss", 1.0)
            for _ in run.evaluation_batches(samples(4)):
                run.log("loss", 2.0, num_items=3)
            for _ in run.evaluation_batches(samples(4), name="test"):
                run.log("loss", 3.0)
    values = {name: run.run_history.get_latest_metric(name) for name in run.run_history.get_metric_names()}
    del values["train_loss_epoch"]
    assert values == {"intermediate_eval_loss_epoch": 1, "eval_loss_epoch": 2, "test_loss_epoch": 3}


@pytest.mark.parametrize("in_epochs", [True, False])
def test_after_a_break_out_of_the_updates_the_epoch_is_over(in_epochs: bool) -> None:
    """What is evaluated then is no intermediate evaluation, and comes after the means of the training."""
    run = make_line(num_epochs=2)
    with run:
        for _ in run.epochs() if in_epochs else range(1):
            for update in run.updates():
                make_update(run, update)
                if update.number % 2 == 0:
                    break
            for inputs, targets in run.evaluation_batches(samples(5)):
                run.log("loss", (run.model(inputs) - targets).square().mean())
    ends = [2, 4] if in_epochs else [2]
    assert [(metric, update) for metric, _, _, update, _ in moments(run)] == [
        (metric, update) for metric in ("train_loss_epoch", "eval_loss_epoch") for update in ends
    ]
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_an_evaluation_that_is_left_is_not_recorded() -> None:
    """Its values would be means over some of the samples."""
    run = make_line(number=4)
    with run:
        step_through(run)
        for _ in run.evaluation_batches(samples(20)):
            run.log("loss", 1.0)
            break
    assert list(run.run_history.get_metric_names()) == ["train_loss_epoch"]


def test_what_is_recorded_by_hand_is_on_the_clock() -> None:
    """``record`` is for values that are no means over samples."""
    run = make_line()
    with run:
        for update in run.updates():
            make_update(run, update)
            run.record("weight", run.model.weight.sum().item())
    assert updates_of(run, "weight") == [1, 2, 3]


def test_an_evaluation_after_the_last_epoch_belongs_to_it(tmp_path: Path) -> None:
    """What is recorded after the loop has the number of the last epoch; a longer run continues with the next one."""

    def epochs_of_tests(num_epochs: int) -> list[int]:
        options: dict[str, Any] = {"resume_from": tmp_path, "resume_missing": "start", "num_epochs": num_epochs}
        run = make_line(callbacks=[SaveTrainingStateCallback(tmp_path)], **options)
        with run:
            for _ in run.epochs():
                step_through(run)
            if run.was_complete:
                assert list(run.epochs()) == []
            for _ in run.evaluation_batches(samples(4), name="test"):
                run.log("loss", 1.0)
            run.record("checked", 1)
        assert run.run_history.current_epoch == num_epochs + 1
        assert epochs_of(run, "train_loss_epoch") == [*range(1, num_epochs + 1)]
        assert epochs_of(run, "test_loss_epoch") == epochs_of(run, "checked")
        return epochs_of(run, "checked")

    assert epochs_of_tests(2) == [2]
    assert epochs_of_tests(2) == [2, 2], "nothing is left to train"
    assert epochs_of_tests(3) == [2, 3]


def _resumed(folder: Path, num_epochs: int) -> list[int]:
    """Resume a run of two epochs, check something after it, and return the epochs of all checks."""
    run = make_line(num_epochs=num_epochs, resume_from=folder)
    with run:
        step_through(run)
        run.record("checked", 2)
    assert epochs_of(run, "train_loss_epoch") == [*range(1, num_epochs + 1)]
    assert run.run_history.current_epoch == num_epochs + 1
    return epochs_of(run, "checked")


@pytest.mark.parametrize("ends_with", [KeyboardInterrupt, KilledError])
def test_a_run_that_fails_after_its_last_epoch_can_be_saved_and_continues_with_the_next_one(
    tmp_path: Path, ends_with: type[BaseException]
) -> None:
    """Its state has the number of the next epoch, also in callbacks; values after a loop have that of the last one."""
    in_callbacks: list[int] = []
    note = CallAt("on_exception", lambda run: in_callbacks.append(run.run_history.current_epoch))
    run = make_line(num_epochs=2, callbacks=[note])
    with pytest.raises(ends_with), run:
        step_through(run)
        run.record("checked", 1)
        for _ in run.evaluation_batches(samples(4)):
            raise ends_with
    assert [*in_callbacks, run.run_history.current_epoch] == [3, 3]
    run.save_training_state(tmp_path / "state")
    assert _resumed(tmp_path, 2) == [2, 2]
    assert _resumed(tmp_path, 3) == [2, 3]


@pytest.mark.parametrize("asks", ["for one state", "callbacks"])
def test_a_state_that_is_asked_for_after_the_last_epoch_is_that_of_the_complete_run(tmp_path: Path, asks: str) -> None:
    """It is saved when the block ends, with what was recorded until then."""
    save = SaveTrainingStateCallback(tmp_path, save_every_n_seconds=3600, save_at_end=False)
    run = make_line(num_epochs=2, callbacks=[save])
    with run:
        step_through(run)
        if asks == "for one state":
            run.save_training_state(tmp_path / "state")
        else:
            run.request_training_state()
        run.record("checked", 1)
    assert _resumed(tmp_path, 3) == [2, 3]


def test_an_evaluation_after_a_break_belongs_to_the_epoch_that_was_left() -> None:
    """The clock is that of the epoch, which is not complete."""
    with make_line(num_epochs=3) as run:
        for epoch in run.epochs():
            step_through(run)
            if epoch == 1:
                break
        run.record("checked", 1)
    assert epochs_of(run, "checked") == [2]


class _Workers(Dataset[int]):
    """Samples that are the numbers of the processes that load them."""

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_evaluations_of_a_name_share_their_workers() -> None:
    """They start once; other data or arguments have a loader of their own, and the workers of the last one end."""
    data, workers = _Workers(), {"num_workers": 1}

    def loaded_by(run: Run[nn.Linear, Any], dataset: _Workers, size: int = 2, **options: Any) -> int:
        (number,) = {
            number
            for batch in run.evaluation_batches(dataset, size, dataloader_kwargs=workers, **options)
            for number in batch.tolist()
        }
        return int(number)

    left: list[int] = []
    with make_line() as run:
        first = loaded_by(run, data)
        other_name = loaded_by(run, data, name="test")
        assert loaded_by(run, data) == first
        assert loaded_by(run, data, name="test") == other_name
        larger = loaded_by(run, data, size=4)
        assert not has_child(first)
        other_data = loaded_by(run, _Workers(), size=4)
        assert not has_child(larger)
        assert len({os.getpid(), first, other_name, larger, other_data}) == 5
        left += [other_name, other_data]
        step_through(run)
    assert len(left) == 2
    assert not any(map(has_child, left))


def has_child(number: int) -> bool:
    """Whether this process has a worker of this number."""
    return number in {child.pid for child in multiprocessing.active_children()}
