"""Ends before their time: requests of the trial and of callbacks, signals, hyperparameters that cannot work.

On two processes, one of them asks, or is told, and both end after the same batch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from pa_trial import Batch, DataLoader, InvalidHP, PyTorchTrialContext
from pa_trial.collectives import num_processes, rank
from tests.launching import Launch
from tests.support.trials import TinyTrial, callback, fit, fit_and_fail, raising, samples, variant

on_both = pytest.mark.runs_on("one_process", "two_ranks")


class Asks(TinyTrial):
    """Asks to stop in its second batch, on one process."""

    asking = -1

    @override
    def before_batch(self, batch_idx: int) -> None:
        if batch_idx == 1 and rank() == self.asking % num_processes():
            self.ask()

    def ask(self) -> None:
        """Ask to stop."""
        self.context.set_stop_requested(True)


STOPS: dict[str, tuple[dict[str, Any], str]] = {
    "where the next boundary is": ({"validation_period": Batch(4)}, "W4 V4 C4"),
    "after a validation that the policy saved": (
        {"validation_period": Batch(4), "checkpoint_policy": "all"},
        "W4 V4 C4",
    ),
    "after a checkpoint": ({"checkpoint_period": Batch(3)}, "W3 C3"),
    "after a report": ({"reporting_period": Batch(2)}, "W2 C2"),
    "before the checkpoint that is due too": (
        {"validation_period": Batch(4), "checkpoint_period": Batch(4)},
        "W4 V4 C4",
    ),
    "at the end, without the last validation": ({"max_length": Batch(5)}, "W5 C5"),
    "at the end, before what is due too": (
        {"max_length": Batch(4), "validation_period": Batch(4), "checkpoint_policy": "all"},
        "W4 C4",
    ),
}


@on_both
@pytest.mark.parametrize("name", STOPS)
def test_a_request_of_one_rank_stops_both(name: str, shared_tmp_path: Path) -> None:
    """It does not cut a workload short: training ends at the next boundary, saved and without a last validation."""
    asked, expected = STOPS[name]
    asked.setdefault("max_length", Batch(100))
    trial = fit(Asks, shared_tmp_path, **asked)
    assert trial.context.get_stop_requested()
    assert " ".join(trial.notes.events) == expected


@on_both
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("on_training_start", "W2 C2"),
        ("on_training_epoch_start", "W2 C2"),
        ("on_training_workload_end", "W2 C2"),
        ("on_validation_start", "W2 W3 V3 C3"),
        ("on_validation_end", "W2 W3 V3 C3"),
        ("on_checkpoint_write_end", "W2 W4 W5 C5"),
        ("on_checkpoint_upload_end", "W2 W4 W5 C5"),
    ],
)
def test_a_request_of_a_callback(method: str, expected: str, shared_tmp_path: Path) -> None:
    """It is seen at the boundary whose work the callback is called in, also if only the chief's asks."""

    def make(context: PyTorchTrialContext) -> TinyTrial:
        def ask(*_args: object, **_kwargs: object) -> None:
            context.set_stop_requested(rank() == 0)

        trial = TinyTrial(context)
        trial.callbacks["asks"] = callback(**{method: ask})
        return trial

    trial = fit(
        make,
        shared_tmp_path,
        max_length=Batch(100),
        reporting_period=Batch(2),
        validation_period=Batch(3) if "validation" in method else None,
        checkpoint_period=Batch(5),
    )
    assert " ".join(trial.notes.events) == expected


def test_a_request_that_is_taken_back(tmp_path: Path) -> None:
    """It counts at the boundary, not before."""

    def before_batch(trial: TinyTrial, batch_idx: int) -> None:
        trial.context.set_stop_requested(batch_idx == 1)

    trial = fit(variant(TinyTrial, before_batch=before_batch), tmp_path, max_length=Batch(4))
    assert not trial.context.get_stop_requested()
    assert trial.notes.events == ["W4", "V4", "C4"]


# Signals


class Signalled(Asks):
    """A signal comes in its second batch."""

    number = signal.SIGTERM

    @override
    def ask(self) -> None:
        os.kill(os.getpid(), self.number)


