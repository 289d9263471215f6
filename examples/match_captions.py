"""Train CLIP: a contrastive loss over all processes.

One tower reads scanned digits, the other one captions such as "a handwritten seven". The loss compares each image with
the captions of the whole batch on all processes: `gather(..., with_gradient=True)` collects them, and returns their
gradients. So two processes with 32 pairs each compute the update of one process with 64.

    python examples/match_captions.py
    torchrun --nproc-per-node 2 examples/match_captions.py
    torchrun --nproc-per-node 2 examples/match_captions.py --shard
    accelerate launch --mixed_precision bf16 examples/match_captions.py

With `--shard`, each process has a piece of the model (FSDP2). The last line that it prints:

    Of 297 new digits, 98.3% are closest to the caption of their own name
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset, random_split

from pa_core import Trainer

Batch = tuple[Tensor, Tensor, Tensor]
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = ("the digit {}", "a handwritten {}", "{}, scanned")
LENGTH = 20
PAIRS = 64


def encode(caption: str) -> list[int]:
    """Return a caption as character codes, filled up with zeros."""
    return [ord(character) for character in caption.ljust(LENGTH, "\0")]


class TwoTowers(nn.Module):
    """Places images and captions in one space, on the unit sphere."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.captions = nn.Sequential(
            nn.Embedding(128, 16), nn.Flatten(), nn.Linear(16 * LENGTH, 128), nn.ReLU(), nn.Linear(128, 32)
        )
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, pixels: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        images, texts = self.images(pixels), self.captions(captions)
        return nn.functional.normalize(images, dim=-1) * self.scale.exp(), nn.functional.normalize(texts, dim=-1)


class CaptionTrainer(Trainer):
    """Trains on all pairs of a batch, on all processes."""

    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        pixels, captions, digits = batch
        placed = self.model(pixels, captions)
        images, texts, digits = self.gather((*placed, digits), with_gradient=True)
        matches = (digits[:, None] == digits).float()  # a batch has several images of a digit
        logits, shares = images @ texts.T, matches / matches.sum(dim=1)
        loss = (nn.functional.cross_entropy(logits, shares) + nn.functional.cross_entropy(logits.T, shares)) / 2
        return {"loss": loss, "model_outputs": placed[0], "batch_size": len(pixels)}

    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        pixels, _, digits = batch
        names = torch.tensor([encode(TEMPLATES[0].format(name)) for name in NAMES], device=self.device)
        images, texts = self.model(pixels, names)
        logits = images @ texts.T
        self.log("accuracy", (logits.argmax(dim=1) == digits).float().mean())
        loss = nn.functional.cross_entropy(logits, digits)
        return {"loss": loss, "model_outputs": logits, "batch_size": len(pixels)}


class ShardingCaptionTrainer(CaptionTrainer):
    """Gives each process a piece of the model."""

    def create_accelerator(self) -> Any:
        return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))


def main(epochs: int = 10, shard: bool = False) -> None:
    """Train on captioned digits, and print how many new ones are recognised by their captions."""
    torch.manual_seed(0)
    data, target = load_digits(return_X_y=True)
    captions = [TEMPLATES[row % 3].format(NAMES[int(digit)]) for row, digit in enumerate(target)]
    pixels = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16
    pairs = TensorDataset(pixels, torch.tensor([encode(one) for one in captions]), torch.tensor(target))
    train_dataset, eval_dataset = random_split(pairs, [1500, 297], generator=torch.Generator().manual_seed(0))
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trainer = (ShardingCaptionTrainer if shard else CaptionTrainer)(model, None, optimizer)
    size, whole_batches = PAIRS // trainer.num_processes, {"drop_last": True}
    trainer.train(train_dataset, epochs, eval_dataset, size, train_dataloader_kwargs=whole_batches)
    accuracy = trainer.run_history.get_latest_metric("eval_accuracy_epoch")
    trainer.print(f"Of {len(eval_dataset)} new digits, {accuracy:.1%} are closest to the caption of their own name")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Match scanned digits with captions.")
    parser.add_argument("--epochs", type=int, default=10, help="how often to go over the pairs")
    parser.add_argument("--shard", action="store_true", help="give each of several processes a piece of the model")
    main(**vars(parser.parse_args()))
