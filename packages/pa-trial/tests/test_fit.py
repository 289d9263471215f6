"""What fit is asked for, which events it has, and that two processes do the same, also when launched in bf16."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler
from typing_extensions import override

import pa_trial
from pa_distributed import RanksDifferError, gather_objects
from pa_trial import Batch, DataLoader, Epoch, InvalidExperimentException, PyTorchCallback, PyTorchTrialContext
from pa_trial.collectives import rank
from pa_trial.errors import ArgumentTypeError, ConfigurationError
from pa_trial.trainer import Trainer
from pa_trial.units import TrainUnit
from tests.support.models import weights_of
from tests.support.trials import TinyTrial, TrialT, fit, fit_and_fail, raising, returning, samples, variant

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "max_length=None"),
    ({"max_length": 3}, TypeError, "max_length=3"),
    ({"max_length": Batch([3])}, TypeError, r"max_length=Batch\(\[3\]\)"),
    ({"max_length": Epoch(range(3))}, TypeError, "Epoch"),
    ({"max_length": Batch(cast("int", 2.5))}, TypeError, "2.5"),
    ({"max_length": Batch(True)}, TypeError, "True"),
    ({"max_length": TrainUnit(3)}, TypeError, "TrainUnit"),
    ({"max_length": Batch(-1)}, ValueError, "-1"),
    ({"max_length": Batch(1), "validation_period": 1}, TypeError, "validation_period=1"),
    ({"max_length": Batch(1), "checkpoint_period": "1"}, TypeError, "checkpoint_period='1'"),
    ({"max_length": Batch(1), "checkpoint_period": Batch(cast("int", "12"))}, TypeError, "Batch"),
    ({"max_length": Batch(1), "reporting_period": None}, TypeError, "reporting_period=None"),
    ({"max_length": Batch(1), "checkpoint_policy": "sometimes"}, ValueError, '"best", "all" or "none", got .sometimes'),
    ({"max_length": Batch(1), "checkpoint_policy": None}, ValueError, "None"),
    ({"max_length": Batch(1), "latest_checkpoint": 7}, TypeError, "latest_checkpoint=7"),
    ({"max_length": Batch(1), "test_mode": "yes"}, TypeError, "test_mode must be True or False, got 'yes'"),
]


@pytest.mark.parametrize(("asked", "error", "text"), REFUSED, ids=[str(asked) for asked, _, _ in REFUSED])
def test_what_cannot_work_is_refused_before_anything_is_done(
    asked: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    """The error names what was given; no callback is built."""
    not_to_be_trained = variant(TinyTrial, build_callbacks=raising(AssertionError("the training has begun")))
    _, raised = fit_and_fail(not_to_be_trained, tmp_path, error, text, **asked)
    assert isinstance(raised, ArgumentTypeError | ConfigurationError)


def test_a_policy_without_a_metric_falls_back_with_a_warning(tmp_path: Path) -> None:
    """The default policy "best" then means "all"."""
    told = r"'best'.*falling back to checkpoint_policy='all'.*metric="
    with pytest.warns(UserWarning, match=told) as caught:
        trial = fit(TinyTrial, tmp_path, max_length=Batch(4), validation_period=Batch(2), checkpoint_policy="best")
    assert trial.notes.events == ["W2", "V2", "C2", "W4", "V4", "C4"]
    assert caught[0].filename.endswith("trials.py")


def test_periods_of_the_experiment_configuration(tmp_path: Path) -> None:
    """They count where fit is told none; so does the metric of the searcher."""
    configuration = {
        "scheduling_unit": 2,
        "min_validation_period": {"epochs": 1},
        "min_checkpoint_period": {"batches": 3},
        "searcher": {"metric": "val_loss"},
    }
    with pa_trial.init(checkpoint_dir=tmp_path, exp_conf=configuration, seed=0) as context:
        trial = TinyTrial(context)
        trainer = Trainer(trial, context)
        trainer.fit(max_length=Batch(6))
        assert " ".join(trial.notes.events) == "W2 W3 C3 W4 V4 C4 W6 C6 V6"
        trial.notes.events.clear()
        trainer.fit(
            max_length=Batch(6),
            reporting_period=Batch(5),
            validation_period=Batch(9),
            checkpoint_period=Batch(9),
            checkpoint_policy="none",
        )
        assert " ".join(trial.notes.events) == "W5 W6 V6 C6"


def test_settings_of_the_platforms_profiler_are_warned_of(tmp_path: Path) -> None:
    """They have no effect, and training goes on."""
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        trainer = Trainer(TinyTrial(context), context)
        with pytest.warns(UserWarning, match="set_profiler") as caught:
            trainer.configure_profiler(sync_timings=True, enabled=True, begin_on_batch=0, end_after_batch=1)
        assert caught[0].filename == __file__
        with pytest.warns(UserWarning, match="profiling_enabled"):
            trainer.fit(max_length=Batch(1), checkpoint_policy="none", profiling_enabled=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.configure_profiler(sync_timings=True, enabled=False, begin_on_batch=0, end_after_batch=1)


# The trial


def test_what_is_no_trial_or_no_context(tmp_path: Path) -> None:
    """The class instead of an instance; what init returns instead of what it yields; either after the block."""
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        with pytest.raises(TypeError, match="not a trial"):
            Trainer(cast("TinyTrial", TinyTrial), context).fit(max_length=Batch(1))
        trial = TinyTrial(context)
        with pytest.raises(TypeError, match="context"):
            Trainer(trial, cast("PyTorchTrialContext", pa_trial.init()))
        trainer = Trainer(trial, context)
    for late in (lambda: trainer.fit(max_length=Batch(1)), lambda: Trainer(trial, context)):
        with pytest.raises(pa_trial.InternalException, match="with block"):
            late()


@pytest.mark.parametrize(("missing", "lists"), [("optimizer", ["optimizers"]), ("model", ["models", "optimizers"])])
def test_at_least_one_model_and_one_optimizer(missing: str, lists: list[str], tmp_path: Path) -> None:
    """A trial that forgot to wrap them would train nothing."""

    def make(context: PyTorchTrialContext) -> TinyTrial:
        trial = TinyTrial(context)
        for name in lists:
            getattr(context, name).clear()
        return trial

    fit_and_fail(make, tmp_path, InvalidExperimentException, f"no wrapped {missing}", max_length=Batch(1))


def test_a_second_fit_begins_anew(tmp_path: Path) -> None:
    """With the weights of the first, and counters and callbacks of its own."""
    with pa_trial.init(checkpoint_dir=tmp_path, seed=0) as context:
        trial = TinyTrial(context)
        trainer = Trainer(trial, context)
        trainer.fit(max_length=Batch(2), checkpoint_policy="none")
        trainer.fit(max_length=Batch(3), checkpoint_policy="none")
    assert trial.trained == [(0, 0), (0, 1), (0, 0), (0, 1), (0, 2)]
    assert trial.notes.events == ["W2", "V2", "C2", "W3", "V3", "C3"]


def test_one_training_after_the_other(tmp_path: Path) -> None:
    """A call within another one is refused."""

    def before_batch(trial: TinyTrial, _batch_idx: int) -> None:
        Trainer(trial, trial.context).fit(max_length=Batch(1))

    fits_within = variant(TinyTrial, before_batch=before_batch)
    fit_and_fail(fits_within, tmp_path, pa_trial.InternalException, "within", max_length=Batch(1))


def test_a_resumed_training_keeps_its_seed(tmp_path: Path) -> None:
    """Another one has no effect, and is warned of."""
    fit(TinyTrial, tmp_path, max_length=Batch(2))
    (checkpoint,) = tmp_path.iterdir()
    with pytest.warns(UserWarning, match="seed=7"):
        fit(TinyTrial, tmp_path, settings={"seed": 7}, max_length=Batch(3), latest_checkpoint=checkpoint.name)


EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "workloads, validations and checkpoints of periods of their own": (
        {"max_length": Batch(10), "validation_period": Epoch(1), "checkpoint_period": Batch(3)},
        "W3 C3 W4 V4 W6 C6 W8 V8 W9 C9 W10 V10 C10",
    ),
    "a validation after every batch": (
        {"max_length": Epoch(2), "validation_period": Batch(0)},
        "W1 V1 W2 V2 W3 V3 W4 V4 W5 V5 W6 V6 W7 V7 W8 V8 C8",
    ),
    "schedules": (
        {"max_length": Epoch(3), "validation_period": Epoch([1, 3]), "checkpoint_period": Batch([2, 5, 99])},
        "W2 C2 W4 V4 W5 C5 W12 V12 C12",
    ),
    "a checkpoint after every validation": (
        {"max_length": Batch(6), "validation_period": Batch(4), "checkpoint_policy": "all"},
        "W4 V4 C4 W6 V6 C6",
    ),
    "a report cuts workloads": ({"max_length": Batch(6), "reporting_period": Epoch(1)}, "W4 W6 V6 C6"),
    "the last checkpoint before the last validation": (
        {"max_length": Epoch(1), "checkpoint_period": Epoch(1), "reporting_period": Batch(3)},
        "W3 W4 C4 V4",
    ),
    "a checkpoint after the last validation by policy, though one was due before": (
        {"max_length": Epoch(1), "checkpoint_period": Epoch(1), "checkpoint_policy": "all"},
        "W4 C4 V4",
    ),
    "nothing to train": ({"max_length": Batch(0)}, ""),
    "no epoch to train": ({"max_length": Epoch(0)}, ""),
    "one batch": ({"max_length": Epoch(5), "test_mode": True}, "W1 V1 C1"),
    "one batch, with a policy": ({"max_length": Epoch(5), "test_mode": True, "checkpoint_policy": "all"}, "W1 V1 C1"),
    "a validation before the training": (
        {"max_length": Batch(2), "step_zero_validation": True, "checkpoint_policy": "all"},
        "V0 W2 V2 C2",
    ),
    "no period": ({"max_length": Epoch(2)}, "W8 V8 C8"),
}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("name", EVENTS)
def test_events(name: str, shared_tmp_path: Path) -> None:
    """W: a workload ends, V: a validation ends, C: a checkpoint is complete; the number: batches done by then."""
    asked, expected = EVENTS[name]
    assert " ".join(fit(TinyTrial, shared_tmp_path, **asked).notes.events) == expected


class Batches:
    """Indices of four batches, which it does not count."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3], [4, 5], [6, 7]])


