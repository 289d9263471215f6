"""Detect objects, with targets of different lengths and a custom `collate_fn`.

Each image shows one to four of scikit-learn's digits in different sizes. Its target is a dict of `boxes` and `labels`.
The detector has one stage and no anchors: each cell of a grid predicts which digit has its centre there, and its box.
The loss is a mean over digits: with `num_items_in_batch`, each digit counts the same on any number of processes.

    pip install scikit-learn
    python examples/detect_digits.py
    torchrun --nproc-per-node 2 examples/detect_digits.py
    accelerate launch --mixed_precision bf16 examples/detect_digits.py

A digit is found if a box of its class overlaps its own with an IoU of at least 0.5. The last line that it prints:

    92.3% of the digits in 300 other images are found, with 0.08 wrong boxes per image
"""

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate, max_pool2d
from torch.utils.data import Dataset

from pa_core import Trainer

Target = dict[str, Tensor]
SLOT, CELL = 12, 4  # pixels: an image has 3x3 slots for digits, and the detector's grid has 9x9 cells
THRESHOLD = 0.5  # of the probability of a box, and of its IoU


class Scenes(Dataset[tuple[Tensor, Target]]):
    """Images with one to four digits each, always the same at an index."""

    def __init__(self, digits: Tensor, labels: Tensor, length: int) -> None:
        self.digits, self.labels, self.length = digits, labels, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        random = torch.Generator().manual_seed(index)
        slots = torch.randperm(9, generator=random)[: 1 + index % 4]
        chosen = torch.randint(len(self.digits), slots.shape, generator=random)
        sizes = torch.randint(8, SLOT + 1, (len(slots), 1), generator=random)
        corners = torch.stack([slots % 3, slots // 3], dim=1) * SLOT + (SLOT - sizes) // 2
        boxes, image = torch.cat([corners, corners + sizes], dim=1), torch.zeros(1, 3 * SLOT, 3 * SLOT)
        for digit, (left, top, right, bottom) in zip(self.digits[chosen], boxes, strict=True):
            image[:, top:bottom, left:right] = interpolate(digit[None, None], size=int(right - left))[0]
        return image, {"boxes": boxes.float(), "labels": self.labels[chosen]}


def collate(samples: list[tuple[Tensor, Target]]) -> tuple[Tensor, list[Target]]:
    """Stack the images, and keep the targets as a list."""
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


class Detector(nn.Module):
    """Maps images to logits of ten digits and to a box (left, top, right, bottom), for each cell of a grid."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())
            for inputs, outputs, stride in [(1, 32, 2), (32, 64, 2), (64, 64, 1), (64, 64, 1)]
        ]
        self.layers = nn.Sequential(*blocks, nn.Conv2d(64, 14, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        outputs: Tensor = self.layers(images).float()
        middles = (torch.arange(outputs.shape[-1], device=images.device) + 0.5) * CELL
        y, x = torch.meshgrid(middles, middles, indexing="ij")
        left, top, right, bottom = outputs[:, 10:].exp().mul(CELL).unbind(dim=1)
        return outputs[:, :10] - 4, torch.stack([x - left, y - top, x + right, y + bottom], dim=-1)


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of boxes."""
    overlap = torch.minimum(boxes[..., 2:], others[..., 2:]) - torch.maximum(boxes[..., :2], others[..., :2])
    area, other_area = ((one[..., 2:] - one[..., :2]).prod(dim=-1) for one in (boxes, others))
    intersection = overlap.clamp(min=0).prod(dim=-1)
    return intersection / (area + other_area - intersection)


class DetectionTrainer(Trainer):
    """Trains with a mean over digits, and evaluates how many are found."""

    def calculate_train_batch_loss(self, batch: tuple[Tensor, list[Target]]) -> dict[str, Any]:
        images, targets = batch
        logits, boxes = outputs = self.model(images)
        labels, true_boxes = (torch.cat([target[key] for target in targets]) for key in ("labels", "boxes"))
        image = torch.cat([torch.full_like(target["labels"], index) for index, target in enumerate(targets)])
        column, row = ((true_boxes[:, :2] + true_boxes[:, 2:]) / 2 / CELL).long().unbind(dim=1)
        centres = torch.zeros_like(logits)
        centres[image, labels, row, column] = 1
        loss = binary_cross_entropy_with_logits(logits, centres, reduction="sum")
        loss = (loss + (1 - iou(boxes[image, row, column], true_boxes)).sum()) / len(labels)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(images), "num_items_in_batch": len(labels)}

    def calculate_eval_batch_loss(self, batch: tuple[Tensor, list[Target]]) -> dict[str, Any]:
        output = self.calculate_train_batch_loss(batch)
        logits, boxes = output["model_outputs"]
        scores, classes = logits.sigmoid().max(dim=1)
        peaks = (scores > THRESHOLD) & (scores == max_pool2d(scores, kernel_size=3, stride=1, padding=1))
        fits = [
            (iou(target["boxes"][:, None], drawn[kept]) >= THRESHOLD) & (target["labels"][:, None] == labels[kept])
            for target, drawn, labels, kept in zip(batch[1], boxes, classes, peaks, strict=True)
        ]
        self.log("found", torch.stack([fit.any(dim=1).float().mean() for fit in fits]).mean())
        self.log("wrong_boxes", torch.stack([(~fit.any(dim=0)).float().sum() for fit in fits]).mean())
        return output


def main(epochs: int = 4) -> None:
    """Train, and print how many digits are found."""
    torch.manual_seed(0)
    pixels, classes = load_digits(return_X_y=True)
    digits, labels = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 8, 8), torch.tensor(classes)
    train_scenes, eval_scenes = Scenes(digits[:1500], labels[:1500], 2000), Scenes(digits[1500:], labels[1500:], 300)
    trainer = DetectionTrainer(model := Detector(), None, torch.optim.AdamW(model.parameters(), lr=5e-3))
    trainer.train(train_scenes, epochs, eval_scenes, 32 // trainer.num_processes, collate_fn=collate)
    found, wrong = map(trainer.run_history.get_latest_metric, ("eval_found_epoch", "eval_wrong_boxes_epoch"))
    trainer.print(f"{found:.1%} of the digits in 300 other images are found, with {wrong:.2f} wrong boxes per image")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a detector of digits.")
    parser.add_argument("--epochs", type=int, default=4, help="how often to go over the images")
    main(parser.parse_args().epochs)
