"""Scripts in the manner of the reference's code samples do with `pa_core` what their readers expect of them.

They are trained on scikit-learn's scanned digits, on one process and on two, in full and in mixed precision.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd  # type: ignore[import-untyped]  # pandas comes without type information
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split
from torchmetrics import Accuracy, MetricCollection, Precision, Recall
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    LogMetricsCallback,
    SchedulerLike,
    Trainer,
    TrainerCallback,
    TrainerPlaceholderValues,
    notebook_launcher,
)

pytestmark = pytest.mark.runs_on("one_process", "two_ranks", "bf16")

BASE_LR, MAX_LR = 0.1, 0.2


class DigitsModel(nn.Module):
    """A perceptron over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    @override
    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.main(images.view(images.shape[0], -1))
        return logits


class Digits(NamedTuple):
    """Scanned digits: images of shape (1, 8, 8), and which digit each of them shows."""

    train: Subset[tuple[Tensor, ...]]
    evaluation: Subset[tuple[Tensor, ...]]
    test: Subset[tuple[Tensor, ...]]


class RecordLearningRate(TrainerCallback):
    """Notes the learning rate that each update leaves to the next one."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


@pytest.fixture(scope="module")
def digits() -> Digits:
    """1,024 digits to train on, 373 to evaluate, 400 to test."""
    scanned: Any = load_digits()
    images = torch.tensor(scanned.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(scanned.target))
    return Digits(*random_split(dataset, [1024, 373, 400], generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def model() -> DigitsModel:
    """The same untrained model in each test."""
    torch.default_generator.manual_seed(0)
    return DigitsModel()


def sgd(model: nn.Module) -> optim.SGD:
    """The optimizer of all samples."""
    return optim.SGD(model.parameters(), lr=BASE_LR, momentum=0.9)


def predict(model: nn.Module, dataset: Subset[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
    """The logits of a model, in full precision, and the targets of a whole dataset, in its order."""
    ((images, targets),) = DataLoader(dataset, batch_size=len(dataset))
    with torch.no_grad():
        return model(images), targets


def tolerance(trainer: AnyTrainer) -> float:
    """How far a run may be from a computation in full precision."""
    return 1e-5 if trainer.run_config.mixed_precision == "no" else 0.02


def test_quickstart(digits: Digits, model: DigitsModel) -> None:
    """The first script that anybody writes trains, evaluates after each epoch, and tests at the end."""
    trainer = Trainer(model, loss_func=nn.CrossEntropyLoss(), optimizer=sgd(model))
    trainer.train(
        train_dataset=digits.train,
        eval_dataset=digits.evaluation,
        num_epochs=8,
        per_device_batch_size=32,
    )
    train_losses = list(trainer.run_history.get_metric_values("train_loss_epoch"))
    eval_losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    trainer.evaluate(dataset=digits.test, per_device_batch_size=64)

    assert len(train_losses) == len(eval_losses) == 8
    assert train_losses[-1] < train_losses[0] / 3
    assert eval_losses[-1] < 0.5
    by_hand = nn.functional.cross_entropy(*predict(model, digits.test)).item()
    recorded = trainer.run_history.get_latest_metric("evaluation_loss")
    assert recorded == pytest.approx(by_hand, abs=tolerance(trainer))


@pytest.mark.runs_on("one_process")
def test_quickstart_from_a_notebook(digits: Digits, model: DigitsModel) -> None:
    """A training function that is given to `notebook_launcher` trains."""
    losses: list[float] = []

    def main() -> None:
        trainer = Trainer(model, loss_func=nn.CrossEntropyLoss(), optimizer=sgd(model))
        trainer.train(train_dataset=digits.train, num_epochs=2, per_device_batch_size=32)
        losses.extend(map(float, trainer.run_history.get_metric_values("train_loss_epoch")))

    notebook_launcher(main, num_processes=1)
    assert losses[1] < losses[0] / 2


def train_for_four_epochs(trainer: Trainer[DigitsModel], digits: Digits, create_scheduler_fn: Any = None) -> None:
    """Train in batches of 64."""
    trainer.train(
        train_dataset=digits.train,
        num_epochs=4,
        per_device_batch_size=64,
        create_scheduler_fn=create_scheduler_fn,
    )


def one_cycle(num_updates: int) -> list[float]:
    """The learning rates of the one-cycle schedule, stepped without a trainer."""
    optimizer = sgd(nn.Linear(1, 1))
    scheduler = OneCycleLR(optimizer, max_lr=MAX_LR, total_steps=num_updates)
    rates: list[float] = []
    for _ in range(num_updates):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def test_a_scheduler_is_stepped_after_each_update(digits: Digits, model: DigitsModel) -> None:
    """StepLR with a step size of 7 lowers the learning rate after every seventh update."""
    recorder = RecordLearningRate()
    trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks=[recorder])
    train_for_four_epochs(trainer, digits, partial(StepLR, step_size=7, gamma=0.1))
    updates = range(1, len(recorder.rates) + 1)
    assert recorder.rates == pytest.approx([BASE_LR * 0.1 ** (update // 7) for update in updates])


def test_a_step_size_in_epochs(digits: Digits, model: DigitsModel) -> None:
    """A placeholder for the updates of an epoch, times two, lowers the learning rate after every second epoch."""
    recorder = RecordLearningRate()
    trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks=[recorder])
    step_size = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH * 2
    train_for_four_epochs(trainer, digits, partial(StepLR, step_size=step_size, gamma=0.1))
    updates_per_epoch = 1024 // (64 * trainer.run_config.num_processes)
    epochs = [update // updates_per_epoch for update in range(1, 4 * updates_per_epoch + 1)]
    assert recorder.rates == pytest.approx([BASE_LR * 0.1 ** (epoch // 2) for epoch in epochs])


def test_one_cycle_with_placeholders(digits: Digits, model: DigitsModel) -> None:
    """Placeholders for epochs and updates stretch a cycle over exactly the length of the run."""
    recorder = RecordLearningRate()
    trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks=[recorder])
    train_for_four_epochs(
        trainer,
        digits,
        partial(
            OneCycleLR,
            max_lr=MAX_LR,
            epochs=TrainerPlaceholderValues.NUM_EPOCHS,
            steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        ),
    )
    assert recorder.rates == pytest.approx(one_cycle(4 * 1024 // (64 * trainer.run_config.num_processes)))


def test_an_overridden_create_scheduler(digits: Digits, model: DigitsModel) -> None:
    """A trainer that creates its own scheduler knows the loaders and the run config by then."""

    class OneCycleTrainer(Trainer[DigitsModel]):
        @override
        def create_scheduler(self) -> SchedulerLike:
            return OneCycleLR(
                self.optimizer,
                max_lr=MAX_LR,
                epochs=self.run_config.num_epochs,
                steps_per_epoch=len(self._train_dataloader),
            )

    recorder = RecordLearningRate()
    trainer = OneCycleTrainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks=[recorder])
    train_for_four_epochs(trainer, digits)
    assert recorder.rates == pytest.approx(one_cycle(4 * 1024 // (64 * trainer.run_config.num_processes)))


def classification_metrics() -> MetricCollection:
    """Three metrics of torchmetrics, which gather what they need over all processes."""
    options: dict[str, Any] = {"task": "multiclass", "num_classes": 10}
    return MetricCollection(
        {
            "accuracy": Accuracy(**options),
            "precision": Precision(average="macro", **options),
            "recall": Recall(average="macro", **options),
        }
    )


def expected_metrics(model: nn.Module, dataset: Subset[tuple[Tensor, ...]]) -> dict[str, float]:
    """The same metrics, counted by hand."""
    logits, targets = predict(model, dataset)
    counts = torch.bincount(targets * 10 + logits.argmax(dim=-1), minlength=100).view(10, 10)
    hits = counts.diag()
    return {
        "accuracy": (hits.sum() / counts.sum()).item(),
        "precision": (hits / counts.sum(dim=0)).mean().item(),
        "recall": (hits / counts.sum(dim=1)).mean().item(),
    }


def latest(trainer: AnyTrainer, names: list[str]) -> dict[str, float]:
    """The values of metrics that were recorded last."""
    return {name: float(trainer.run_history.get_latest_metric(name)) for name in names}


class TrainerWithMetrics(Trainer):
    """Calculates metrics in its own evaluation steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metrics = classification_metrics()

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        batch_output = super().calculate_eval_batch_loss(batch)
        self.metrics.update(batch_output["model_outputs"].argmax(dim=-1), batch[1])
        return batch_output

    @override
    def eval_epoch_end(self) -> None:
        for name, value in self.metrics.compute().items():
            self.run_history.update_metric(name, value.cpu())
        self.metrics.reset()


