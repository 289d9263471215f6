"""Metrics: means over the samples of an epoch of what steps compute, and values that are no numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    ConfigurationError,
    LogMetricsCallback,
    ProgressBarCallback,
    RunHistory,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
    gather_objects,
    plot_run_history,
)
from pa_core.callbacks import progress_bar
from pa_core.distributed import rank
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt, KillAt, KilledError
from tests.support.histories import DocumentedHistory
from tests.support.pa_core.tensor_reads import Reads

NUM_SAMPLES, BATCH_SIZE = 25, 4  # of two processes, one has no sample in the last step
VALUES = torch.arange(NUM_SAMPLES, dtype=torch.float64) / 7


class LogsValues(Trainer[nn.Linear]):
    """Logs the mean of the inputs of each step, as a tensor that needs a gradient, and as a number."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self._logging(batch, super().calculate_train_batch_loss(batch))

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        return self._logging(batch, super().calculate_eval_batch_loss(batch))

    def _logging(self, batch: list[Tensor], output: dict[str, Any]) -> dict[str, Any]:
        self.log("value", batch[0].mean() + 0 * output["loss"])
        self.log("double", 2 * float(batch[0].mean()))
        return output


def make_trainer(*callbacks: Any, kind: type[Trainer[nn.Linear]] = LogsValues, **options: Any) -> Trainer[nn.Linear]:
    """A trainer of one weight."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1).double()
    return kind(model, nn.MSELoss(), SGD(model.parameters(), lr=0.01), callbacks=callbacks, **options)


def make_data(num_samples: int = NUM_SAMPLES) -> TensorDataset:
    """Samples with the value that is logged for them."""
    return TensorDataset(VALUES[:num_samples, None], VALUES[:num_samples, None])


def train(trainer: Trainer[nn.Linear], num_epochs: int = 1, **options: Any) -> None:
    """Train on all samples."""
    settings: dict[str, Any] = {"per_device_batch_size": BATCH_SIZE, "eval_dataset": make_data(10)}
    trainer.train(make_data(), num_epochs, **{**settings, **options})


def latest(trainer: AnyTrainer, name: str) -> float:
    """The last value of a metric."""
    return float(trainer.run_history.get_latest_metric(name))


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_the_mean_over_the_samples_of_all_processes_is_recorded(accumulation: int) -> None:
    """Each sample counts once, also of ranks that have fewer; evaluations within an epoch have their own names.

    A name that no step of an epoch logged has no value for that epoch.
    """
    in_first = CallAt("on_train_step_end", lambda one: one.log("first", 1.0) if one.num_epochs_completed == 0 else None)
    trainer = make_trainer(StepBasedEvaluationCallback(1), in_first)

    train(trainer, 2, gradient_accumulation_steps=accumulation)
    updates = trainer.run_config.num_update_steps_per_epoch
    trainer.evaluate(make_data(6), BATCH_SIZE, reset_run_history=False)

    evaluated = (("eval_{}_epoch", 10), ("intermediate_eval_{}_epoch", 10), ("evaluation_{}", 6))
    for name, num_samples in (("train_{}_epoch", NUM_SAMPLES), *evaluated):
        expected = VALUES[:num_samples].mean().item()
        assert latest(trainer, name.format("value")) == pytest.approx(expected, rel=1e-6)
        assert latest(trainer, name.format("double")) == pytest.approx(2 * expected, rel=1e-6)
    assert len(list(trainer.run_history.get_metric_values("intermediate_eval_value_epoch"))) == 2 * (updates - 1)
    assert len(list(trainer.run_history.get_metric_values("train_value_epoch"))) == 2
    assert trainer.run_history.get_metric_values("train_first_epoch") == [1.0]


class FromCallbacks(TrainerCallback):
    """Logs before and behind the forward pass and after the update, and notes for how many samples."""

    def __init__(self) -> None:
        self.updates: list[int] = []
        self.samples: list[int] = []

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.log("one", 1)

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        trainer.log("is_high", batch[0].mean() > 1)
        self.samples.append(len(batch[0]))

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        trainer.log("update", update)
        self.updates.append(update)


def mean_over_processes(values: list[float], weights: list[int]) -> float:
    """The weighted mean of what all processes have seen."""
    pairs = [pair for of_one in gather_objects(list(zip(values, weights, strict=False))) for pair in of_one]
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_callbacks_log_in_all_events_of_a_step() -> None:
    """A value of an event counts for the samples of its step; flags and whole numbers are numbers."""
    callback = FromCallbacks()
    trainer = make_trainer(callback)

    train(trainer, train_dataloader_kwargs={"shuffle": False})

    assert latest(trainer, "train_one_epoch") == 1
    # A rank without a sample in the last update has one update more than batches.
    expected = mean_over_processes([float(update) for update in callback.updates], callback.samples)
    assert latest(trainer, "train_update_epoch") == pytest.approx(expected)
    assert 0 < latest(trainer, "train_is_high_epoch") < 1


class LogsByRank(LogsValues):
    """Each rank logs a name of its own, and the first one a second name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[float] = []

    @override
    def _logging(self, batch: list[Tensor], output: dict[str, Any]) -> dict[str, Any]:
        self.seen += cast("list[float]", batch[0].flatten().tolist())
        self.log(f"of_rank_{rank()}", batch[0].mean())
        if rank() == 0:
            self.log("of_first", 3.0)
        return output


