"""Train on small images first, then larger ones.

Each stage is a call of `train()` with images of its size. Small ones are cheap, and a network whose last pooling adapts
to the size learns much of what it needs from them. The schedule is made in the first stage, for the updates of all of
them: a call without `create_scheduler_fn` continues the scheduler of the previous call, and `reset_run_history=False`
continues its history. Evaluations have the full size in all stages.

    python examples/progressive_resizing.py
    torchrun --nproc-per-node 2 examples/progressive_resizing.py
    accelerate launch --mixed_precision bf16 examples/progressive_resizing.py

The last lines that it prints:

    pixels  epochs  learning rate at the end  recognised at 8 x 8
    4 x 4   1-4     0.0099                    63.1%
    6 x 6   5-8     0.0046                    86.3%
    8 x 8   9-12    0.0000                    98.3%
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from pa_callbacks_extra import TorchMetricsCallback
from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_core import TrainerPlaceholderValues as Placeholder

Batch = tuple[Tensor, Tensor]
SIZES = 4, 6, 8


def load_data() -> tuple[Tensor, Tensor]:
    """Return the images that come with scikit-learn, in a random order, and which digits they show."""
    data, target = load_digits(return_X_y=True)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return images[order], torch.tensor(target)[order]


def resize(images: Tensor, size: int) -> Tensor:
    """Return images of another size. Photographs would be read in that size by the dataset of the stage."""
    return interpolate(images, size=(size, size), mode="area")


def make_model() -> nn.Sequential:
    """Return a network for images of any size."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def main(epochs: int = 4) -> None:
    """Train in each size for some epochs, and print how well the full size is recognised after each."""
    torch.manual_seed(0)
    images, digits = load_data()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    accuracy = MetricCollection({"accuracy": MulticlassAccuracy(num_classes=10, average="micro")})
    metrics = TorchMetricsCallback(accuracy)
    # Metrics come before the callbacks that print them.
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[metrics, *DEFAULT_CALLBACKS])

    updates = len(SIZES) * Placeholder.NUM_EPOCHS * Placeholder.NUM_UPDATE_STEPS_PER_EPOCH
    one_cycle = partial(OneCycleLR, max_lr=1e-2, total_steps=updates)
    table = ["pixels  epochs  learning rate at the end  recognised at 8 x 8"]
    for stage, size in enumerate(SIZES):
        trainer.train(
            TensorDataset(resize(images[:1200], size), digits[:1200]),
            num_epochs=epochs,
            eval_dataset=TensorDataset(images[1200:], digits[1200:]),
            per_device_batch_size=32,
            create_scheduler_fn=one_cycle if stage == 0 else None,
            reset_run_history=stage == 0,
        )
        span, rate = f"{stage * epochs + 1}-{(stage + 1) * epochs}", optimizer.param_groups[0]["lr"]
        recognised = float(trainer.run_history.get_latest_metric("eval_accuracy"))
        table.append(f"{size} x {size}   {span:6}  {rate:<24.4f}  {recognised:.1%}")
    trainer.print("\n".join(table))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on digits whose size grows.")
    parser.add_argument("--epochs", type=int, default=4, help="how many epochs each size is trained for")
    main(parser.parse_args().epochs)
