"""What the samples of the reference show, each in a function: callbacks, metrics, schedulers, frozen layers."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103

import os
import re
from collections import defaultdict
from functools import partial

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Accuracy, MetricCollection, Precision, Recall

from pytorch_accelerated import Trainer, TrainerPlaceholderValues
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


class TrainerWithMetrics(Trainer):
    """Metrics as a part of the loop."""

    def __init__(self, num_classes, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.metrics = create_metrics(num_classes)

    def calculate_eval_batch_loss(self, batch):
        output = super().calculate_eval_batch_loss(batch)
        self.metrics.update(output["model_outputs"].argmax(dim=-1), batch[1])
        return output

    def eval_epoch_end(self):
        for name, value in self.metrics.compute().items():
            self.run_history.update_metric(name, value.cpu())
        self.metrics.reset()


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


def metrics_in_the_loop():
    model = create_model()
    return train_and_test(
        TrainerWithMetrics(10, model, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    )


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


class Client:
    """A tracking server's client, reduced to lists."""

    def __init__(self):
        self.uri, self.tags, self.logged = None, {}, []

    def set_tracking_uri(self, uri):
        self.uri = uri

    def set_tags(self, tags):
        self.tags.update(tags)

    def log_metrics(self, metrics):
        self.logged.append(metrics)


mlflow = Client()


class TrackingServerCallback(LogMetricsCallback):
    """Logs to a platform of one's own."""

    def __init__(self):
        mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])

    def on_training_run_start(self, trainer, **kwargs):
        mlflow.set_tags(trainer.run_config.to_dict())

    def log_metrics(self, trainer, metrics):
        if trainer.run_config.is_world_process_zero:
            mlflow.log_metrics(metrics)


def custom_logging():
    os.environ["MLFLOW_TRACKING_URI"] = "https://tracking.example"
    model = create_model()
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1), callbacks=[TrackingServerCallback]
    )
    trainer.train(digits(0, 128), num_epochs=2, eval_dataset=digits(128, 192), per_device_batch_size=32)
    return mlflow, trainer


class WritePredictions(TrainerCallback):
    """Writes a table with a line for each evaluated sample."""

    def __init__(self, path="predictions.csv") -> None:
        super().__init__()
        self.path = path
        self.columns = defaultdict(list)

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        _, labels = batch
        predicted = trainer.gather(batch_output["model_outputs"]).argmax(dim=-1)
        self.columns["predicted"] += predicted.cpu().tolist()
        self.columns["label"] += trainer.gather(labels).cpu().tolist()

    def on_eval_epoch_end(self, trainer, **kwargs):
        trainer._accelerator.wait_for_everyone()
        if trainer.run_config.is_local_process_zero:
            pd.DataFrame.from_dict(self.columns).to_csv(self.path, index=False)


def table_of_predictions(path):
    model = create_model()
    trainer = Trainer(model, nn.CrossEntropyLoss(), None, callbacks=[WritePredictions(path)])
    trainer.evaluate(digits(0, 101))
    trainer._accelerator.wait_for_everyone()
    ((images, labels),) = DataLoader(digits(0, 101), batch_size=101)
    return pd.read_csv(path).to_dict("list"), {"predicted": model(images).argmax(-1).tolist(), "label": labels.tolist()}


class CheckShapes(TrainerCallback):
    """Listens to an event that the trainer below invents."""

    num_checked = 0

    def check_train_batch(self, trainer, images, labels):
        batch_size = trainer.run_config["train_per_device_batch_size"]
        assert images.shape == (batch_size, 1, 8, 8)
        assert labels.shape == (batch_size,)
        self.num_checked += 1


class TrainerWithCustomEvent(Trainer):
    """Calls an event of its own for each training batch."""

    def calculate_train_batch_loss(self, batch) -> dict:
        images, labels = batch
        self.callback_handler.call_event("check_train_batch", trainer=self, images=images, labels=labels)
        return super().calculate_train_batch_loss(batch)


def custom_event(batch_size):
    model = create_model()
    check = CheckShapes()
    trainer = TrainerWithCustomEvent(
        model, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1), callbacks=[check]
    )
    trainer.train(digits(0, 256), num_epochs=1, per_device_batch_size=batch_size)
    return check.num_checked, trainer.run_config.num_update_steps_per_epoch


class NoteRates(TrainerCallback):
    """The learning rate that each batch is trained with."""

    def __init__(self):
        self.rates = []

    def on_train_step_end(self, trainer, batch, batch_output, **kwargs):
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


def rates_of(create_scheduler_fn, num_epochs=8, trainer_class=Trainer):
    model = create_model()
    notes = NoteRates()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    trainer = trainer_class(model, nn.CrossEntropyLoss(), optimizer, callbacks=[notes])
    trainer.train(
        train_dataset=digits(0, 64),
        num_epochs=num_epochs,
        per_device_batch_size=8,
        create_scheduler_fn=create_scheduler_fn,
    )
    return notes.rates, trainer.run_config.num_update_steps_per_epoch


def one_cycle():
    return rates_of(
        partial(
            lr_scheduler.OneCycleLR,
            max_lr=0.2,
            epochs=TrainerPlaceholderValues.NUM_EPOCHS,
            steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        )
    )


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
