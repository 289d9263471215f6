"""Notices of a preemption and deadlines: a run saves a state in time, for a reason that all of its processes know."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from pa_checkpoint import Folder
from pa_core import (
    AnyTrainer,
    ArgumentTypeError,
    ConfigurationError,
    SaveAndContinue,
    SaveAndStop,
    SaveTrainingStateCallback,
    TrainingPreempted,
    distributed,
)
from pa_core.testing import RecordingCallback
from pa_distributed import SignalWatch
from tests.support.callbacks import CallAt, OfThisProcess
from tests.support.pa_core.training_states.preempted_runs import SignalAt, preemptible
from tests.support.pa_core.training_states.small_runs import DrawingDataset, make_trainer, train


class Answers:
    """A notice that answers what a test says when it was asked so often; it counts the questions."""

    def __init__(self, answers: dict[int, SaveAndContinue | SaveAndStop] | None = None, *, rank: int = 0) -> None:
        self.num_asked = 0
        self._answers = answers if answers is not None and rank in (distributed.rank(), -1) else {}

    def ask(self) -> SaveAndContinue | SaveAndStop | None:
        """Answer this question."""
        self.num_asked += 1
        return self._answers.get(self.num_asked)


class AsksTogether(Answers):
    """A notice that is a barrier, as that of some engines."""

    def __init__(self) -> None:
        super().__init__()
        self.of_each: list[list[int]] = []

    @override
    def ask(self) -> None:
        """Ask together with all other processes."""
        super().ask()
        self.of_each.append(distributed.gather_objects(self.num_asked))


def last_rank() -> int:
    """The rank that is asked last."""
    return distributed.num_processes() - 1


def preempted(trainer: Any, **options: Any) -> TrainingPreempted:
    """Train, and return what all processes raised at the end."""
    with pytest.raises(TrainingPreempted) as raised:
        train(trainer, **options)
    error = raised.value
    causes = distributed.gather_objects((error.reason, error.signal))
    assert causes == [causes[0]] * distributed.num_processes()
    return error


# Why a run was preempted


@pytest.mark.runs_on("one_process", "two_ranks")
def test_all_processes_know_the_signal_that_one_of_them_received(shared_tmp_path: Path) -> None:
    """By its name, and as a member of ``signal.Signals``."""
    error = preempted(make_trainer(preemptible(shared_tmp_path), SignalAt("on_train_step_end", 3, rank=last_rank())))
    assert (error.reason, error.signal) == ("SIGTERM", signal.SIGTERM)


@pytest.mark.runs_on("two_ranks")
def test_of_several_reasons_that_of_the_lowest_rank_counts() -> None:
    """And of one process its first."""

    def request(trainer: AnyTrainer) -> None:
        for number in (1, 2):
            trainer.request_preemption(f"reason {number} of rank {distributed.rank()}")

    assert preempted(make_trainer(CallAt("on_optimizer_step_end", request, 3))).reason == "reason 1 of rank 0"


def test_a_signal_that_the_script_watches_too_is_known(tmp_path: Path) -> None:
    """Although the watch of the script was there first."""
    with SignalWatch(("SIGUSR1",), lambda: None) as watch:
        error = preempted(make_trainer(preemptible(tmp_path), SignalAt("on_train_step_end", 3, signal.SIGUSR1)))
        watch.settle()
    assert error.signal is signal.SIGUSR1


def test_a_reason_of_a_failed_run_is_not_that_of_the_next_one() -> None:
    """The request ended with its run."""

    def fail(trainer: AnyTrainer) -> None:
        trainer.request_preemption("the first")
        raise KeyboardInterrupt

    trainer = make_trainer(CallAt("on_train_step_end", fail, 3))
    with pytest.raises(KeyboardInterrupt):
        train(trainer)
    trainer.callback_handler.remove_callback(trainer.callback_handler.callbacks[-1])
    trainer.request_preemption()
    error = preempted(trainer)
    assert (error.reason, error.signal) == ("", None)


def test_a_preemption_keeps_its_reason_on_the_way_to_another_process() -> None:
    """An engine pickles what its workers raise."""
    sent: TrainingPreempted = pickle.loads(pickle.dumps(TrainingPreempted("SIGTERM", signal.SIGTERM)))
    assert (sent.reason, sent.signal, sent.code) == ("SIGTERM", signal.SIGTERM, 75)


# Notices


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("asked", [3, 9, 13])
def test_a_notice_of_one_process_ends_the_run_on_all(
    shared_tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: int
) -> None:
    """In the training or within an evaluation; the resumed run ends as if there had been no notice."""
    expected = train(make_trainer())
    notice = Answers({asked: SaveAndStop("spare parts are needed")}, rank=last_rank())
    states = SaveTrainingStateCallback(shared_tmp_path, notices=[notice])
    error = preempted(make_trainer(states))
    assert (error.reason, error.signal, error.code) == ("spare parts are needed", None, 75)
    printed = capsys.readouterr().out
    assert ("Preempted (spare parts are needed) after update" in printed) is (distributed.rank() == 0)
    assert train(make_trainer(SaveTrainingStateCallback(shared_tmp_path)), resume_from=shared_tmp_path) == expected


def test_a_notice_is_asked_between_the_batches_of_an_evaluation(tmp_path: Path) -> None:
    """And the evaluation is left at once: seven updates make an epoch, and the second batch is the ninth question."""
    recorder = RecordingCallback()
    states = SaveTrainingStateCallback(tmp_path, notices=[Answers({9: SaveAndStop("now")})])
    preempted(make_trainer(states, recorder))
    assert recorder.events.count("on_eval_step_end") == 2
    assert recorder.events.count("on_eval_epoch_end") == 0


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_notice_may_let_the_run_continue_once_its_state_is_saved(shared_tmp_path: Path) -> None:
    """Once for each reason, although the notice repeats its answer."""
    again, other = SaveAndContinue("a node is leaving"), SaveAndContinue("another one")
    notice = Answers({2: again, 3: again, 4: again, 5: other, 6: other}, rank=last_rank())
    states = SaveTrainingStateCallback(shared_tmp_path, notices=[notice])
    trainer = make_trainer(states)
    train(trainer)
    later = 0 if distributed.num_processes() == 1 else 1  # the other processes learn of it with the next update
    names = [record.path.name for record in Folder(shared_tmp_path).records()]
    expected = [f"step_{2 + later}", f"step_{5 + later}", "final"]
    # Four updates are an epoch on two processes, and the fifth and sixth question are asked in its evaluation.
    assert names == (expected if later == 0 else ["step_3", "step_4", "final"])


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("ask_every", [1, 3])
def test_all_processes_ask_at_the_same_places(shared_tmp_path: Path, ask_every: int) -> None:
    """After the same updates and batches, so a question may wait for the others, even with shares of unequal size."""
    notice = AsksTogether()
    states = SaveTrainingStateCallback(shared_tmp_path, notices=[notice], ask_every=ask_every)
    train(make_trainer(states), eval_dataset=DrawingDataset(17))
    assert notice.of_each == [[number] * distributed.num_processes() for number in range(1, notice.num_asked + 1)]
    per_epoch = (7 + 3) if distributed.num_processes() == 1 else (4 + 2)
    assert notice.num_asked == 3 * per_epoch // ask_every


def test_a_notice_that_answers_differently_is_an_error(tmp_path: Path) -> None:
    """With the three answers that are known."""
    wrong = Answers({1: cast("SaveAndStop", "stop")})
    with pytest.raises(ArgumentTypeError, match=r"'stop'[\s\S]*SaveAndStop\(reason\) or None"):
        train(make_trainer(SaveTrainingStateCallback(tmp_path, notices=[wrong])))


@pytest.mark.parametrize("notice", [Answers, object(), lambda: None])
def test_an_object_that_is_no_notice_is_refused(notice: Any) -> None:
    """When the callback is made; a class, too."""
    with pytest.raises(ArgumentTypeError, match=r"has no method ask\(\)"):
        SaveTrainingStateCallback("states", notices=[notice])


# Deadlines


class Times(OfThisProcess):
    """Notes when states were on the disk, and takes some time for each update and each batch of an evaluation."""

    def __init__(self, seconds: float = 0.01, of_evaluation: float = 0.01) -> None:
        self.seconds = seconds
        self.of_evaluation = of_evaluation
        self.durable: list[float] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        time.sleep(self.of_evaluation)

    @override
    def on_training_state_saved(self, trainer: AnyTrainer, path: Path, update: int, **kwargs: Any) -> None:
        self.durable.append(time.time())


def slow_disk(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let each flush to the disk take some time."""
    fsync = os.fsync

    def wait_and_sync(descriptor: int) -> None:
        time.sleep(seconds)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", wait_and_sync)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("times", [Times(), Times(of_evaluation=0.3)], ids=["in the training", "in an evaluation"])