class WithoutLength(TinyTrial):
    """Its epochs never end, as nothing tells how long they are; it stops by itself."""

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(samples(), batch_sampler=cast("BatchSampler", Batches()))

    @override
    def before_batch(self, batch_idx: int) -> None:
        self.context.set_stop_requested(batch_idx == 9)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_epochs_without_a_length_never_end(shared_tmp_path: Path) -> None:
    """A length in epochs is warned of, as it is never reached."""
    asked: dict[str, Any] = {"max_length": Epoch(1), "reporting_period": Batch(5), "validation_period": Epoch(1)}
    with pytest.warns(UserWarning, match="is never reached"):
        trial = fit(WithoutLength, shared_tmp_path, **asked)
    assert trial.notes.events == ["W5", "W10", "C10"]
    assert {epoch_idx for epoch_idx, _ in trial.trained} == {0}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("returned", [None, [1.0], 0.5, "loss"])
def test_what_a_batch_must_return(returned: Any, shared_tmp_path: Path) -> None:
    """Metrics by name, or one tensor: the rest is refused."""
    returns = variant(TinyTrial, train_batch=returning(returned))
    _, error = fit_and_fail(
        returns,
        shared_tmp_path,
        TypeError,
        r'train_batch returned no metrics(.|\n)*Return {"loss": loss}',
        max_length=Batch(1),
    )
    assert isinstance(error, AttributeError)


