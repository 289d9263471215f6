"""Signals that come again and again, or too late: the process ends by its own status, and no state is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pa_core import SaveTrainingStateCallback, TrainingPreempted
from pa_core.storage import StateFolder
from tests.support.callbacks import CallAt
from tests.support.pa_core.training_states.preempted_runs import own_handler
from tests.support.pa_core.training_states.small_runs import make_trainer, train

if TYPE_CHECKING:
    from tests.launching import Launch

SCRIPT = """
import os, signal, sys, time, warnings
import torch
from torch.utils.data import TensorDataset
from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.callbacks import TerminateOnNaNCallback

warnings.simplefilter("ignore", DeprecationWarning)  # of the fork below, from Python 3.12 on
first, asynchronous = sys.argv[1], sys.argv[2] == "asynchronous"


def send_signals_until_the_end():
    parent = os.getpid()
    if os.fork() == 0:
        os.closerange(0, 256)  # whoever starts the script waits for its output to end
        end = time.monotonic() + 30
        while os.getppid() == parent and time.monotonic() < end:
            os.kill(parent, signal.SIGTERM)
            time.sleep(0.0005)
        os._exit(0)
    time.sleep(0.01)


class Sends(TrainerCallback):
    def on_optimizer_step_end(self, trainer, update, **kwargs):
        if first == "update" and update == 3:
            send_signals_until_the_end()

    def state_dict(self):
        if first == "final save" and trainer.num_epochs_completed == 2:
            send_signals_until_the_end()
        return {}

    def load_state_dict(self, state_dict):
        pass


class Late:
    def __del__(self, wait=time.sleep):
        wait(0.2)  # while Python ends


late = Late()
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
save = SaveTrainingStateCallback("states", stop_on_signals=("SIGTERM",), asynchronous=asynchronous)
callbacks = [save, Sends(), TerminateOnNaNCallback()]
trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.Adam(model.parameters()), callbacks=callbacks)
try:
    trainer.train(TensorDataset(torch.ones(40, 1), torch.ones(40, 1)), num_epochs=2)
finally:
    time.sleep(0.1)
time.sleep(0.1)
print("the script went on")
"""


@pytest.mark.parametrize("way", ["at once", "asynchronous"])
def test_a_process_that_was_asked_to_leave_ends_by_its_own_status(launch: Launch, way: str) -> None:
    """However many more signals come, up to the last moment of the interpreter: 75, and a state to resume from."""
    ended = launch(SCRIPT, "update", way)
    assert (ended.status, ended.output) == (75, "")
    assert [record.update for record in StateFolder(launch.folder / "states").records()] == [3]


@pytest.mark.parametrize("way", ["at once", "asynchronous"])
def test_a_signal_during_the_final_save_does_not_interrupt_it(launch: Launch, way: str) -> None:
    """The run is complete, and so is its state; the status is 0, as nothing is left to be done by another start."""
    ended = launch(SCRIPT, "final save", way)
    assert (ended.status, ended.output) == (0, "the script went on\n")
    assert [record.complete for record in StateFolder(launch.folder / "states").records()] == [True]


class SendsInFinalState:
    """Is saved with the run, and sends a signal when the final state is captured."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """As the run is complete then."""
        if self._trainer.num_epochs_completed == self._trainer.run_config.num_epochs:
            os.kill(os.getpid(), signal.SIGUSR1)
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """There is nothing to load."""


def test_a_signal_that_came_too_late_for_a_run_is_heeded_by_the_next_one(tmp_path: Path) -> None:
    """A script of several runs ends in time; afterwards its own handlers are there again."""
    with own_handler() as handled:
        first = make_trainer(SaveTrainingStateCallback(tmp_path / "first", stop_on_signals=("SIGUSR1",)))
        first.register_for_checkpointing(SendsInFinalState(first))
        train(first)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert handled == []
        second = make_trainer(SaveTrainingStateCallback(tmp_path / "second", stop_on_signals=("SIGUSR1",)))
        with pytest.raises(TrainingPreempted):
            train(second)
        assert second.num_updates_completed == 1
        os.kill(os.getpid(), signal.SIGUSR1)
        assert handled == [signal.SIGUSR1]


def test_a_script_that_continues_after_a_preemption_has_its_signals_back(tmp_path: Path) -> None:
    """Not before it is done with the exception: until then it may be about to end by it. Two callbacks may watch."""
    states = SaveTrainingStateCallback(tmp_path / "one", stop_on_signals=("SIGUSR1",))
    second = SecondSave(tmp_path / "two", stop_on_signals=("SIGUSR1",))
    send = CallAt("on_optimizer_step_end", lambda _: os.kill(os.getpid(), signal.SIGUSR1))
    trainer = make_trainer(states, second, send)
    with own_handler() as handled:
        try:
            train(trainer)
        except TrainingPreempted:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert handled == []
        os.kill(os.getpid(), signal.SIGUSR1)
        assert handled == [signal.SIGUSR1]


class SecondSave(SaveTrainingStateCallback):
    """A trainer has one callback of each class."""