@pytest.mark.runs_on("two_ranks")
def test_ranks_may_log_different_names() -> None:
    """Each name is recorded on all ranks, as the mean over the samples for which it was logged."""
    trainer = make_trainer(kind=LogsByRank)

    train(trainer, eval_dataset=None)

    assert latest(trainer, "train_of_first_epoch") == 3
    of_each: list[list[float]] = gather_objects(cast("LogsByRank", trainer).seen)
    for number, seen in enumerate(of_each):
        assert latest(trainer, f"train_of_rank_{number}_epoch") == pytest.approx(sum(seen) / len(seen))


@pytest.mark.parametrize("last_saved", [1, 3, 5])
@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_resumed_in_mid_epoch_records_the_same_means(last_saved: int, shared_tmp_path: Path) -> None:
    """To the last bit, in the precision of the logged values."""
    whole = make_trainer(FromCallbacks())
    train(whole, num_epochs=2, per_device_batch_size=2)
    states = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=1)
    with pytest.raises(KilledError):
        train(make_trainer(FromCallbacks(), states, KillAt(last_saved + 1)), num_epochs=2, per_device_batch_size=2)

    resumed = make_trainer(FromCallbacks())
    train(resumed, num_epochs=2, per_device_batch_size=2, resume_from=shared_tmp_path)

    names = [name for name in whole.run_history.get_metric_names() if "value" in name or "update" in name]
    assert len(names) == 3
    for name in [*names, "train_loss_epoch"]:
        assert resumed.run_history.get_metric_values(name) == whole.run_history.get_metric_values(name)


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.runs_on("one_process", "two_ranks")
def test_means_of_a_reproducible_run_are_rounded_once(is_resumed: bool, shared_tmp_path: Path) -> None:
    """On any number of processes, and in a run that is resumed in mid-epoch."""
    values = VALUES * 10.0 ** (torch.arange(NUM_SAMPLES) % 7 - 3)
    data = TensorDataset(values[:, None], values[:, None])
    settings: dict[str, Any] = {"per_device_batch_size": 1, "samples_per_update": 2, "eval_dataset": data}
    if is_resumed:
        states = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=1)
        with pytest.raises(KilledError):
            make_trainer(states, KillAt(3), reproducible="any_processes").train(data, 1, **settings)
        settings["resume_from"] = shared_tmp_path
    trainer = make_trainer(reproducible="any_processes")
    trainer.train(data, 1, **settings)
    expected = float(2 * sum(map(Fraction, values.tolist()), Fraction()) / NUM_SAMPLES)
    assert expected != 2 * sum(values.tolist()) / NUM_SAMPLES
    assert [latest(trainer, f"{part}_double_epoch") for part in ("train", "eval")] == [expected] * 2


