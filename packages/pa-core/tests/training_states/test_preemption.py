"""A machine that is taken away: the run saves a state in time, leaves with a status of its own, and goes on later."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from pa_core import (
    AnyTrainer,
    ConfigurationError,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    TrainerCallback,
    TrainingPreempted,
    distributed,
)
from pa_core.storage import StateFolder
from pa_core.testing import RecordingCallback
from tests.support.callbacks import CallAt
from tests.support.pa_core.training_states.preempted_runs import SignalAt, own_handler, preemptible
from tests.support.pa_core.training_states.small_runs import make_trainer, train

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
            assert [record.complete for record in StateFolder(folder).records()] == [False]
        assert train(trainer_with(preemptible(folder)), resume_from=folder) == expected, (event, call)


def test_an_evaluation_is_left_between_two_of_its_batches(tmp_path: Path) -> None:
    """Nobody waits for the rest of it, and no metric is recorded of what was seen."""
    recorder = RecordingCallback()
    trainer = make_trainer(preemptible(tmp_path), recorder, SignalAt("on_eval_step_end", 2))
    with pytest.raises(TrainingPreempted):
        train(trainer)
    assert recorder.events.count("on_eval_step_end") == 2
    assert recorder.events[-3:] == ["on_preemption", "on_training_state_save", "on_exception"]
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


def test_a_script_may_ask_itself(tmp_path: Path) -> None:
    """Whatever else tells it that its time is over; without a callback that saves, it just leaves."""
    ask = CallAt("on_optimizer_step_end", AnyTrainer.request_preemption, 5)
    trainer = make_trainer(ask, SaveTrainingStateCallback(tmp_path))
    with pytest.raises(TrainingPreempted):
        train(trainer)
    assert [record.update for record in StateFolder(tmp_path).records()] == [5]
    with pytest.raises(TrainingPreempted):
        train(make_trainer(ask))


def test_signals_can_be_watched_in_the_main_thread_only(tmp_path: Path) -> None:
    """Elsewhere Python brings none, and the run would be killed in the end: an error says so at once."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            train(make_trainer(preemptible(tmp_path)))
        except ConfigurationError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_unknown_signals_and_intervals_are_refused(tmp_path: Path) -> None:
    """When the callback is made, with what was given."""
    with pytest.raises(ConfigurationError, match="SIGTREM"):
        SaveTrainingStateCallback(tmp_path, stop_on_signals=("SIGTREM",))
    with pytest.raises(ConfigurationError, match=r"save_every_n_seconds must be .* got 0"):
        SaveTrainingStateCallback(tmp_path, save_every_n_seconds=0)
    with pytest.raises(ConfigurationError, match="save_every_n_steps"):
        SaveTrainingStateCallback(tmp_path, save_every_n_steps=0)