class Shuffled(TinyTrial):
    """Keeps its samples, which come in a random order."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.seen: list[float] = []

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(samples(32), batch_size=4, shuffle=True)

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.seen += batch[1].flatten().tolist()
        return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.mark.runs_on("two_ranks")
def test_ranks_that_were_seeded_apart_share_one_order(shared_tmp_path: Path) -> None:
    """They go through one permutation, in shares that do not overlap."""
    torch.manual_seed(rank())
    trial = fit(Shuffled, shared_tmp_path, settings={"seed": None}, max_length=Epoch(1))
    first, second = gather_objects(trial.seen)
    assert sorted(first + second) == sorted(samples(32).tensors[1].flatten().tolist())


class OtherRate(TinyTrial):
    """The learning rate of the second rank is another one."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank())


class OtherCallbacks(TinyTrial):
    """The second rank has a callback more."""

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return super().build_callbacks() | ({"more": PyTorchCallback()} if rank() else {})


class OtherSamples(TinyTrial):
    """The second rank has more samples."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.num_samples = 16 + 4 * rank()


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize(
    ("trial_class", "text"),
    [
        (OtherRate, "lr: 0.1 on rank 0, 0.2 on rank 1"),
        (OtherCallbacks, "callback more"),
        (OtherSamples, "training loader"),
        (TinyTrial, r"max_length: .*2.* on rank 0, .*3.* on rank 1"),
    ],
)
def test_ranks_that_differ(trial_class: type[TinyTrial], text: str, shared_tmp_path: Path) -> None:
    """What the trials have, or are asked for, is refused on both before anything is trained, and named."""
    length = Batch(2 + rank()) if trial_class is TinyTrial else Batch(2)
    trial, _ = fit_and_fail(trial_class, shared_tmp_path, RanksDifferError, text, max_length=length)
    assert trial.trained == []


class NotesPrecision(TinyTrial):
    """Notes in which precision its model computes."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.seen: set[torch.dtype] = set()
        self.model.register_forward_hook(self._note)

    def _note(self, _model: nn.Module, _inputs: Any, output: Tensor) -> None:
        self.seen.add(output.dtype)


