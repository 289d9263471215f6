"""Schedules in timm's manner, which are told how far the run is; once with the trainer for them, once by hand."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: B905, D102, D103, T201

import math
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset

from pytorch_accelerated.callbacks import TrainerCallback
from pytorch_accelerated.schedulers.scheduler_base import SchedulerBase
from pytorch_accelerated.trainer import Trainer, TrainerPlaceholderValues, TrainerWithTimmScheduler


class TimmStyleCosine:
    """The interface of timm's schedulers: step at the end of an epoch, step_update after an update."""

    def __init__(self, optimizer, t_initial, warmup_t=0, t_in_epochs=True):
        self.optimizer = optimizer
        self.t_initial, self.warmup_t, self.t_in_epochs = t_initial, warmup_t, t_in_epochs
        self.base = [group["lr"] for group in optimizer.param_groups]
        self.metrics = []
        self.set_for(0)

    def set_for(self, t):
        for group, base in zip(self.optimizer.param_groups, self.base):
            rises = (t + 1) / (self.warmup_t + 1)
            falls = 0.5 * (1 + math.cos(math.pi * min(t, self.t_initial) / self.t_initial))
            group["lr"] = base * (rises if t < self.warmup_t else falls)

    def step(self, epoch, metric=None):
        self.metrics.append(metric)
        if self.t_in_epochs:
            self.set_for(epoch)

    def step_update(self, num_updates, metric=None):
        if not self.t_in_epochs:
            self.set_for(num_updates)

    def state_dict(self):
        return {"t_initial": self.t_initial}

    def load_state_dict(self, state_dict):
        self.t_initial = state_dict["t_initial"]


class Halving(SchedulerBase):
    """A stateless schedule: half the rate after every ten updates."""

    def get_updated_values(self, num_updates):
        return 0.4 * 0.5 ** (num_updates // 10)


class StatelessTrainer(Trainer):
    """Counts the updates for its scheduler itself."""

    def create_scheduler(self):
        return Halving(self.optimizer)

    def training_run_start(self):
        self.updates_so_far = 0

    def scheduler_step(self):
        self.updates_so_far += 1
        if self.scheduler is not None:
            self.scheduler.step_update(self.updates_so_far)


class NoteRates(TrainerCallback):
    """The rate that each batch is trained with."""

    def __init__(self):
        self.rates = []

    def on_train_step_end(self, trainer, batch, batch_output, **kwargs):
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


def train(trainer_class, per_device_batch_size, **kwargs):
    torch.manual_seed(0)
    scanned = load_digits()
    dataset = TensorDataset(
        torch.tensor(scanned.data, dtype=torch.float32)[:320] / 16, torch.tensor(scanned.target)[:320]
    )
    model = nn.Linear(64, 10)
    notes = NoteRates()
    trainer = trainer_class(model, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.4), callbacks=[notes])
    trainer.train(dataset, 4, eval_dataset=dataset, per_device_batch_size=per_device_batch_size, **kwargs)
    return trainer, notes.rates


def main(per_device_batch_size=32):
    by_epoch = partial(TimmStyleCosine, t_initial=TrainerPlaceholderValues.NUM_EPOCHS)
    by_update = partial(
        TimmStyleCosine,
        t_initial=TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        warmup_t=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        t_in_epochs=False,
    )
    trainer, rates_by_epoch = train(TrainerWithTimmScheduler, per_device_batch_size, create_scheduler_fn=by_epoch)
    losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    metrics = trainer.scheduler.metrics
    _, rates_by_update = train(TrainerWithTimmScheduler, per_device_batch_size, create_scheduler_fn=by_update)
    _, rates_by_hand = train(StatelessTrainer, per_device_batch_size)
    return {
        "rates_by_epoch": rates_by_epoch,
        "rates_by_update": rates_by_update,
        "rates_by_hand": rates_by_hand,
        "losses": losses,
        "metrics_of_scheduler": metrics,
    }


if __name__ == "__main__":
    print(main())
