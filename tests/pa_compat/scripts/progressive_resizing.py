"""One model, trained on small images first and on larger ones later, in several runs of one trainer."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103, T201

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset, random_split

from pytorch_accelerated import Trainer, TrainerPlaceholderValues
from pytorch_accelerated.callbacks import TrainerCallback

MAX_LR = 0.02


class ResizedDigits(Dataset):
    """Scanned digits at any size."""

    def __init__(self, size):
        scanned = load_digits()
        images = torch.tensor(scanned.images, dtype=torch.float32).unsqueeze(1) / 16
        self.images = nn.functional.interpolate(images, size=(size, size), mode="bilinear")
        self.targets = torch.tensor(scanned.target)

    def __len__(self):
        """The number of digits."""
        return len(self.targets)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


class NoteSizes(TrainerCallback):
    """Notes the size of the images, the epoch and the learning rate of each epoch."""

    def __init__(self):
        self.epochs = []

    def on_train_step_end(self, trainer, batch, batch_output, **kwargs):
        self.size = batch[0].shape[-1]

    def on_training_run_epoch_end(self, trainer, **kwargs):
        self.epochs.append((self.size, trainer.run_history.current_epoch))


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def main(per_device_batch_size=32):
    torch.manual_seed(0)
    model = build_model()
    notes = NoteSizes()
    trainer = Trainer(model, nn.CrossEntropyLoss(), optim.Adam(model.parameters(), lr=0.001), callbacks=[notes])
    for size in (8, 12, 16):
        train_dataset, eval_dataset, _ = random_split(
            ResizedDigits(size), [500, 197, 1100], generator=torch.Generator().manual_seed(0)
        )
        trainer.train(
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            num_epochs=2,
            per_device_batch_size=per_device_batch_size,
            train_dataloader_kwargs={"num_workers": 0},
            eval_dataloader_kwargs={"num_workers": 0},
            create_scheduler_fn=partial(
                OneCycleLR,
                max_lr=MAX_LR,
                epochs=TrainerPlaceholderValues.NUM_EPOCHS,
                steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
            ),
            reset_run_history=False,
        )
    return {
        "epochs": notes.epochs,
        "train_loss_epoch": list(trainer.run_history.get_metric_values("train_loss_epoch")),
        "eval_loss_epoch": list(trainer.run_history.get_metric_values("eval_loss_epoch")),
        "last_rate": trainer.optimizer.param_groups[0]["lr"],
    }


if __name__ == "__main__":
    print(main())