def test_the_last_state_is_on_the_disk_before_the_deadline(shared_tmp_path: Path, times: Times) -> None:
    """Of a run and of an evaluation that would take longer; nothing is lost, as the resumed run shows."""
    times.durable.clear()
    began = datetime.now(UTC)
    end = distributed.gather_objects(began + timedelta(seconds=2))[0]
    states = SaveTrainingStateCallback(shared_tmp_path, deadline=end, deadline_margin=0.5)
    error = preempted(make_trainer(states, times), num_epochs=100, eval_dataset=DrawingDataset(160))
    assert (error.reason, error.signal) == ("the deadline", None)
    assert began.timestamp() + 0.5 < times.durable[-1] < end.timestamp()
    (record,) = Folder(shared_tmp_path).records()
    states = SaveTrainingStateCallback(shared_tmp_path)
    options: dict[str, Any] = {"num_epochs": record.epoch + 1, "eval_dataset": DrawingDataset(160)}
    expected = train(make_trainer(), **options)
    assert train(make_trainer(states, Times(0, 0)), **options, resume_from=shared_tmp_path) == expected


@pytest.mark.parametrize("asynchronous", [False, True])
def test_slow_saves_are_begun_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:
    """The longest save so far says how long the last one will take, one in the background included."""
    slow_disk(monkeypatch, 0.05)
    end = datetime.now(UTC) + timedelta(seconds=3.5)
    times = Times()
    states = SaveTrainingStateCallback(
        tmp_path, save_every_n_steps=40, asynchronous=asynchronous, deadline=end, deadline_margin=0.01
    )
    preempted(make_trainer(states, times), num_epochs=1000)
    assert times.durable[-1] < end.timestamp()
    assert len(times.durable) >= 2


