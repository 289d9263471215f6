"""What the samples of the reference show, each in a function: metrics, and the order of calls."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103

import re
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Accuracy, MetricCollection, Precision, Recall

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import LogMetricsCallback, TrainerCallback


def digits(first, last):
    scanned = load_digits()
    images = torch.tensor(scanned.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images[first:last], torch.tensor(scanned.target)[first:last])


def create_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def create_metrics(num_classes):
    return MetricCollection(
        {
            "accuracy": Accuracy(task="multiclass", num_classes=num_classes),
            "precision": Precision(task="multiclass", num_classes=num_classes, average="macro"),
            "recall": Recall(task="multiclass", num_classes=num_classes, average="macro"),
        }
    )


class MetricsCallback(TrainerCallback):
    """Metrics beside any loop; the constructor leaves that of the base class out."""

    def __init__(self, num_classes):
        self.metrics = create_metrics(num_classes)

    def on_training_run_start(self, trainer, **kwargs):
        self.metrics.to(trainer.device)

    def on_evaluation_run_start(self, trainer, **kwargs):
        self.metrics.to(trainer._eval_dataloader.device)

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        self.metrics.update(batch_output["model_outputs"].argmax(dim=-1), batch[1])

    def on_eval_epoch_end(self, trainer, **kwargs):
        for name, value in self.metrics.compute().items():
            trainer.run_history.update_metric(name, value.cpu())
        self.metrics.reset()


def metrics_in_a_callback():
    model = create_model()
    return train_and_test(
        Trainer(
            model,
            nn.CrossEntropyLoss(),
            optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            callbacks=[MetricsCallback(num_classes=10), LogMetricsCallback],
        )
    )


def train_and_test(trainer):
    trainer.train(digits(0, 1024), num_epochs=3, eval_dataset=digits(1024, 1397), per_device_batch_size=32)
    in_training = list(trainer.run_history.get_metric_values("recall"))
    trainer.evaluate(digits(1397, 1797), per_device_batch_size=64)
    expected = [metrics_by_hand(trainer.model, digits(1024, 1397)), metrics_by_hand(trainer.model, digits(1397, 1797))]
    return trainer, in_training, expected


def metrics_by_hand(model, dataset):
    ((images, labels),) = DataLoader(dataset, batch_size=len(dataset))
    counts = torch.bincount(labels * 10 + model(images).argmax(-1), minlength=100).view(10, 10)
    hits = counts.diag()
    return {
        "accuracy": (hits.sum() / counts.sum()).item(),
        "precision": (hits / counts.sum(dim=0)).mean().item(),
        "recall": (hits / counts.sum(dim=1)).mean().item(),
    }


def calls_of_a_run():
    """What a training run and an evaluation run call, in the order of their calls."""
    calls = []

    def note(name, function):
        def noting(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        return noting

    events = [name for name in dir(TrainerCallback) if name.startswith("on_")]
    note_events = type("NoteEvents", (TrainerCallback,), {event: note(event, lambda *a, **k: None) for event in events})
    model = create_model()
    trainer = Trainer(model, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1), callbacks=[note_events])
    for name in dir(Trainer):
        is_hook = re.fullmatch(
            "(create|calculate|train|training|eval|evaluation|backward|optimizer|scheduler)_[a-z_]+", name
        )
        if is_hook and callable(getattr(Trainer, name)):
            setattr(trainer, name, note(name, getattr(trainer, name)))
    schedule = partial(lr_scheduler.StepLR, step_size=7, gamma=0.1)
    trainer.train(digits(0, 8), num_epochs=1, eval_dataset=digits(8, 16), create_scheduler_fn=schedule)
    split = len(calls)
    trainer.evaluate(digits(8, 16))
    return calls[:split], calls[split:]