class OwnAutocast(NotesPrecision):
    """Computes its losses in bf16, as any loop of torch does."""

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        with torch.autocast("cpu", torch.bfloat16):
            return super().train_batch(batch, epoch_idx, batch_idx)


def launched_in_bf16(trial_class: type[TrialT], folder: Path) -> TrialT:
    """Train a trial after `accelerate launch --mixed_precision bf16`, which it warns of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        with pytest.warns(UserWarning, match=r"MIXED_PRECISION=bf16 of accelerate launch has no effect on a trial"):
            return fit(trial_class, folder, max_length=Batch(4))


def in_full_precision(folder: Path) -> NotesPrecision:
    """The same trial after `accelerate launch --mixed_precision no`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_MIXED_PRECISION", "no")
        return fit(NotesPrecision, folder, max_length=Batch(4))


@pytest.mark.runs_on("bf16", "two_ranks")
def test_a_trial_launched_in_bf16_warns_and_trains_in_full_precision(shared_tmp_path: Path) -> None:
    """Its model computes in fp32, and it ends with the bits that it has when it was launched without."""
    bf16 = launched_in_bf16(NotesPrecision, shared_tmp_path / "bf16")
    assert bf16.seen == {torch.float32}
    assert torch.equal(weights_of(bf16.model), weights_of(in_full_precision(shared_tmp_path / "fp32").model))


@pytest.mark.runs_on("bf16", "two_ranks")
def test_autocast_of_a_trial_computes_in_bf16_and_keeps_weights_in_fp32(shared_tmp_path: Path) -> None:
    """Gradients, weights and the validation are fp32; all processes have the same weights, near those without."""
    trial = launched_in_bf16(OwnAutocast, shared_tmp_path / "own")
    weights, plain = weights_of(trial.model), weights_of(in_full_precision(shared_tmp_path / "plain").model)
    assert trial.seen == {torch.bfloat16, torch.float32}
    assert weights.dtype is torch.float32
    assert not torch.equal(weights, plain)
    assert torch.allclose(weights, plain, atol=0.02)
    (first, *others) = gather_objects(weights.tolist())
    assert all(other == first for other in others)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_trial_with_autocast_is_resumed_with_identical_weights(shared_tmp_path: Path) -> None:
    """Stopped after two batches and continued to four, it ends as one that went through."""
    whole = fit(OwnAutocast, shared_tmp_path / "whole", max_length=Batch(4))
    fit(OwnAutocast, shared_tmp_path / "parts", max_length=Batch(2))
    (checkpoint,) = (path.name for path in (shared_tmp_path / "parts").iterdir() if path.is_dir())
    resumed = fit(OwnAutocast, shared_tmp_path / "parts", max_length=Batch(4), latest_checkpoint=checkpoint)
    assert torch.bfloat16 in resumed.seen
    assert torch.equal(weights_of(resumed.model), weights_of(whole.model))
