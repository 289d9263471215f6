# Written as the pages of pytorch-accelerated show it, without a single annotation; test_untyped_code.py runs it.
# mypy: ignore-errors
# pyright: basic
# ruff: noqa: D100, D101, D102, D103
from functools import partial

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

from pytorch_accelerated import Trainer, TrainerPlaceholderValues
from pytorch_accelerated.callbacks import (
    EarlyStoppingCallback,
    ModelEmaCallback,
    SaveBestModelCallback,
    TrainerCallback,
    get_default_callbacks,
)
from pytorch_accelerated.run_config import TrainerRunConfig
from pytorch_accelerated.schedulers import StatefulSchedulerBase
from pytorch_accelerated.tracking import RunHistory


class Rows(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(size, 4, generator=generator)
        self.targets = (self.inputs.sum(1) > 0).long()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class LastValues(RunHistory):
    def __init__(self):
        self.values = {}

    def get_metric_names(self):
        return set(self.values)

    def get_metric_values(self, metric_name):
        return [self.values[metric_name]]

    def get_latest_metric(self, metric_name):
        return self.values[metric_name]

    def update_metric(self, metric_name, metric_value):
        self.values[self.metric_name_prefix + metric_name] = float(metric_value)

    @property
    def metric_name_prefix(self):
        return getattr(self, "prefix", "")

    def set_metric_name_prefix(self, prefix=""):
        self.prefix = prefix

    def reset(self):
        self.values = {}


class Accuracy(TrainerCallback):
    def on_eval_epoch_start(self, trainer, **kwargs):
        self.right = self.all = 0

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        self.right += (batch_output["model_outputs"].argmax(1) == batch[1]).sum().item()
        self.all += batch_output["batch_size"]

    def on_eval_epoch_end(self, trainer, **kwargs):
        trainer.run_history.update_metric("accuracy", self.right / self.all)


class Announce(TrainerCallback):
    def on_rows_seen(self, trainer, rows, **kwargs):
        self.rows = getattr(self, "rows", 0) + rows


class RowTrainer(Trainer):
    def calculate_train_batch_loss(self, batch):
        output = super().calculate_train_batch_loss(batch)
        self.callback_handler.call_event("on_rows_seen", self, rows=output["batch_size"])
        output["seen"] = True
        return output

    def calculate_eval_batch_loss(self, batch):
        inputs, targets = batch[0], batch[1]
        with torch.no_grad():
            outputs = self.model(inputs)
        return {"loss": self.loss_func(outputs, targets), "model_outputs": outputs, "batch_size": len(targets)}

    def create_train_dataloader(self, batch_size, train_dl_kwargs=None):
        return super().create_train_dataloader(batch_size, train_dl_kwargs={"drop_last": True})

    def training_run_end(self):
        self.print("done with", self.run_config["num_epochs"], "epochs", sep=" ")


class Fall(StatefulSchedulerBase):
    def __init__(self, optimizer, steps):
        super().__init__(optimizer)
        self.steps = steps

    def get_updated_values(self, num_updates):
        return [value * (1 - num_updates / self.steps) for value in self.initial_values]


def main(folder):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    announce = Announce()
    trainer = RowTrainer(
        model,
        nn.CrossEntropyLoss(),
        optim.SGD(model.parameters(), lr=0.5),
        callbacks=(
            Accuracy,
            announce,
            ModelEmaCallback(decay=0.5, save_path=f"{folder}/ema.pt"),
            SaveBestModelCallback(f"{folder}/best.pt", watch_metric="accuracy", greater_is_better=True),
            *get_default_callbacks(progress_bar=False),
            EarlyStoppingCallback(early_stopping_patience=5),
        ),
        run_history=LastValues(),
    )
    trainer.train(
        Rows(100),
        2,
        Rows(40),
        8,
        create_scheduler_fn=partial(
            OneCycleLR,
            max_lr=0.5,
            epochs=TrainerPlaceholderValues.NUM_EPOCHS,
            steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        ),
    )
    steps = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    trainer.train(Rows(100), 3, Rows(40), create_scheduler_fn=partial(Fall, steps=steps), reset_run_history=False)
    assert isinstance(trainer.run_config, TrainerRunConfig)
    return trainer, announce.rows
