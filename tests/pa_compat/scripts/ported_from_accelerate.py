"""A training loop in the manner of accelerate's guides, and the same with a trainer: what stays, what goes."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103

from functools import partial

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from pytorch_accelerated.trainer import Trainer, TrainerPlaceholderValues

EPOCHS, ACCUMULATION, LR = 2, 2, 0.05


def digits(first, last):
    scanned = load_digits()
    images = torch.tensor(scanned.data[first:last], dtype=torch.float32) / 16
    return TensorDataset(images, torch.tensor(scanned.target[first:last]))


def create_model():
    torch.manual_seed(42)
    return nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))


def linear_decay(optimizer, updates):
    return LambdaLR(optimizer, lambda step: 1 - step / updates)


def with_accelerate(batch_size):
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)
    model, loss_func = create_model(), nn.CrossEntropyLoss()
    optimizer = optim.AdamW(model.parameters(), lr=LR)
    train_loader = DataLoader(digits(0, 320), batch_size, shuffle=False)
    eval_loader = DataLoader(digits(320, 421), batch_size)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    updates = EPOCHS * len(train_loader) // ACCUMULATION
    # Accelerate steps a prepared scheduler once for each process.
    scheduler = accelerator.prepare(linear_decay(optimizer, updates * accelerator.num_processes))
    accuracies = []
    for _ in range(EPOCHS):
        model.train()
        for images, labels in train_loader:
            with accelerator.accumulate(model):
                loss = loss_func(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        correct = []
        for images, labels in eval_loader:
            with torch.no_grad():
                predictions = model(images).argmax(-1)
            predictions, labels = accelerator.gather_for_metrics((predictions, labels))  # noqa: PLW2901
            correct.append(predictions == labels)
        accuracies.append(torch.cat(correct).float().mean().item())
    return accuracies, len(torch.cat(correct)), accelerator.unwrap_model(model).state_dict()


class TrainerWithAccuracy(Trainer):
    """What the loop of the guide does in evaluation, line by line."""

    def eval_epoch_start(self):
        super().eval_epoch_start()
        self.correct = []

    def calculate_eval_batch_loss(self, batch):
        output = super().calculate_eval_batch_loss(batch)
        predictions = output["model_outputs"].argmax(-1)
        predictions, labels = self._accelerator.gather_for_metrics((predictions, batch[1]))
        self.correct.append(predictions == labels)
        return output

    def eval_epoch_end(self):
        correct = torch.cat(self.correct)
        self.run_history.update_metric("accuracy", correct.float().mean().item())
        self.run_history.update_metric("num_evaluated", len(correct))


class TrainerWithLoadersOfItsOwn(TrainerWithAccuracy):
    """The loaders of the guide, unchanged."""

    def create_train_dataloader(self, batch_size, train_dl_kwargs=None):
        return DataLoader(self.train_dataset, batch_size, shuffle=False)

    def create_eval_dataloader(self, batch_size, eval_dl_kwargs=None):
        return DataLoader(self.eval_dataset, batch_size)


def with_trainer(batch_size, trainer_class=TrainerWithAccuracy):
    model = create_model()
    trainer = trainer_class(model, nn.CrossEntropyLoss(), optim.AdamW(model.parameters(), lr=LR), callbacks=[])
    updates = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    trainer.train(
        digits(0, 320),
        EPOCHS,
        digits(320, 421),
        batch_size,
        gradient_accumulation_steps=ACCUMULATION,
        gradient_clip_norm=1.0,
        create_scheduler_fn=partial(linear_decay, updates=updates),
        train_dataloader_kwargs={"shuffle": False},
    )
    history = trainer.run_history
    return history.get_metric_values("accuracy"), history.get_latest_metric("num_evaluated"), model.state_dict()
