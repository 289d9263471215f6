"""Digits and timm: its vision transformer, optimizers, schedules, mixup, losses and averages of weights."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportMissingImports=false, reportOptionalCall=false
# pyright: reportOptionalMemberAccess=false, reportPrivateImportUsage=false
# ruff: noqa: D102, D103

import copy
import math
from functools import partial

import timm
import torch
from sklearn.datasets import load_digits
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler, PlateauLRScheduler
from torch import nn
from torch.utils.data import TensorDataset

from pytorch_accelerated.callbacks import TrainerCallback
from pytorch_accelerated.trainer import TrainerPlaceholderValues, TrainerWithTimmScheduler

NUM_UPDATES = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
EPOCHS = 3


def digits(first, last, dtype=torch.float32):
    scanned = load_digits()
    images = torch.tensor(scanned.images[first:last], dtype=dtype).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(scanned.target[first:last]))


def create_model(dtype=torch.float32):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", pretrained=False, num_classes=10, in_chans=1, img_size=8, patch_size=4)
    return model.to(dtype)


class NoteRates(TrainerCallback):
    """The rate of the first parameter group when each epoch starts, and for each batch."""

    def __init__(self):
        self.of_epochs, self.of_batches = [], []

    def on_train_epoch_start(self, trainer, **kwargs):
        self.of_epochs.append(trainer.optimizer.param_groups[0]["lr"])

    def on_train_step_end(self, trainer, **kwargs):
        self.of_batches.append(trainer.optimizer.param_groups[0]["lr"])


def with_trainer(optimizer_settings, dataset, batch_size):
    model, rates = create_model(dataset.tensors[0].dtype), NoteRates()
    trainer = TrainerWithTimmScheduler(
        model, LabelSmoothingCrossEntropy(), create_optimizer_v2(model, **optimizer_settings), callbacks=[rates]
    )
    trainer.train(
        dataset,
        num_epochs=EPOCHS,
        per_device_batch_size=batch_size,
        train_dataloader_kwargs={"shuffle": False},
        create_scheduler_fn=partial(
            CosineLRScheduler, t_initial=NUM_UPDATES, warmup_t=4, warmup_lr_init=1e-5, t_in_epochs=False
        ),
    )
    losses = list(trainer.run_history.get_metric_values("train_loss_epoch"))
    return losses, rates.of_batches, model.state_dict()


def with_a_loop_of_ones_own(optimizer_settings, dataset, batch_size):
    """The loop that timm's documentation shows, on one process and with the batch of all of them."""
    model, loss_func = create_model(dataset.tensors[0].dtype), LabelSmoothingCrossEntropy()
    optimizer = create_optimizer_v2(model, **optimizer_settings)
    images, labels = dataset.tensors
    updates_per_epoch = math.ceil(len(dataset) / batch_size)
    scheduler = CosineLRScheduler(
        optimizer, t_initial=EPOCHS * updates_per_epoch, warmup_t=4, warmup_lr_init=1e-5, t_in_epochs=False
    )
    losses, rates, num_updates = [], [], 0
    for epoch in range(EPOCHS):
        total = 0.0
        for start in range(0, len(dataset), batch_size):
            batch = labels[start : start + batch_size]
            loss = loss_func(model(images[start : start + batch_size]), batch)
            optimizer.zero_grad()
            loss.backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            num_updates += 1
            scheduler.step_update(num_updates)
            total += loss.item() * len(batch)
        scheduler.step(epoch + 1)
        losses.append(total / len(dataset))
    return losses, rates, model.state_dict()


def rates_of_epochs(create_scheduler_fn, num_epochs=6):
    model, rates = create_model(), NoteRates()
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.1)
    trainer = TrainerWithTimmScheduler(model, nn.CrossEntropyLoss(), optimizer, callbacks=[rates])
    trainer.train(digits(0, 32), num_epochs, digits(32, 48), 8, create_scheduler_fn=create_scheduler_fn)
    return rates.of_epochs


def by_epoch():
    return rates_of_epochs(
        partial(CosineLRScheduler, t_initial=TrainerPlaceholderValues.NUM_EPOCHS, warmup_t=2, warmup_lr_init=0.01)
    )


def by_metric():
    """No epoch is better than the one before by as much as the threshold asks for."""
    return rates_of_epochs(partial(PlateauLRScheduler, patience_t=1, decay_rate=0.5, threshold=10.0))


class Interrupted(Exception):
    """Leaves a run, as a signal would."""


class SaveAndLeave(TrainerCallback):
    """Saves the state of a run in mid-epoch, and leaves the run two updates later."""

    def __init__(self, folder):
        self.folder = folder

    def on_optimizer_step_end(self, trainer, update, **kwargs):
        if update == 10:
            trainer.save_training_state(self.folder)
        if update == 12:
            raise Interrupted


def weights_of_interrupted_run(folder):
    """The weights of a whole run, and of one that was interrupted and resumed."""

    def train(callbacks, **kwargs):
        model = create_model()
        optimizer = create_optimizer_v2(model, opt="lookahead_adamw", lr=2e-3)
        trainer = TrainerWithTimmScheduler(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)
        scheduler = partial(CosineLRScheduler, t_initial=TrainerPlaceholderValues.NUM_EPOCHS, warmup_t=1)
        trainer.train(digits(0, 128), 3, digits(128, 160), 8, create_scheduler_fn=scheduler, **kwargs)
        return copy.deepcopy(model.state_dict())

    torch.manual_seed(1)
    whole = train([])
    try:
        train([SaveAndLeave(folder)])
    except Interrupted:
        torch.manual_seed(2)
    return whole, train([], resume_from=folder)