def test_metrics_in_a_subclass(digits: Digits, model: DigitsModel) -> None:
    """Metrics of a subclass are recorded once an epoch and are those of the whole evaluation dataset."""
    trainer = TrainerWithMetrics(model, loss_func=nn.CrossEntropyLoss(), optimizer=sgd(model))
    trainer.train(digits.train, num_epochs=3, eval_dataset=digits.evaluation, per_device_batch_size=32)
    expected = expected_metrics(model, digits.evaluation)
    assert expected["accuracy"] > 0.8
    assert latest(trainer, list(expected)) == pytest.approx(expected, abs=tolerance(trainer))
    assert len(list(trainer.run_history.get_metric_values("recall"))) == 3


class ClassificationMetricsCallback(TrainerCallback):
    """Calculates metrics beside any trainer; its constructor leaves that of the base class out."""

    def __init__(self) -> None:
        self.metrics = classification_metrics()

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.metrics.to(trainer.device)

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.metrics.to(trainer.device)

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.metrics.update(batch_output["model_outputs"].argmax(dim=-1), batch[1])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        for name, value in self.metrics.compute().items():
            trainer.run_history.update_metric(name, value.cpu())
        self.metrics.reset()


def test_metrics_in_a_callback(digits: Digits, model: DigitsModel, capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics of a callback are recorded in training and in evaluation runs, and logged by those behind it."""
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=sgd(model),
        callbacks=[ClassificationMetricsCallback, LogMetricsCallback],
    )
    trainer.train(digits.train, num_epochs=3, eval_dataset=digits.evaluation, per_device_batch_size=32)
    expected = expected_metrics(model, digits.evaluation)
    assert latest(trainer, list(expected)) == pytest.approx(expected, abs=tolerance(trainer))

    trainer.evaluate(digits.test)
    expected = expected_metrics(model, digits.test)
    recorded = latest(trainer, list(expected))
    assert recorded == pytest.approx(expected, abs=tolerance(trainer))
    logged = re.search(rf"recall {recorded['recall']:.4f}\b", capsys.readouterr().out) is not None
    assert logged == trainer.run_config.is_local_process_zero


class ExperimentTracker:
    """Remembers what a client of a tracking server would send to it."""

    def __init__(self) -> None:
        self.uri: str | None = None
        self.tags: dict[str, Any] = {}
        self.logged: list[dict[str, float]] = []

    def set_tracking_uri(self, uri: str) -> None:
        """Choose the server."""
        self.uri = uri

    def set_tags(self, tags: dict[str, Any]) -> None:
        """Describe the run."""
        self.tags.update(tags)

    def log_metrics(self, metrics: dict[str, float]) -> None:
        """Send the values of one moment."""
        self.logged.append(metrics)


class TrackerCallback(LogMetricsCallback):
    """Sends what would be printed to a tracking server instead."""

    def __init__(self, tracker: ExperimentTracker) -> None:
        self.tracker = tracker
        self.tracker.set_tracking_uri("https://tracking.example")

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.tracker.set_tags(trainer.run_config.to_dict())

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        if trainer.run_config.is_world_process_zero:
            self.tracker.log_metrics(metrics)


def test_a_logger_of_ones_own(digits: Digits, model: DigitsModel, capsys: pytest.CaptureFixture[str]) -> None:
    """A subclass of the logger sends each metric of each epoch once, from one process, and prints none."""
    tracker = ExperimentTracker()
    trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks=[TrackerCallback(tracker)])
    trainer.train(digits.train, num_epochs=2, eval_dataset=digits.evaluation, per_device_batch_size=32)

    history = trainer.run_history
    losses = zip(
        history.get_metric_values("train_loss_epoch"), history.get_metric_values("eval_loss_epoch"), strict=True
    )
    expected = [
        one for train, evaluation in losses for one in ({"train_loss_epoch": train}, {"eval_loss_epoch": evaluation})
    ]
    assert tracker.tags["num_epochs"] == 2
    assert tracker.tags["train_total_batch_size"] == 32 * trainer.run_config.num_processes
    assert tracker.logged == (expected if trainer.run_config.is_world_process_zero else [])
    assert capsys.readouterr().out == ""


class SavePredictionsCallback(TrainerCallback[Trainer]):
    """Writes what was predicted for each evaluated sample, and what was right, to a table."""

    def __init__(self, out_filename: Path) -> None:
        super().__init__()
        self.predictions: dict[str, list[int]] = defaultdict(list)
        self.out_filename = out_filename

    @override
    def on_eval_step_end(self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        _, targets = batch
        class_preds = trainer.gather(batch_output["model_outputs"]).argmax(dim=-1)
        self.predictions["prediction"].extend(class_preds.cpu().tolist())
        self.predictions["target"].extend(trainer.gather(targets).cpu().tolist())

    @override
    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer._accelerator.wait_for_everyone()  # pyright: ignore[reportPrivateUsage]  # users' code reads it
        if trainer.run_config.is_local_process_zero:
            table = pd.DataFrame(self.predictions)
            table.to_csv(self.out_filename, index=False)


def test_predictions_in_a_table(digits: Digits, model: DigitsModel, shared_tmp_path: Path) -> None:
    """The table has one line for each sample, in the order of the dataset, whatever the number of processes."""
    table = shared_tmp_path / "predictions.csv"
    callbacks = [SavePredictionsCallback(table)]
    trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model), callbacks=callbacks)
    trainer.train(digits.train, num_epochs=2, per_device_batch_size=32)
    trainer.evaluate(digits.test, per_device_batch_size=64)

    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    predictions = torch.tensor([int(row["prediction"]) for row in rows])
    logits, targets = predict(model, digits.test)
    assert torch.equal(torch.tensor([int(row["target"]) for row in rows]), targets)
    agreement = (predictions == logits.argmax(dim=-1)).float().mean().item()
    assert agreement >= 1 - tolerance(trainer)


class VerifyBatchCallback(TrainerCallback):
    """Listens to an event that its trainer has invented."""

    def __init__(self) -> None:
        self.num_batches = 0

    def verify_train_batch(self, trainer: AnyTrainer, xb: Tensor, yb: Tensor) -> None:
        """Check the shapes of a training batch."""
        batch_size = trainer.run_config["train_per_device_batch_size"]
        assert xb.shape == (batch_size, 1, 8, 8)
        assert yb.shape == (batch_size,)
        self.num_batches += 1


class TrainerWithCustomEvent(Trainer):
    """Calls an event of its own for each training batch."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        xb, yb = batch
        self.callback_handler.call_event("verify_train_batch", trainer=self, xb=xb, yb=yb)
        return super().calculate_train_batch_loss(batch)


def test_an_event_of_ones_own(digits: Digits, model: DigitsModel) -> None:
    """An event that a trainer calls by name reaches the callbacks that have such a method, for each batch."""
    verify = VerifyBatchCallback()
    callbacks = [verify, RecordLearningRate()]
    trainer = TrainerWithCustomEvent(model, nn.CrossEntropyLoss(), sgd(model), callbacks=callbacks)
    trainer.train(digits.train, num_epochs=1, per_device_batch_size=32)
    assert verify.num_batches == 1024 // (32 * trainer.run_config.num_processes)


@pytest.mark.runs_on("one_process")
def test_an_event_of_ones_own_can_end_a_run(digits: Digits, model: DigitsModel) -> None:
    """What a callback finds wrong in an event of one's own leaves `train()`, as it would in any other event."""
    trainer = TrainerWithCustomEvent(model, nn.CrossEntropyLoss(), sgd(model), callbacks=[VerifyBatchCallback])
    with pytest.raises(AssertionError, match=r"\[24, 1, 8, 8\]"):
        trainer.train(digits.train, num_epochs=1, per_device_batch_size=1000)