@on_both
@pytest.mark.parametrize("asking", [0, -1])
@pytest.mark.parametrize(("aggregation_frequency", "expected"), [(1, ["W2", "C2"]), (3, ["W3", "C3"])])
def test_a_signal_cuts_a_workload_at_the_end_of_a_group(
    asking: int,
    aggregation_frequency: int,
    expected: list[str],
    shared_tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fit saves, leaves normally and says so in one line; then the signal does again what it did before."""
    before = signal.getsignal(signal.SIGTERM)
    settings = {"aggregation_frequency": aggregation_frequency}
    trial = fit(variant(Signalled, asking=asking), shared_tmp_path, settings=settings, max_length=Batch(100))
    assert trial.context.get_stop_requested()
    assert trial.notes.events == expected
    assert signal.getsignal(signal.SIGTERM) is before
    lines = capsys.readouterr().out.splitlines()
    assert [f"{expected[0][1:]} batches" in line for line in lines] == [True] * (rank() == 0)
    assert fit(TinyTrial, shared_tmp_path, max_length=Batch(4)).notes.events == ["W4", "V4", "C4"]


class SignalledWithWorkers(Signalled):
    """The signal comes to all processes, as launchers send it, to the workers of the loader first."""

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(samples(), batch_size=4, num_workers=1)

    @override
    def ask(self) -> None:
        (worker,) = multiprocessing.active_children()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGTERM)
        worker.join(0.5)
        super().ask()


class SignalledBefore(TinyTrial):
    """A signal comes before the training begins."""

    @override
    def build_validation_data_loader(self) -> DataLoader:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().build_validation_data_loader()


@pytest.mark.parametrize(
    ("trial_class", "settings", "expected"),
    [
        (SignalledWithWorkers, {"aggregation_frequency": 3}, ["W3", "C3"]),
        (SignalledBefore, {}, ["W1", "C1"]),
        (variant(Signalled, number=signal.SIGUSR1), {"stop_on_signals": "SIGUSR1"}, ["W2", "C2"]),
    ],
    ids=["to workers too, which go on", "before the first batch", "another signal, which init was told of"],
)
def test_a_signal_ends_a_training_in_order(
    trial_class: type[TinyTrial], settings: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    """Wherever it comes, at the end of the group of batches."""
    assert fit(trial_class, tmp_path, settings=settings, max_length=Batch(100)).notes.events == expected


# Hyperparameters that cannot work


def give_up(trial: TinyTrial, batch_idx: int, *, after: int = 1) -> None:
    """Find in a batch, on each process, that the hyperparameters cannot work."""
    if batch_idx == after:
        raise InvalidHP("the loss does not fall")


@on_both
@pytest.mark.parametrize(
    ("before_batch", "asked", "expected"),
    [
        (give_up, {}, ["C1"]),
        (give_up, {"checkpoint_period": Batch(1)}, ["W1", "C1"]),
        (partialmethod(give_up, after=0), {}, []),
    ],
    ids=["unsaved", "current", "nothing to save"],
)
def test_hyperparameters_that_cannot_work(
    before_batch: Any, asked: dict[str, Any], expected: list[str], shared_tmp_path: Path
) -> None:
    """A checkpoint is taken first unless the last one is current, callbacks end, and so does the program: in order."""
    unworkable = variant(TinyTrial, before_batch=before_batch)
    trial, ended = fit_and_fail(unworkable, shared_tmp_path, SystemExit, max_length=Batch(9), **asked)
    assert ended.code == 0
    assert trial.notes.events == expected
    assert len(list(shared_tmp_path.iterdir())) == ("C1" in expected)


@on_both
@pytest.mark.parametrize("method", ["on_checkpoint_save_start", "on_checkpoint_write_end", "on_checkpoint_upload_end"])
def test_hyperparameters_that_cannot_work_found_when_a_checkpoint_was_saved(method: str, shared_tmp_path: Path) -> None:
    """All processes end in order, though only the chief may call what found it; no second checkpoint is saved."""
    finds = callback(**{method: raising(InvalidHP("the checkpoints are too large"))})
    _, ended = fit_and_fail(TinyTrial, shared_tmp_path, SystemExit, callbacks={"finds": finds}, max_length=Batch(9))
    assert ended.code == 0
    assert len(list(shared_tmp_path.iterdir())) <= 1


# A process that fails


@pytest.mark.parametrize("failure", ["OSError", "InvalidHP"])
def test_a_rank_that_fails_alone_ends_the_others(failure: str, launch: Launch, tmp_path: Path) -> None:
    """None waits for it: the launcher fails soon, though the script would catch the error; its callbacks end before."""
    script = Path(__file__).parent / "fail_on_one_rank.py"
    path = os.pathsep.join([str(script.parents[3]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ended = launch(script, str(tmp_path / "checkpoints"), failure, ranks=2, env={"PYTHONPATH": path})
    assert ended.status != 0
    assert "a disk of this machine is gone" in ended.output
    assert "rank 1 shuts down" in ended.output
    assert "going on for ever" not in ended.output
