"""Detection: images with different numbers of objects, in lists, and a model with one output for each mode."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: B905, D102, D103, T201

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import Dataset

from pytorch_accelerated.callbacks import SaveBestModelCallback, TrainerCallback
from pytorch_accelerated.trainer import Trainer
from pytorch_accelerated.utils import remove_padding

PADDING_VALUE = -2.0
CELLS = 3


class ScatteredDigits(Dataset):
    """Images with four scanned digits, each in a cell of its own; the objects to find are the even ones."""

    def __init__(self, first, number):
        scanned = load_digits()
        part = slice(first, first + 4 * number)
        self.digits = torch.tensor(scanned.images[part], dtype=torch.float32).reshape(number, 4, 8, 8) / 16
        self.is_object = torch.tensor(scanned.target[part] % 2 == 0).reshape(number, 4)
        generator = np.random.default_rng(first)
        self.cells = torch.tensor(np.stack([generator.permutation(CELLS * CELLS)[:4] for _ in range(number)]))

    def __len__(self):
        """The number of images."""
        return len(self.cells)

    def __getitem__(self, index):
        image = torch.zeros(CELLS * CELLS, 8, 8)
        image[self.cells[index]] = self.digits[index]
        image = image.reshape(CELLS, CELLS, 8, 8).transpose(1, 2).reshape(1, 8 * CELLS, 8 * CELLS)
        objects = self.cells[index][self.is_object[index]]
        return image, {"corners": torch.stack([objects % CELLS, objects // CELLS], dim=1), "image_id": index}


def collate_lists(samples):
    images, targets = zip(*samples)
    return list(images), list(targets)


class Detector(nn.Module):
    """Says for each cell whether there is a digit: a dict of losses in training, detections in evaluation."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 32, 8, stride=8), nn.ReLU(), nn.Conv2d(32, 1, 1))

    def forward(self, images, targets=None):
        logits = self.layers(torch.stack(images)).squeeze(1).float()
        if self.training:
            return {"loss_cells": nn.functional.binary_cross_entropy_with_logits(logits, self.truth(logits, targets))}
        scores = logits.sigmoid()
        found = [(image > 0.5).nonzero() for image in scores]
        return [
            {"corners": cells.flip(1), "scores": image[cells[:, 0], cells[:, 1]]} for cells, image in zip(found, scores)
        ]

    def truth(self, logits, targets):
        truth = torch.zeros_like(logits)
        for image, target in zip(truth, targets):
            image[target["corners"][:, 1], target["corners"][:, 0]] = 1
        return truth


class DetectionTrainer(Trainer):
    """Adds up the losses of the model; there is none in evaluation."""

    def calculate_train_batch_loss(self, batch):
        images, targets = batch
        losses = self.model(images, targets)
        return {"loss": sum(losses.values()), "model_outputs": losses, "batch_size": len(images)}

    def calculate_eval_batch_loss(self, batch):
        images, targets = batch
        with torch.no_grad():
            detections = self.model(images)
        rows = [
            torch.cat([torch.full((len(found["scores"]), 1), target["image_id"]), found["corners"]], dim=1).float()
            for found, target in zip(detections, targets)
            if len(found["scores"]) > 0
        ]
        # A process that has found nothing takes part with a placeholder.
        predictions = torch.cat(rows) if rows else torch.tensor([PADDING_VALUE] * 3).float()
        gathered = self.gather(predictions.to(self._eval_dataloader.device), padding_value=PADDING_VALUE)
        return {
            "loss": torch.tensor(0.0, device=self.device),
            "model_outputs": detections,
            "batch_size": len(images),
            "predictions": remove_padding(gathered, PADDING_VALUE).cpu(),
        }


class CompareWithTruth(TrainerCallback):
    """Records which share of the detections and of the objects found each other."""

    def __init__(self, dataset):
        super().__init__()
        self.truth = {
            (index, *corner) for index in range(len(dataset)) for corner in dataset[index][1]["corners"].tolist()
        }
        self.found = []

    def on_eval_epoch_start(self, trainer, **kwargs):
        self.found = []

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        self.found.extend(tuple(int(value) for value in row) for row in batch_output["predictions"].tolist())

    def on_eval_epoch_end(self, trainer, **kwargs):
        agreement = np.float64(len(self.truth & set(self.found)) / max(len(self.truth | set(self.found)), 1))
        trainer.run_history.update_metric("agreement", agreement)
        trainer.run_history.update_metric("num_detections", len(self.found))


def main(per_device_batch_size=8):
    torch.manual_seed(0)
    eval_dataset = ScatteredDigits(1200, 45)
    model = Detector()
    trainer = DetectionTrainer(
        model=model,
        loss_func=None,
        optimizer=optim.Adam(model.parameters(), lr=0.02),
        callbacks=[
            CompareWithTruth(eval_dataset),
            SaveBestModelCallback(save_path="detector.pt", watch_metric="agreement", greater_is_better=True),
        ],
    )
    trainer.train(
        train_dataset=ScatteredDigits(0, 300),
        eval_dataset=eval_dataset,
        num_epochs=6,
        per_device_batch_size=per_device_batch_size,
        collate_fn=collate_lists,
        train_dataloader_kwargs={"num_workers": 0},
        eval_dataloader_kwargs={"num_workers": 0},
    )
    history = trainer.run_history
    return {
        "train_loss_epoch": [float(value) for value in history.get_metric_values("train_loss_epoch")],
        "agreement": [float(value) for value in history.get_metric_values("agreement")],
        "num_detections": history.get_latest_metric("num_detections"),
    }


if __name__ == "__main__":
    print(main())
