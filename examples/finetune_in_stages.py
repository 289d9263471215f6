"""Fine-tune a small convolutional network: the digits 0 to 4 teach it to see, the digits 5 to 9 are its new task.

Of the new digits only a hundred are there to learn from. The head learns first, with all else frozen; then one layer
group after another is unfrozen, each with a smaller learning rate than the one behind it. This file runs unchanged in
one process or several, in full or mixed precision:

    python examples/finetune_in_stages.py
    python examples/finetune_in_stages.py --by-hand
    accelerate launch --mixed_precision bf16 examples/finetune_in_stages.py
    torchrun --nproc-per-node 2 examples/finetune_in_stages.py
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import Subset, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, BatchOutput, Trainer, TrainerCallback, TrainerPlaceholderValues
from pa_finetuning import GradualUnfreezing, ModelFreezer

EPOCHS_PER_STAGE = 4


class DigitsNet(nn.Module):
    """A backbone of two blocks of convolutions, and a head for five digits."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()),
        )
        self.head = nn.Linear(32 * 4 * 4, 5)

    @override
    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(pixels))
        return logits


class UnfreezeStageByStage(GradualUnfreezing, TrainerCallback):
    """Gradual unfreezing as a callback: pa_finetuning does not know the trainer, so the script makes it one."""


class UnfreezeByHand(TrainerCallback):
    """The same, written by hand: one more layer group after each stage."""

    def __init__(self, freezer: ModelFreezer) -> None:
        self.freezer = freezer

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        stages_over = trainer.run_history.current_epoch // EPOCHS_PER_STAGE
        self.freezer.unfreeze(from_index=-1, to_index=max(0, 2 - stages_over))


class AccuracyCallback(TrainerCallback):
    """Records the share of digits that were recognised in each evaluation, counted over all processes."""

    def __init__(self) -> None:
        self.accuracy = MulticlassAccuracy(num_classes=5, average="micro")

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.accuracy.to(trainer.device).reset()

    @override
    def on_eval_step_end(
        self, trainer: AnyTrainer, batch: tuple[Tensor, Tensor], batch_output: BatchOutput, **kwargs: Any
    ) -> None:
        self.accuracy.update(batch_output["model_outputs"], batch[1])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.run_history.update_metric("accuracy", self.accuracy.compute())


def load_data() -> tuple[TensorDataset, Subset[tuple[Tensor, ...]], Subset[tuple[Tensor, ...]]]:
    """Return the digits 0 to 4, then a hundred of the digits 5 to 9 to learn from, and the rest of these to test."""
    digits: Any = load_digits()  # pyright: ignore[reportUnknownVariableType]  # it has no types
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    names = torch.tensor(digits.target)
    old, new = names < 5, names >= 5  # noqa: PLR2004  # the old digits are 0 to 4
    new_digits = TensorDataset(pixels[new], names[new] - 5)
    parts = [100, len(new_digits) - 100]
    few, rest = random_split(new_digits, parts, generator=torch.Generator().manual_seed(0))
    return TensorDataset(pixels[old], names[old]), few, rest


def main(by_hand: bool = False) -> None:
    """Train on the old digits, fine-tune on a few new ones, and print how many of the others are recognised."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    old_digits, few_new_digits, new_test_digits = load_data()
    model = DigitsNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    Trainer(model, nn.CrossEntropyLoss(), optimizer).train(old_digits, num_epochs=5, per_device_batch_size=32)

    model.head = nn.Linear(model.head.in_features, 5)
    freezer = ModelFreezer(model, freeze_batch_norms=True, layer_groups=["backbone.0", "backbone.1", "head"])
    freezer.freeze(set_modules_as_eval=True)
    learning_rates = freezer.get_learning_rates(1e-2, factor=0.3)
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        # Frozen parameters wait in the optimizer, so that one schedule covers all stages.
        optimizer=torch.optim.AdamW(freezer.get_parameter_groups(learning_rates, include_frozen=True)),
        callbacks=[
            UnfreezeByHand(freezer) if by_hand else UnfreezeStageByStage(freezer, epochs_per_stage=EPOCHS_PER_STAGE),
            AccuracyCallback,
            *DEFAULT_CALLBACKS,
        ],
    )
    trainer.train(
        few_new_digits,
        num_epochs=3 * EPOCHS_PER_STAGE,
        eval_dataset=new_test_digits,
        per_device_batch_size=10,
        eval_dataloader_kwargs={"batch_size": 200},
        create_scheduler_fn=partial(
            CosineAnnealingLR,
            T_max=TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        ),
    )
    accuracy = float(trainer.run_history.get_latest_metric("accuracy"))
    trainer.print(f"Recognised {accuracy:.1%} of the new test digits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fine-tune a small network on scanned digits, stage by stage.")
    parser.add_argument("--by-hand", action="store_true", help="unfreeze with a callback of the script's own")
    main(parser.parse_args().by_hand)
