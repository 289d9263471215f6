"""A machine that is taken away: the run saves a state in time, leaves with a status of its own, and goes on later."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from pa_checkpoint import Folder
from pa_core import (
    AnyTrainer,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    TrainerCallback,
    TrainingPreempted,
    distributed,
)
from pa_core.testing import RecordingCallback
from tests.launching import Launch
from tests.support.callbacks import CallAt
from tests.support.pa_core.training_states.preempted_runs import SignalAt, own_handler, preemptible
from tests.support.pa_core.training_states.small_runs import DrawingDataset, SavesToo, make_trainer, train

PLACES = [
    ("on_train_step_start", 4),
    ("on_train_step_end", 12),
    ("on_train_epoch_start", 2),
    ("on_train_epoch_end", 1),
    ("on_eval_step_end", 2),
    ("on_eval_step_end", 5),
    ("on_eval_epoch_end", 3),
    ("on_optimizer_step_end", 6),
    ("on_training_run_start", 1),
]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_that_made_room_goes_on_as_if_it_had_not(shared_tmp_path: Path) -> None:
    """Wherever the signal arrives, on whichever process, also within evaluations, which are then done again."""

    def trainer_with(*more: TrainerCallback) -> Any:
        return make_trainer(StepBasedEvaluationCallback(4), *more)

    expected = train(trainer_with(), gradient_accumulation_steps=1)
    last_rank = distributed.num_processes() - 1
    for event, call in PLACES:
        folder = shared_tmp_path / f"{event}_{call}"
        with pytest.raises(TrainingPreempted) as preempted:
            train(trainer_with(preemptible(folder), SignalAt(event, call, rank=last_rank)))
        assert preempted.value.code == 75
        if distributed.rank() == 0:
            assert [record.complete for record in Folder(folder).records()] == [False]
        assert train(trainer_with(preemptible(folder)), resume_from=folder) == expected, (event, call)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_request_before_a_run_ends_it_after_its_first_update(shared_tmp_path: Path) -> None:
    """The next training is preempted, whichever process made the request, and the training after that is not."""
    trainer = make_trainer(preemptible(shared_tmp_path / "states"))
    if distributed.rank() == distributed.num_processes() - 1:
        trainer.request_preemption()
    trainer.evaluate(DrawingDataset(20))
    with pytest.raises(TrainingPreempted):
        train(trainer, sanity_eval_steps=1)
    assert trainer.num_updates_completed == 1
    assert [record.update for record in Folder(shared_tmp_path / "states").records()] == [1]
    train(trainer, resume_from=shared_tmp_path / "states")
    assert trainer.num_epochs_completed == 3


def test_a_request_in_a_run_that_failed_has_no_effect_on_the_next_run() -> None:
    """A second Ctrl-C, for example, ends a run at once, and its first one is forgotten."""

    def fail(trainer: AnyTrainer) -> None:
        trainer.request_preemption()
        raise KeyboardInterrupt

    trainer = make_trainer(CallAt("on_train_step_end", fail, 3))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(trainer)
        assert trainer.num_updates_completed == 3


def test_an_evaluation_is_left_between_two_of_its_batches(tmp_path: Path) -> None:
    """Nobody waits for the rest of it, and no metric is recorded of what was seen."""
    recorder = RecordingCallback()
    trainer = make_trainer(preemptible(tmp_path), recorder, SignalAt("on_eval_step_end", 2))
    with pytest.raises(TrainingPreempted):
        train(trainer)
    assert recorder.events.count("on_eval_step_end") == 2
    assert recorder.events[-4:-1] == ["on_preemption", "on_training_state_save", "on_training_state_saved"]
    assert set(trainer.run_history.get_metric_names()) == {"train_loss_epoch"}


def test_an_evaluation_that_no_state_could_repeat_is_brought_to_its_end() -> None:
    """Without a callback that saves, the run leaves after it."""
    recorder = RecordingCallback()
    with pytest.raises(TrainingPreempted):
        train(make_trainer(CallAt("on_eval_step_end", AnyTrainer.request_preemption), recorder))
    assert recorder.events.count("on_eval_epoch_end") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_each_signal_that_was_named_is_heeded_and_given_back(tmp_path: Path, number: signal.Signals) -> None:
    """After the run the script's own handlers are there again, however the run ended."""
    with own_handler(number):
        handle = signal.getsignal(number)
        with pytest.raises(TrainingPreempted):
            train(make_trainer(preemptible(tmp_path), SignalAt("on_train_step_end", 3, number)))
        assert signal.getsignal(number) is handle
        train(make_trainer(preemptible(tmp_path)), resume_from=tmp_path)
        assert signal.getsignal(number) is handle