def test_the_progress_shows_the_mean_so_far(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the loss, and at the end of the epoch the one that is recorded."""
    monkeypatch.setattr(progress_bar, "SECONDS_BETWEEN_LINES", 0.0)
    trainer = make_trainer(ProgressBarCallback())

    train(trainer, train_dataloader_kwargs={"shuffle": False}, eval_dataset=None)

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch 1: ")]
    assert f", value={VALUES[:4].mean().item():.4g}, double={2 * VALUES[:4].mean().item():.4g}, lr=" in lines[0]
    assert f", value={VALUES.mean().item():.4g}, double=" in lines[-1]


class LogsTensors(LogsValues):
    """Logs a tensor that is there already."""

    @override
    def _logging(self, batch: list[Tensor], output: dict[str, Any]) -> dict[str, Any]:
        self.log("value", output["loss"])
        return output


def test_logging_reads_no_tensor_in_a_step() -> None:
    """What is logged is read when the epoch ends: an accelerator is never waited for in a step."""
    reads_by_length: list[int] = []
    for num_batches in (2, 5):
        reads = Reads(as_on_accelerator=True)
        with reads:
            trainer = make_trainer(kind=LogsTensors)
            trainer.train(make_data(num_batches * BATCH_SIZE), 1, per_device_batch_size=BATCH_SIZE)
        reads_by_length.append(reads.counts.total())
    assert reads_by_length[0] == reads_by_length[1]


class LogsMany(LogsValues):
    """Logs many names in each step."""

    @override
    def _logging(self, batch: list[Tensor], output: dict[str, Any]) -> dict[str, Any]:
        for number in range(17):
            self.log(f"value_{number}", number * batch[0].mean())
        return output


def collectives_of_epoch(kind: type[Trainer[nn.Linear]], num_batches: int) -> int:
    """How many exchanges an epoch of so many batches takes."""
    trainer = make_trainer(kind=kind)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trainer.train(make_data(num_batches * 2), 1, per_device_batch_size=1)
    entries: Any = profile.key_averages()
    return sum(entry.count for entry in entries if entry.key.startswith("c10d::"))


@pytest.mark.parametrize(("kind", "num_batches"), [(LogsValues, 2), (LogsValues, 8), (LogsMany, 8), (LogsByRank, 8)])
@pytest.mark.runs_on("two_ranks")
def test_logging_costs_no_exchange_in_a_step(kind: type[Trainer[nn.Linear]], num_batches: int) -> None:
    """It takes two at the end of the epoch: of how long the names with their sums are, and of these."""
    assert collectives_of_epoch(kind, num_batches) == collectives_of_epoch(Trainer, num_batches) + 2


def test_a_value_is_taken_as_it_is_when_it_is_logged() -> None:
    """What an update or a later line changes in place does not reach the mean."""

    def log(trainer: Any) -> None:
        counter = torch.zeros(())
        trainer.log("before", counter)
        trainer.log("weight", trainer.get_model().weight)
        counter.fill_(9)

    trainer = make_trainer(CallAt("on_train_step_end", log))
    weight = trainer.model.weight.item()

    trainer.train(make_data(4), 1, per_device_batch_size=4)

    assert latest(trainer, "train_before_epoch") == 0
    assert latest(trainer, "train_weight_epoch") == weight != trainer.model.weight.item()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", 1.0, "except 'loss'"),
        ("my kl", 1.0, r"cannot have this name[\s\S]*'my kl'"),
        ("", 1.0, r"cannot have this name"),
        (3, 1.0, r"cannot have this name[\s\S]*log\(3, "),
        ("kl", torch.ones(3), r"single numbers[\s\S]*shape \(3,\)[\s\S]*value\.mean\(\)"),
        ("kl", torch.ones((), dtype=torch.complex64), "single numbers"),
        ("kl", "high", r"single numbers[\s\S]*'high', of type str[\s\S]*update_metric"),
        ("kl", None, r"None, of type NoneType"),
        ("twice", 1.0, r"twice in the same step[\s\S]*sum or the mean"),
    ],
)
def test_what_cannot_be_logged_is_an_error(name: Any, value: Any, message: str) -> None:
    """In the first step, with what to do."""

    def log(trainer: AnyTrainer) -> None:
        trainer.log("twice", 1.0)
        trainer.log(name, value)

    with pytest.raises(ConfigurationError, match=message):
        train(make_trainer(CallAt("on_train_step_end", log)))


@pytest.mark.parametrize(
    "event",
    [
        *("on_init_end", "on_training_run_start", "on_train_epoch_start", "on_train_epoch_end", "on_eval_epoch_start"),
        *("on_eval_epoch_end", "on_training_run_epoch_end", "on_training_run_end"),
    ],
)
def test_outside_of_a_step_logging_is_an_error_that_says_where(event: str) -> None:
    """A value of a whole epoch has another place."""
    with pytest.raises(ConfigurationError, match=r"within a step only[\s\S]*run_history\.update_metric"):
        train(make_trainer(CallAt(event, lambda trainer: trainer.log("kl", 1.0))))
    with pytest.raises(ConfigurationError, match="within a step only"):
        make_trainer().log("kl", 1.0)


DATA = make_regression(8)


def record_anything(trainer: AnyTrainer) -> None:
    """Record what scripts record: what a metric library returned, a vector for the classes, and a string."""
    epoch = trainer.run_history.current_epoch
    trainer.run_history.update_metric("test", {"accuracy": torch.tensor(epoch / 10), "worst": "cat"})
    trainer.run_history.update_metric("per_class", torch.tensor([0.0, epoch / 10]))
    trainer.run_history.update_metric("phase", "warm-up")


class Logged(LogMetricsCallback):
    """Notes what would be sent to a tracker."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        self.metrics.append(metrics)


def recording_trainer(*callbacks: Any, history: RunHistory | None = None) -> Trainer[nn.Linear]:
    """A trainer of a linear model that records anything."""
    torch.default_generator.manual_seed(0)
    model = nn.Linear(4, 1)
    all_callbacks = [CallAt("on_eval_epoch_end", record_anything), *callbacks]
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=all_callbacks, run_history=history)


