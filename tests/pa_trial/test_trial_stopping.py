"""Ends before their time: requests of the trial and of callbacks, signals, hyperparameters that cannot work."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

import pa_trial
from pa_trial import Batch, DataLoader, InvalidHP
from pa_trial.trainer import Trainer
from tests.support.trials import TinyTrial, callback, fit, raising, samples, without_policy

if TYPE_CHECKING:
    from tests.launching import Launch


class Asks(TinyTrial):
    """Asks to stop in a batch."""

    asks_in = 1

    @override
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == self.asks_in:
            self.ask()
        return super().train_batch(batch, epoch_idx, batch_idx)

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


@pytest.mark.parametrize("name", STOPS)
def test_a_request_to_stop(name: str, tmp_path: Path) -> None:
    """It does not cut a workload short: training ends at the next boundary, saved and without a last validation."""
    asked, expected = STOPS[name]
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        trial = Asks(context)
        Trainer(trial, context).fit(**without_policy({"max_length": Batch(100), **asked}))
        assert context.get_stop_requested()
    assert " ".join(trial.notes.events) == expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("on_training_start", "W2 C2"),
        ("on_training_epoch_start", "W2 C2"),
        ("on_training_workload_end", "W2 C2"),
        ("on_validation_start", "W2 W3 V3 C3"),
        ("on_validation_end", "W2 W3 V3 C3"),
        ("on_checkpoint_upload_end", "W2 W4 W5 C5"),
    ],
)
def test_a_request_of_a_callback(method: str, expected: str, tmp_path: Path) -> None:
    """It is seen at the boundary whose work the callback is called in."""
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        trial = TinyTrial(context)

        def ask(*_args: object, **_kwargs: object) -> None:
            context.set_stop_requested(True)

        trial.callbacks["asks"] = callback(**{method: ask})
        validation = Batch(3) if "validation" in method else None
        Trainer(trial, context).fit(
            max_length=Batch(100),
            reporting_period=Batch(2),
            validation_period=validation,
            checkpoint_period=Batch(5),
            checkpoint_policy="none",
        )
    assert " ".join(trial.notes.events) == expected


def test_a_request_that_is_taken_back(tmp_path: Path) -> None:
    """It counts at the boundary, not before."""

    class TakesBack(Asks):
        @override
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            if batch_idx == 2:
                self.context.set_stop_requested(False)
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        trial = TakesBack(context)
        Trainer(trial, context).fit(max_length=Batch(4), checkpoint_policy="none")
        assert not context.get_stop_requested()
    assert trial.notes.events == ["W4", "V4", "C4"]


# Signals


class Signalled(Asks):
    """A signal comes in its second batch."""

    @override
    def ask(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("aggregation_frequency", "expected"), [(1, ["W2", "C2"]), (3, ["W3", "C3"])])
def test_a_signal_cuts_a_workload_at_the_end_of_a_group(
    aggregation_frequency: int, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fit saves, leaves normally and says so in one line; then the signal does again what it did before."""
    before = signal.getsignal(signal.SIGTERM)
    with pa_trial.init(checkpoint_dir=tmp_path, aggregation_frequency=aggregation_frequency) as context:
        trial = Signalled(context)
        Trainer(trial, context).fit(max_length=Batch(100), checkpoint_policy="none")
        assert context.get_stop_requested()
    assert trial.notes.events == expected
    assert signal.getsignal(signal.SIGTERM) is before
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{expected[0][1:]} batches" in line
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        another = TinyTrial(context)
        Trainer(another, context).fit(max_length=Batch(4), checkpoint_policy="none")
    assert another.notes.events == ["W4", "V4", "C4"]


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


def test_a_signal_to_workers_too(tmp_path: Path) -> None:
    """They go on until the main process ends them."""
    with pa_trial.init(checkpoint_dir=tmp_path, aggregation_frequency=3) as context:
        trial = SignalledWithWorkers(context)
        Trainer(trial, context).fit(max_length=Batch(100), checkpoint_policy="none")
    assert trial.notes.events == ["W3", "C3"]


