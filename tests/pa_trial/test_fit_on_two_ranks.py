"""Training on two processes: both do the same, after the same batches, whichever of them asks for it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from typing_extensions import override

import pa_trial
from pa_core import RanksDifferError, gather_objects
from pa_core.distributed import rank
from pa_trial import Batch, DataLoader, Epoch, InvalidHP, PyTorchCallback, PyTorchTrialContext
from tests.support.trials import TinyTrial, callback, fit, raising, samples, without_policy

if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.data import DataLoader as TorchDataLoader

pytestmark = pytest.mark.runs_on("two_ranks")


class OnTwoRanks(TinyTrial):
    """An epoch has four batches on each of the two."""

    num_samples = 32


def require_same(value: Any) -> None:
    """Both ranks have the same."""
    first, second = gather_objects(value)
    assert first == second


EVENTS: list[tuple[dict[str, Any], str]] = [
    (
        {"max_length": Batch(10), "validation_period": Epoch(1), "checkpoint_period": Batch(3)},
        "W3 C3 W4 V4 W6 C6 W8 V8 W9 C9 W10 V10 C10",
    ),
    ({"max_length": Batch(6), "validation_period": Batch(4), "checkpoint_policy": "all"}, "W4 V4 C4 W6 V6 C6"),
    ({"max_length": Epoch(1), "checkpoint_period": Epoch(1), "reporting_period": Batch(3)}, "W3 W4 C4 V4"),
    ({"test_mode": True}, "W1 V1 C1"),
]


@pytest.mark.parametrize(("asked", "expected"), EVENTS)
def test_events(asked: dict[str, Any], expected: str, shared_tmp_path: Path) -> None:
    """As on one process: batches are counted per process."""
    trial = fit(OnTwoRanks, shared_tmp_path, **asked)
    assert " ".join(trial.notes.events) == expected
    require_same([parameter.tolist() for parameter in trial.model.parameters()])


class TellsRank(OnTwoRanks):
    """Its metrics tell the rank."""

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        return {**super().train_batch(batch, epoch_idx, batch_idx), "rank": rank()}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        return {"rank": float(rank())}


def test_callbacks_on_both_ranks_hear_of_the_same_metrics(shared_tmp_path: Path) -> None:
    """They are those of all processes; the chief alone hears of the files of a checkpoint."""
    heard = fit(TellsRank, shared_tmp_path, max_length=Batch(3)).heard
    ((averages, batches),) = heard.training
    assert averages["rank"] == 0.5
    assert [metrics["rank"] for metrics in batches] == [0.5] * 3
    assert heard.validation == [{"rank": 0.5}]
    assert len(heard.folders) == (1 if rank() == 0 else 0)
    require_same(averages)


class ByDataset(TellsRank):
    """Validates on everything, on the chief."""

    evaluate_batch = pa_trial.PyTorchTrial.evaluate_batch

    @override
    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> dict[str, Any]:
        assert rank() == 0
        return {"records": sum(len(batch[0]) for batch in data_loader)}


def test_the_chief_validates_on_the_whole_dataset(shared_tmp_path: Path) -> None:
    """Both hear of what it found."""
    assert fit(ByDataset, shared_tmp_path, max_length=Batch(1)).heard.validation == [{"records": 8}]


class Shuffled(OnTwoRanks):
    """Keeps its samples, which come in a random order."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.seen: list[float] = []

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(samples(self.num_samples), batch_size=4, shuffle=True)

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.seen += batch[1].flatten().tolist()
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_ranks_that_were_seeded_apart_share_one_order(shared_tmp_path: Path) -> None:
    """They go through one permutation, in shares that do not overlap."""
    torch.manual_seed(rank())
    with pa_trial.init(checkpoint_dir=shared_tmp_path) as context:
        trial = Shuffled(context)
        pa_trial.Trainer(trial, context).fit(max_length=Epoch(1), checkpoint_policy="none")
    first, second = gather_objects(trial.seen)
    assert sorted(first + second) == sorted(samples(32).tensors[1].flatten().tolist())


# Requests to stop


class AsksOnOneRank(OnTwoRanks):
    """One of the ranks asks to stop in its second batch."""

    asking = 1

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == 1 and rank() == self.asking:
            self.ask()
        return super().train_batch(batch, epoch_idx, batch_idx)

    def ask(self) -> None:
        """Ask to stop."""
        self.context.set_stop_requested(True)