def test_everything_that_reads_metrics_takes_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The console, its table, what trackers are sent, the best model and a plot leave out what is no number."""
    logged = Logged()
    save = SaveBestModelCallback(tmp_path / "best.pt", "test_accuracy", greater_is_better=True)
    trainer = recording_trainer(*DEFAULT_CALLBACKS, logged, save)
    trainer.train(DATA, 2, DATA)

    numbers = {"eval_loss_epoch", "test_accuracy"}
    assert [set(metrics) for metrics in logged.metrics] == 2 * [{"train_loss_epoch"}, numbers]
    assert torch.load(tmp_path / "best.pt", weights_only=True)["best_value"] == pytest.approx(0.2)
    table = capsys.readouterr().out.split("best  epoch\n")[1]
    assert [line.split()[0] for line in table.splitlines()] == ["eval_loss_epoch", "test_accuracy", "train_loss_epoch"]
    assert plot_run_history(trainer.run_history, tmp_path / "plot.png").stat().st_size > 0


def test_what_is_no_number_is_refused_where_a_number_is_needed(tmp_path: Path) -> None:
    """The error says what was recorded, and which of its numbers can be watched; there is nothing to draw."""
    for metric, advice in (("test", "Watch a number in it: test_accuracy"), ("phase", "Record the number")):
        trainer = recording_trainer(SaveBestModelCallback(tmp_path / "best.pt", metric))
        with pytest.raises(ConfigurationError, match=rf"watch_metric='{metric}'(.|\n)*{advice}"):
            trainer.train(DATA, 1, DATA)
        with pytest.raises(ConfigurationError, match="No values to draw"):
            plot_run_history(trainer.run_history, tmp_path / "plot.png", metrics=["phase"])


def test_a_history_of_ones_own_may_hold_anything(capsys: pytest.CaptureFixture[str]) -> None:
    """The console and its table leave out what is no number, also of a history that is not the one in memory."""
    history = DocumentedHistory()
    recording_trainer(*DEFAULT_CALLBACKS, history=history).train(DATA, 1, DATA)
    assert history.values["phase"] == ["warm-up"]
    printed = capsys.readouterr().out
    assert re.search(r"^  eval_loss_epoch +[\d.e-]+ +[\d.e-]+ +-$", printed, re.M)
    assert re.search(r"^ +1 +[\d.e-]+ +[\d.e-]+ ", printed, re.M)
    assert "phase" not in printed
