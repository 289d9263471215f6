"""Fine-tune a timm model in stages.

A small convolutional network learns the digits 0 to 4; this stands for `pretrained=True`, which would download weights.
Its new task is the digits 5 to 9, of which only a hundred are there to learn from. First the new head learns, with all
else frozen. In each further stage, the next layer group below is unfrozen.

    pip install timm scikit-learn
    python examples/finetune_timm.py
    torchrun --nproc-per-node 2 examples/finetune_timm.py
    accelerate launch --mixed_precision bf16 examples/finetune_timm.py

The last lines that it prints:

    Stage 1: 453 parameters trained, 59.7% of new digits recognised
    Stage 2: 85,861 parameters trained, 92.1% of new digits recognised
    Stage 3: 176,981 parameters trained, 93.5% of new digits recognised
    Stage 4: 200,229 parameters trained, 95.7% of new digits recognised
"""

from __future__ import annotations

import argparse
from typing import Any

import timm
import torch
from sklearn.datasets import load_digits
from timm.models import ConvNeXt
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, random_split

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, Trainer, TrainerCallback
from pa_finetuning import GradualUnfreezing, ModelFreezer

Batch = tuple[Tensor, Tensor]
STAGES = 4


class UnfreezeStageByStage(GradualUnfreezing, TrainerCallback):
    """Gradual unfreezing as a callback: pa_finetuning does not know the trainer, so the script makes it one."""


class DigitsTrainer(Trainer):
    """A trainer that also records which share of the digits is recognised."""

    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (output["model_outputs"].argmax(dim=1) == batch[1]).float().mean())
        return output


class ReportStages(TrainerCallback):
    """Notes at the end of each stage how much is trained, and with what success."""

    def __init__(self, epochs_per_stage: int) -> None:
        self.epochs_per_stage = epochs_per_stage
        self.lines: list[str] = []

    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        stage, rest = divmod(trainer.run_history.current_epoch, self.epochs_per_stage)
        if rest == 0:
            trained = sum(one.numel() for one in trainer.get_model().parameters() if one.requires_grad)
            accuracy = trainer.run_history.get_latest_metric("eval_accuracy_epoch")
            self.lines.append(f"Stage {stage}: {trained:,} parameters trained, {accuracy:.1%} of new digits recognised")


def load_data() -> tuple[Dataset, Dataset, Dataset]:
    """Return the digits 0 to 4, then a hundred of the digits 5 to 9 to learn from, and the rest of these to test."""
    data, target = load_digits(return_X_y=True)
    pixels = torch.tensor(data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    names = torch.tensor(target)
    old, new = names < 5, names >= 5  # noqa: PLR2004  # the old digits are 0 to 4
    new_digits = TensorDataset(pixels[new], names[new] - 5)
    parts = [100, len(new_digits) - 100]
    few, rest = random_split(new_digits, parts, generator=torch.Generator().manual_seed(0))
    return TensorDataset(pixels[old], names[old]), few, rest


def main(epochs: int = 4) -> None:
    """Train on the old digits, fine-tune on a few new ones, and print what each stage achieved."""
    torch.manual_seed(0)
    old_digits, few_new_digits, new_test_digits = load_data()
    model = timm.create_model("test_convnext", num_classes=5, in_chans=1, patch_size=1)
    assert isinstance(model, ConvNeXt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    Trainer(model, nn.CrossEntropyLoss(), optimizer).train(old_digits, num_epochs=epochs, per_device_batch_size=32)

    model.reset_classifier(5)
    freezer = ModelFreezer(model, layer_groups=["stem", "stages.0", "stages.1", "stages.2", "stages.3", "head"])
    freezer.freeze(set_modules_as_eval=True)
    # Frozen parameters wait in the optimizer, so that one schedule and one training state cover all stages.
    rates = freezer.get_learning_rates(1e-2, factor=0.5)
    optimizer = torch.optim.AdamW(freezer.get_parameter_groups(rates, include_frozen=True))
    unfreeze = UnfreezeStageByStage(freezer, epochs_per_stage=epochs)
    report = ReportStages(epochs)
    trainer = DigitsTrainer(model, nn.CrossEntropyLoss(), optimizer, [*DEFAULT_CALLBACKS, report, unfreeze])
    trainer.train(few_new_digits, STAGES * epochs, new_test_digits, per_device_batch_size=20)
    trainer.print("\n".join(report.lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fine-tune a network of timm, stage by stage.")
    parser.add_argument("--epochs", type=int, default=4, help="how many epochs the old digits and each stage have")
    main(**vars(parser.parse_args()))