def test_until_a_save_was_measured_a_margin_is_kept(tmp_path: Path) -> None:
    """Of 60 seconds, unless another one was passed: this run ends after its first update."""
    times = Times()
    states = SaveTrainingStateCallback(tmp_path, deadline=datetime.now() + timedelta(seconds=50))
    trainer = make_trainer(states, times)
    assert preempted(trainer).reason == "the deadline"
    assert trainer.num_updates_completed == 1


def test_the_end_of_a_slurm_job_is_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm says it, in seconds since 1970."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3))
    times = Times()
    states = SaveTrainingStateCallback(tmp_path, deadline="slurm", deadline_margin=0.5)
    assert preempted(make_trainer(states, times), num_epochs=1000).reason == "the deadline"
    assert times.durable[-1] < int(os.environ["SLURM_JOB_END_TIME"])


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What squeue answers to this process, in a job of a version of Slurm that does not set its end."""
    answer, command = tmp_path / "answer", tmp_path / "bin" / "squeue"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$SLURM_TIME_FORMAT $@" >> {tmp_path}/questions\ncat {answer}\n')
    command.chmod(0o755)
    (tmp_path / "questions").touch()
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    return answer


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize(("array", "job"), [({}, "17"), ({"ARRAY_JOB_ID": "15", "ARRAY_TASK_ID": "2"}, "15_2")])
def test_slurm_is_asked_for_the_end_of_a_job_that_does_not_know_it(
    squeue: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: dict[str, str], job: str
) -> None:
    """By the first process alone, once per run; a task of an array asks for its own end."""
    squeue.write_text(f"{int(time.time()) + 3}\n")
    for name, value in array.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    states = SaveTrainingStateCallback(shared_tmp_path / "states", deadline="slurm", deadline_margin=0.5)
    assert preempted(make_trainer(states, Times()), num_epochs=1000).reason == "the deadline"
    assert time.time() < int(squeue.read_text())
    question = f"%s --noheader --jobs={job} --format=%e\n" if distributed.rank() == 0 else ""
    assert (squeue.parent / "questions").read_text() == question


@pytest.mark.parametrize("said", ["NONE", "slurm_load_jobs error: Unable to contact slurm controller", ""])
def test_the_answer_of_slurm_is_shown_if_it_is_no_time(squeue: Path, said: str) -> None:
    """Before the first step, with another way to give the limit."""
    squeue.write_text(said)
    trainer = make_trainer(SaveTrainingStateCallback(squeue.parent / "states", deadline="slurm"))
    with pytest.raises(ConfigurationError, match=rf"'{said}'[\s\S]*timedelta\(hours=4\)"):
        train(trainer)


@pytest.mark.parametrize(
    ("end", "given"), [(None, "no environment variable SLURM_JOB_END_TIME, and no squeue"), ("0", "'0'")]
)
def test_a_job_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch, end: str | None, given: str) -> None:
    """When the callback is made, with another way to give the limit."""
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    if end is not None:
        monkeypatch.setenv("SLURM_JOB_END_TIME", end)
    with pytest.raises(ConfigurationError, match=rf"{given}[\s\S]*timedelta\(hours=4\)"):
        SaveTrainingStateCallback("states", deadline="slurm")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"deadline": timedelta(seconds=30)}, "leaves no time to train, because 60 seconds"),
    ({"deadline": timedelta(seconds=-1), "deadline_margin": 1}, "leaves no time"),
    ({"deadline": 3600}, "deadline=3600"),
    ({"deadline": "torque"}, "deadline='torque'"),
    ({"deadline_margin": 0}, "deadline_margin must be a positive number, got 0"),
    ({"ask_every": 0}, "ask_every must be a whole number of at least 1, got 0"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_deadlines_that_cannot_be_met_are_refused(options: dict[str, Any], message: str) -> None:
    """When the callback is made."""
    with pytest.raises((ConfigurationError, ArgumentTypeError), match=message):
        SaveTrainingStateCallback("states", **options)


def test_a_deadline_that_has_passed_is_an_error_unless_the_run_is_complete(tmp_path: Path) -> None:
    """A job that is started again too late would otherwise make one update each time."""
    past = datetime.now() - timedelta(hours=1)
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path, deadline=past))
    with pytest.raises(ConfigurationError, match=r"has passed before its first update[\s\S]*timedelta"):
        train(trainer)
    train(make_trainer(SaveTrainingStateCallback(tmp_path)))
    train(make_trainer(SaveTrainingStateCallback(tmp_path, deadline=past)), resume_from=tmp_path)


def test_a_duration_begins_anew_with_each_run(tmp_path: Path) -> None:
    """Of the same callback, and of a job that is started again."""
    states = SaveTrainingStateCallback(tmp_path, deadline=timedelta(seconds=2), deadline_margin=1)
    trainer = make_trainer(states, Times())
    preempted(trainer, num_epochs=1000)
    first = trainer.num_updates_completed
    preempted(trainer, num_epochs=1000, resume_from=tmp_path)
    assert trainer.num_updates_completed > first + 5


def test_a_deadline_that_left_no_time_for_an_update_is_warned_of(tmp_path: Path) -> None:
    """A job that is started again and again would otherwise make no progress without a word."""
    train(make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=7)))
    options: dict[str, Any] = {"resume_from": tmp_path / "step_7", "eval_dataset": DrawingDataset(160)}
    states = SaveTrainingStateCallback(tmp_path / "second", deadline=datetime.now() + timedelta(seconds=30))
    with pytest.warns(UserWarning, match=r"no update before its deadline.*starts again would make no progress"):
        preempted(make_trainer(states), **options)


# Of one process only


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"deadline": timedelta(seconds=1.2), "deadline_margin": 0.8}, "the deadline"),
        ({"notices": [Answers({6: SaveAndStop("now")}, rank=-1)]}, "now"),
        ({"stop_on_signals": ("SIGTERM",)}, "SIGTERM"),
    ],
    ids=["deadline", "notices", "signals"],
)
def test_one_process_may_have_a_reason_to_end_that_the_others_were_not_given(
    shared_tmp_path: Path, options: dict[str, Any], reason: str, rank: int
) -> None:
    """For example because only one machine knows: the run ends on all, in an evaluation of which all know, too."""
    options = {"deadline_margin": 0.8} | (options if distributed.rank() == rank else {})
    callbacks = [SaveTrainingStateCallback(shared_tmp_path, **options), Times(0, 0.3)]
    sent = [SignalAt("on_eval_step_end", 2, rank=rank)] if reason == "SIGTERM" else []
    trainer = make_trainer(*callbacks, *sent)
    assert preempted(trainer, num_epochs=1000, eval_dataset=DrawingDataset(160)).reason == reason
    assert trainer.num_updates_completed == 4
    expected = train(make_trainer(), eval_dataset=DrawingDataset(160))
    callbacks = [SaveTrainingStateCallback(shared_tmp_path), Times(0, 0)]
    assert train(make_trainer(*callbacks), eval_dataset=DrawingDataset(160), resume_from=shared_tmp_path) == expected


@pytest.mark.runs_on("two_ranks")
def test_the_earliest_deadline_counts(shared_tmp_path: Path) -> None:
    """Of deadlines that differ, whether as a time or as a duration."""
    ends: list[timedelta | datetime] = [timedelta(hours=1), datetime.now() + timedelta(seconds=1.5)]
    states = SaveTrainingStateCallback(shared_tmp_path, deadline=ends[distributed.rank()], deadline_margin=0.8)
    times = Times()
    assert preempted(make_trainer(states, times), num_epochs=1000).reason == "the deadline"
    assert times.durable[-1] < cast("datetime", distributed.gather_objects(ends[distributed.rank()])[1]).timestamp()


# Without signals


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({"notices": [Answers({3: SaveAndStop("now")})]}, "the notices"),
        ({"deadline": timedelta(seconds=0.5), "deadline_margin": 0.3}, "the deadline"),
    ],
)
def test_in_a_thread_a_note_says_what_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], by: str
) -> None:
    """A script names its signals once, and runs in the threads of an engine that has its own notices, too."""
    ends: list[str] = []

    def run() -> None:
        try:
            train(make_trainer(preemptible(tmp_path, **options), Times()), num_epochs=1000)
        except TrainingPreempted as error:
            ends.append(error.reason)

    thread = threading.Thread(target=run, name="worker")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*stop_on_signals")
        thread.start()
        thread.join()
    assert ends == ["now" if by == "the notices" else "the deadline"]
    assert f"Signals do not reach the thread 'worker', so only {by} can end this run." in capsys.readouterr().out