def test_a_handler_that_the_script_sets_after_a_preemption_stays(tmp_path: Path) -> None:
    """Also when the exception, which is kept until then, is forgotten."""
    with own_handler():
        with pytest.raises(TrainingPreempted) as preempted:
            train(make_trainer(preemptible(tmp_path), SignalAt("on_train_step_end", 3, signal.SIGUSR1)))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        del preempted
        gc.collect()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_signals_are_the_scripts_own_unless_they_were_named(tmp_path: Path) -> None:
    """Saving states alone changes nothing about them."""
    with own_handler(signal.SIGTERM) as handled:
        train(make_trainer(SaveTrainingStateCallback(tmp_path), SignalAt("on_train_step_end", 3)))
    assert handled == [signal.SIGTERM]


def test_in_a_thread_a_run_is_told_of_preemption_otherwise(tmp_path: Path) -> None:
    """Python brings no signals there, so that one script serves a cluster, Ray and a notebook: a warning says how."""
    ends: list[BaseException] = []
    request = CallAt("on_optimizer_step_end", AnyTrainer.request_preemption, 3)

    def run() -> None:
        try:
            train(make_trainer(preemptible(tmp_path), request))
        except TrainingPreempted as error:
            ends.append(error)

    def run_elsewhere() -> None:
        thread = threading.Thread(target=run, name="worker")
        thread.start()
        thread.join()

    with pytest.warns(UserWarning, match=r"no effect in the thread 'worker'.*trainer\.request_preemption\(\)"):
        run_elsewhere()
    assert [type(one) for one in ends] == [TrainingPreempted]
    assert [record.update for record in Folder(tmp_path).records()] == [3]


def test_a_preempted_run_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When, after which signal, which state there is, and that the command is to be started again."""
    with pytest.raises(TrainingPreempted):
        train(make_trainer(preemptible(tmp_path), SignalAt("on_train_step_end", 3)))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Preempted")]
    assert re.fullmatch(
        r"Preempted by SIGTERM after update (\d+)\. The newest training state is step_\1: no update is lost\. "
        rf"Exit status 75: start the same command again, with resume_from='{tmp_path}'\. \(\d\d:\d\d:\d\d\)",
        line,
    )
    with pytest.raises(TrainingPreempted):
        train(make_trainer(preemptible(tmp_path), SignalAt("on_train_step_end", 3)), resume_from=tmp_path)
    assert "Exit status 75: start the same command again. (" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("every", "said"),
    [
        (None, r"No training state is saved: 3 updates are lost\."),
        (2, r"The newest training state is step_2: 1 update is lost\."),
        (3, r"The newest training state is step_3: no update is lost\."),
    ],
)
def test_a_run_that_is_left_by_ctrl_c_says_what_is_lost(
    every: int | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And how to lose nothing the next time."""
    interrupt = CallAt("on_train_step_start", lambda _trainer: os.kill(os.getpid(), signal.SIGINT), 3)
    with pytest.raises(KeyboardInterrupt):
        train(make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=every), interrupt))
    printed = capsys.readouterr().out
    assert re.search(
        rf"^Interrupted by Ctrl-C after update 3\. {said} With stop_on_signals=\(\"SIGINT\",\)", printed, re.M
    )


ENDED_BY_SIGTERM = """
import os, signal, sys, torch
from torch import nn
from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_regression

class Kill(TrainerCallback):
    def on_optimizer_step_end(self, trainer, update, **kwargs):
        if update == 5:
            os.kill(os.getpid(), signal.SIGTERM)

model = nn.Linear(4, 1)
save = SaveTrainingStateCallback("states", save_every_n_steps=2)
Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), [save, Kill()]).train(make_regression(80), 1)
"""


def test_a_run_that_sigterm_ends_leaves_a_line(launch: Launch) -> None:
    """It ends as it would have without the line: by the signal itself."""
    launched = launch(ENDED_BY_SIGTERM)
    assert launched.status == -signal.SIGTERM
    assert "Ended by SIGTERM after update 5. The newest training state is step_4: 1 update is lost." in launched.output


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
    signal.raise_signal(signal.SIGTERM)  # here, even if the other process has not begun yet
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
    assert ended.status == 75
    (line,) = ended.output.splitlines()
    assert line.startswith("Preempted by SIGTERM after update 3. The newest training state is step_3: no update is")
    assert [record.update for record in Folder(launch.folder / "states").records()] == [3]


@pytest.mark.parametrize("way", ["at once", "asynchronous"])
def test_a_signal_during_the_final_save_does_not_interrupt_it(launch: Launch, way: str) -> None:
    """The run is complete, and so is its state; the status is 0, as nothing is left to be done by another start."""
    ended = launch(SCRIPT, "final save", way)
    assert (ended.status, ended.output) == (0, "the script went on\n")
    assert [record.complete for record in Folder(launch.folder / "states").records()] == [True]


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
    second = SavesToo(tmp_path / "two", stop_on_signals=("SIGUSR1",))
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
