"""A training state that is complete is announced to all processes of a run, after the same update."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from typing_extensions import override

from pa_checkpoint import Folder
from pa_core import (
    AnyTrainer,
    ConfigurationError,
    Run,
    SaveTrainingStateCallback,
    StopTrainingError,
    TrainingPreempted,
    distributed,
)
from pa_core.testing import RecordingCallback, make_regression
from tests.support.callbacks import AlsoAt, CallAt, OfThisProcess
from tests.support.disks import full_disk
from tests.support.pa_core.training_states.small_runs import make_trainer, train


class Announced(NamedTuple):
    """What the event said, how many updates the run had made then, and whether the state was complete."""

    path: Path
    update: int
    called_after: int
    is_complete: bool


class Announcements(OfThisProcess):
    """Notes what the event says on this process."""

    def __init__(self) -> None:
        self.all: list[Announced] = []

    @override
    def on_training_state_saved(self, trainer: AnyTrainer, path: Path, update: int, **kwargs: Any) -> None:
        is_complete = path in [record.path for record in Folder(path.parent).records()]
        self.all.append(Announced(path, update, trainer.num_updates_completed, is_complete))

    def of_each_process(self) -> list[list[Announced]]:
        """What each process was told."""
        return distributed.gather_objects(self.all)


def wait_for_writer(_trainer: object = None) -> None:
    """Wait until no thread of this process writes a state."""
    for thread in threading.enumerate():
        if "background writer" in thread.name:
            thread.join()


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_state_is_announced_once_it_is_complete(shared_tmp_path: Path, asynchronous: bool) -> None:
    """On all processes after the same update, in the order of the states, and the last one before the run ends."""
    told = Announcements()
    states = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=3, asynchronous=asynchronous)
    train(make_trainer(states, told))
    of_each = told.of_each_process()
    assert all(one == of_each[0] for one in of_each)
    assert [one.path for one in told.all] == [record.path for record in Folder(shared_tmp_path).records()]
    assert [one.update for one in told.all] == [record.update for record in Folder(shared_tmp_path).records()]
    assert all(one.is_complete and one.called_after - one.update in range(4) for one in told.all)
    if not asynchronous:
        assert all(one.called_after == one.update for one in told.all)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_state_of_the_background_is_announced_while_the_training_continues(shared_tmp_path: Path) -> None:
    """After one of the updates that follow its last write, although no other state is saved."""
    told = Announcements()
    states = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=100, asynchronous=True, save_at_end=False)
    save = CallAt("on_optimizer_step_end", AnyTrainer.request_training_state, 1)
    written = AlsoAt("on_train_step_start", wait_for_writer, 3)
    train(make_trainer(states, save, written, told))
    (announced,) = told.all
    assert (announced.update in (1, 2), announced.called_after <= 5) == (True, True)
    assert told.of_each_process() == [[announced]] * distributed.num_processes()


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_last_state_of_a_preempted_run_is_announced_before_it_ends(
    shared_tmp_path: Path, asynchronous: bool
) -> None:
    """So that whoever takes the machine away can be told of the state."""
    recorder, told = RecordingCallback(), Announcements()
    preempt = CallAt("on_optimizer_step_end", AnyTrainer.request_preemption, 3)
    states = SaveTrainingStateCallback(shared_tmp_path, asynchronous=asynchronous)
    with pytest.raises(TrainingPreempted):
        train(make_trainer(states, preempt, recorder, told))
    assert recorder.events[-3:] == ["on_training_state_save", "on_training_state_saved", "on_exception"]
    (announced,) = told.all
    assert announced.is_complete
    assert announced.update == announced.called_after
    assert told.of_each_process() == [[announced]] * distributed.num_processes()


@pytest.mark.runs_on("two_ranks")
def test_the_path_is_that_of_the_first_process(shared_tmp_path: Path) -> None:
    """Which has written the state, even if the processes were given different ones."""
    told = Announcements()

    def save(trainer: AnyTrainer) -> None:
        trainer.save_training_state(shared_tmp_path / f"of_rank_{distributed.rank()}")

    train(make_trainer(CallAt("on_optimizer_step_end", save, 2), told))
    assert [one.path.name for one in told.all] == ["of_rank_0"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_state_that_could_not_be_written_is_not_announced(tmp_path: Path, asynchronous: bool) -> None:
    """The run continues without it, and announces the next one."""
    told, disk = Announcements(), full_disk(100)

    def free(_trainer: AnyTrainer) -> None:
        wait_for_writer()
        disk.__exit__(None, None, None)

    states = SaveTrainingStateCallback(
        tmp_path, save_every_n_steps=9, asynchronous=asynchronous, on_save_error="warn", save_at_end=False
    )
    fill = CallAt("on_optimizer_step_end", lambda _: disk.__enter__(), 9)
    with pytest.warns(UserWarning, match="could not be written"):
        train(make_trainer(states, fill, AlsoAt("on_optimizer_step_end", free, 10), told))
    assert [one.update for one in told.all] == [18]


def test_a_run_with_a_loop_of_its_own_announces_its_states(tmp_path: Path) -> None:
    """In the block, and those of the background before the block is left."""
    told = Announcements()
    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=4, asynchronous=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Run(model, optimizer, make_regression(64), num_epochs=1, callbacks=[states, told]) as run:
        for inputs, targets in run.batches():
            run.backward((model(inputs) - targets).square().mean())
            run.step()
    assert [(one.path.name, one.update) for one in told.all] == [("step_4", 4), ("step_8", 8), ("final", 8)]


def test_a_state_that_a_script_saves_after_a_run_is_announced(tmp_path: Path) -> None:
    """As those within the run."""
    told = Announcements()
    trainer = make_trainer(told)
    train(trainer, num_epochs=1)
    trainer.save_training_state(tmp_path / "state")
    assert [(one.path.name, one.update, one.is_complete) for one in told.all] == [("state", 7, True)]


def test_a_state_cannot_be_saved_because_one_was_saved(tmp_path: Path) -> None:
    """It would be announced in turn, without an end: an error says where to save instead."""

    def save(trainer: AnyTrainer) -> None:
        trainer.save_training_state(tmp_path / "again")

    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=3)
    with pytest.raises(ConfigurationError, match=r"in on_training_state_saved[\s\S]*on_optimizer_step_end"):
        train(make_trainer(states, CallAt("on_training_state_saved", save)))


@pytest.mark.parametrize(("every", "updates"), [(3, 3), (None, 21)])
def test_a_callback_may_stop_the_run_when_a_state_is_saved(tmp_path: Path, every: int | None, updates: int) -> None:
    """For example after so many states; it has no effect on a run that is complete."""

    def stop(_trainer: AnyTrainer) -> None:
        raise StopTrainingError

    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=every)
    trainer = make_trainer(states, CallAt("on_training_state_saved", stop))
    train(trainer)
    assert trainer.num_updates_completed == updates
    assert Folder(tmp_path).records()[-1].complete


def test_a_run_that_fails_announces_nothing_more(tmp_path: Path) -> None:
    """The other processes of a run may be gone by then."""
    told = Announcements()

    def fail(_trainer: AnyTrainer) -> None:
        wait_for_writer()
        raise KeyboardInterrupt

    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=3, asynchronous=True)
    with pytest.raises(KeyboardInterrupt):
        train(make_trainer(states, told, CallAt("on_train_step_start", fail, 3)))
    assert told.all == []
    assert [record.update for record in Folder(tmp_path).records()] == [3]
