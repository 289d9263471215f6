"""Mixed images with soft targets in training, plain ones in evaluation, and moving averages of the weights."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103, T201

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset, random_split
from torchmetrics import Accuracy

from pytorch_accelerated.callbacks import ModelEmaCallback
from pytorch_accelerated.trainer import Trainer
from pytorch_accelerated.utils import ModelEma

NUM_CLASSES = 10


class Mixup:
    """Each image becomes a mixture of itself and another one of the batch, and so does its target."""

    def __init__(self, alpha):
        self.weights = torch.distributions.Beta(alpha, alpha)

    def __call__(self, images, labels):
        weight = self.weights.sample()
        targets = nn.functional.one_hot(labels, NUM_CLASSES).float()
        return weight * images + (1 - weight) * images.flip(0), weight * targets + (1 - weight) * targets.flip(0)


class MixupTrainer(Trainer):
    """Trains on mixtures and evaluates on plain images, with a loss of its own."""

    def __init__(self, mixup, eval_loss_func, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mixup = mixup
        self.eval_loss_func = eval_loss_func
        self.accuracy = Accuracy(task="multiclass", num_classes=NUM_CLASSES)

    def calculate_train_batch_loss(self, batch):
        return super().calculate_train_batch_loss(self.mixup(*batch))

    def calculate_eval_batch_loss(self, batch):
        images, labels = batch
        with torch.no_grad():
            logits = self.model(images)
        self.accuracy.update(logits.argmax(-1), labels)
        return {"loss": self.eval_loss_func(logits, labels), "model_outputs": logits, "batch_size": images.size(0)}

    def eval_epoch_end(self):
        super().eval_epoch_end()
        self.run_history.update_metric("accuracy", self.accuracy.compute().cpu())
        self.accuracy.reset()


class AveragingTrainer(MixupTrainer):
    """Averages the weights itself, and evaluates the average side by side with the model."""

    def training_run_start(self):
        self.ema_model = ModelEma(self._accelerator.unwrap_model(self.model), decay=0.9)
        self.ema_accuracy = Accuracy(task="multiclass", num_classes=NUM_CLASSES)

    def optimizer_step(self):
        super().optimizer_step()
        self.ema_model.update(self._accelerator.unwrap_model(self.model))

    def calculate_eval_batch_loss(self, batch):
        with torch.no_grad():
            self.ema_accuracy.update(self.ema_model.module(batch[0]).argmax(-1), batch[1])
        return super().calculate_eval_batch_loss(batch)

    def eval_epoch_end(self):
        super().eval_epoch_end()
        self.run_history.update_metric("ema_accuracy", self.ema_accuracy.compute().cpu())
        self.ema_accuracy.reset()


def train(trainer_class, callbacks, per_device_batch_size):
    torch.manual_seed(0)
    scanned = load_digits()
    digits = TensorDataset(torch.tensor(scanned.images, dtype=torch.float32) / 16, torch.tensor(scanned.target))
    train_dataset, eval_dataset = random_split(digits, [1500, 297], generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))
    trainer = trainer_class(
        Mixup(alpha=0.4),
        nn.CrossEntropyLoss(),
        model,
        loss_func=nn.CrossEntropyLoss(label_smoothing=0.1),
        optimizer=optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        callbacks=callbacks,
    )
    trainer.train(
        train_dataset,
        num_epochs=4,
        eval_dataset=eval_dataset,
        per_device_batch_size=per_device_batch_size,
        train_dataloader_kwargs={"drop_last": True},
    )
    history = trainer.run_history
    return {name: [float(value) for value in history.get_metric_values(name)] for name in history.get_metric_names()}


def main(per_device_batch_size=32):
    average = ModelEmaCallback(decay=0.9, watch_metric="ema_model_accuracy", greater_is_better=True)
    return {
        "by_hand": train(AveragingTrainer, [], per_device_batch_size),
        "by_callback": train(MixupTrainer, [average], per_device_batch_size),
    }


if __name__ == "__main__":
    print(main())