def test_a_request_of_one_rank_stops_both(shared_tmp_path: Path) -> None:
    """At the next boundary; both know then."""
    with pa_trial.init(checkpoint_dir=shared_tmp_path, seed=0) as context:
        trial = AsksOnOneRank(context)
        pa_trial.Trainer(trial, context).fit(
            **without_policy({"max_length": Batch(100), "validation_period": Batch(4)})
        )
        assert context.get_stop_requested()
    assert trial.notes.events == ["W4", "V4", "C4"]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("on_training_workload_end", "W2 C2"),
        ("on_validation_end", "W2 W3 V3 C3"),
        ("on_checkpoint_write_end", "W2 W3 V3 W4 W5 C5"),
    ],
)
def test_a_request_of_a_callback_on_one_rank_stops_both(method: str, expected: str, shared_tmp_path: Path) -> None:
    """At the same boundary as on one process."""
    with pa_trial.init(checkpoint_dir=shared_tmp_path, seed=0) as context:
        trial = OnTwoRanks(context)

        def ask(*_args: object) -> None:
            if rank() == 0:
                context.set_stop_requested(True)

        callback = PyTorchCallback()
        setattr(callback, method, ask)
        trial.callbacks["asks"] = callback
        pa_trial.Trainer(trial, context).fit(
            max_length=Batch(100),
            reporting_period=Batch(2),
            validation_period=Batch([3]),
            checkpoint_period=Batch(5),
            checkpoint_policy="none",
        )
    assert " ".join(trial.notes.events) == expected


class SignalledOnOneRank(AsksOnOneRank):
    """A signal comes on one rank."""

    @override
    def ask(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class SignalledOnChief(SignalledOnOneRank):
    """It comes on the other one."""

    asking = 0


@pytest.mark.parametrize("trial_class", [SignalledOnOneRank, SignalledOnChief])
@pytest.mark.parametrize(("aggregation_frequency", "expected"), [(1, ["W2", "C2"]), (3, ["W3", "C3"])])
def test_a_signal_on_one_rank_cuts_the_workload_of_both(
    trial_class: type[OnTwoRanks],
    aggregation_frequency: int,
    expected: list[str],
    shared_tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After the same batch, at the end of a group; the chief says so."""
    folder = shared_tmp_path
    with pa_trial.init(checkpoint_dir=folder, seed=0, aggregation_frequency=aggregation_frequency) as context:
        trial = trial_class(context)
        pa_trial.Trainer(trial, context).fit(max_length=Batch(100), checkpoint_policy="none")
        assert context.get_stop_requested()
    assert trial.notes.events == expected
    assert len(capsys.readouterr().out.splitlines()) == (1 if rank() == 0 else 0)


def test_hyperparameters_that_cannot_work_on_both_ranks(shared_tmp_path: Path) -> None:
    """What was trained is saved, and the program ends in order."""

    class Unworkable(AsksOnOneRank):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.asking = rank()

        @override
        def ask(self) -> None:
            raise InvalidHP("the loss does not fall")

    with pytest.raises(SystemExit) as ended:
        fit(Unworkable, shared_tmp_path, max_length=Batch(9))
    assert ended.value.code == 0
    assert len(list(shared_tmp_path.iterdir())) == 1


def test_hyperparameters_that_cannot_work_found_by_the_chief_when_it_saves(shared_tmp_path: Path) -> None:
    """Both ranks end in order, though only the chief calls what found it."""
    finds = callback(on_checkpoint_save_start=raising(InvalidHP("the checkpoints are too large")))
    with pytest.raises(SystemExit) as ended:
        fit(OnTwoRanks, shared_tmp_path, {"finds": finds}, max_length=Batch(2))
    assert ended.value.code == 0


# Ranks that differ


class OtherRate(OnTwoRanks):
    """The learning rate of the second rank is another one."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank())


class OtherCallbacks(OnTwoRanks):
    """The second rank has a callback more."""

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return super().build_callbacks() | ({"more": PyTorchCallback()} if rank() else {})


class OtherSamples(OnTwoRanks):
    """The second rank has more samples."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.num_samples = 32 + 8 * rank()


@pytest.mark.parametrize(
    ("trial_class", "text"),
    [
        (OtherRate, "lr: 0.1 on rank 0, 0.2 on rank 1"),
        (OtherCallbacks, "callback more"),
        (OtherSamples, "training loader"),
    ],
)
def test_ranks_whose_trials_differ(trial_class: type[OnTwoRanks], text: str, shared_tmp_path: Path) -> None:
    """It is refused on both before anything is trained."""
    with pytest.raises(RanksDifferError, match=text):
        fit(trial_class, shared_tmp_path, max_length=Batch(2))


def test_ranks_that_are_asked_for_different_things(shared_tmp_path: Path) -> None:
    """It is refused on both, and names what differs."""
    with pytest.raises(RanksDifferError, match=r"max_length: .*2.* on rank 0, .*3.* on rank 1"):
        fit(OnTwoRanks, shared_tmp_path, max_length=Batch(2 + rank()))