class SignalledBefore(TinyTrial):
    """A signal comes before the training begins."""

    @override
    def build_validation_data_loader(self) -> DataLoader:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().build_validation_data_loader()


def test_a_signal_before_the_first_batch(tmp_path: Path) -> None:
    """It counts at the end of the first group of batches."""
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        trial = SignalledBefore(context)
        Trainer(trial, context).fit(max_length=Batch(100), checkpoint_policy="none")
    assert trial.notes.events == ["W1", "C1"]


def test_other_signals(tmp_path: Path) -> None:
    """Those which init was told of count, and no others."""

    class OfUser(Asks):
        @override
        def ask(self) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

    with pa_trial.init(checkpoint_dir=tmp_path, stop_on_signals="SIGUSR1") as context:
        trial = OfUser(context)
        Trainer(trial, context).fit(max_length=Batch(100), checkpoint_policy="none")
    assert trial.notes.events == ["W2", "C2"]


# Hyperparameters that cannot work


class Unworkable(Asks):
    """Finds in a batch that its hyperparameters cannot work."""

    @override
    def ask(self) -> None:
        raise InvalidHP("the loss does not fall")


def train_within_init(trial_class: type[TinyTrial], folder: Path, trials: list[TinyTrial], **asked: Any) -> None:
    """Train a trial, which is in the list however it ends."""
    with pa_trial.init(checkpoint_dir=folder) as context:
        trials.append(trial_class(context))
        Trainer(trials[0], context).fit(max_length=Batch(9), checkpoint_policy="none", **asked)


@pytest.mark.parametrize(
    ("asked", "expected"), [({}, ["C1"]), ({"checkpoint_period": Batch(1)}, ["W1", "C1"])], ids=["unsaved", "current"]
)
def test_hyperparameters_that_cannot_work(asked: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    """A checkpoint is taken first unless the last one is current, callbacks end, and so does the program: in order."""
    trials: list[TinyTrial] = []
    with pytest.raises(SystemExit) as ended:
        train_within_init(Unworkable, tmp_path, trials, **asked)
    assert ended.value.code == 0
    assert trials[0].notes.events == expected


@pytest.mark.parametrize("method", ["on_checkpoint_write_end", "on_checkpoint_upload_end"])
def test_hyperparameters_that_cannot_work_found_when_a_checkpoint_was_saved(method: str, tmp_path: Path) -> None:
    """No second checkpoint of the same batch is saved."""
    finds = callback(**{method: raising(InvalidHP("the checkpoints are too large"))})
    with pytest.raises(SystemExit) as ended:
        fit(TinyTrial, tmp_path, {"finds": finds}, max_length=Batch(9))
    assert ended.value.code == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_hyperparameters_that_cannot_work_from_the_first_batch_on(tmp_path: Path) -> None:
    """There is nothing to save."""

    class AtOnce(Unworkable):
        asks_in = 0

    with pytest.raises(SystemExit):
        train_within_init(AtOnce, tmp_path, [])
    assert list(tmp_path.iterdir()) == []


# A process that fails


@pytest.mark.parametrize("failure", ["OSError", "InvalidHP"])
def test_a_rank_that_fails_alone_ends_the_others(failure: str, launch: Launch, tmp_path: Path) -> None:
    """None waits for it: the launcher fails soon, though the script would catch the error; its callbacks end before."""
    script = Path(__file__).parent / "fail_on_one_rank.py"
    path = os.pathsep.join([str(script.parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ended = launch(script, str(tmp_path / "checkpoints"), failure, ranks=2, env={"PYTHONPATH": path})
    assert ended.status != 0
    assert "a disk of this machine is gone" in ended.output
    assert "rank 1 shuts down" in ended.output
    assert "going on for ever" not in ended.output
