"""The example of a detector counts each digit once, on one process and on two."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.examples.shared_launches import SharedLaunches

EXAMPLE = Path(__file__).parents[2] / "examples" / "detect_digits.py"


def test_two_ranks_find_as_many_digits(shared_launch: SharedLaunches) -> None:
    """Two processes end where one does: metrics and losses are those of all images."""
    ends = [shared_launch("detect_digits", way) for way in ("python", "torchrun with two ranks")]

    assert [end.status for end in ends] == [0, 0]
    for name, off in (("eval_found_epoch", 0.05), ("eval_wrong_boxes_epoch", 0.1), ("eval_loss_epoch", 0.2)):
        single, pair = (float(re.findall(rf"{name} +([\d.]+)", end.output)[-1]) for end in ends)
        assert pair == pytest.approx(single, abs=off)
    assert float(re.findall(r"([\d.]+)% of the digits", ends[0].output)[-1]) > 70


def test_images_have_digits_where_their_boxes_are() -> None:
    """All ink is within the boxes, and each box has its digit; a batch keeps the targets apart."""
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    digits = torch.arange(1.0, 11.0)[:, None, None].expand(10, 8, 8)
    scenes = example["Scenes"](digits, torch.arange(10), 8)

    images, targets = example["collate"]([scenes[index] for index in range(8)])

    assert images.shape == (8, 1, 36, 36)
    assert [len(target["boxes"]) for target in targets] == [1, 2, 3, 4, 1, 2, 3, 4]
    for image, target in zip(images, targets, strict=True):
        for (left, top, right, bottom), label in zip(target["boxes"].int().tolist(), target["labels"], strict=True):
            assert (image[:, top:bottom, left:right] == label + 1).all()
            image[:, top:bottom, left:right] = 0
        assert not image.any()
    assert torch.equal(scenes[3][0], scenes[3][0])


def test_the_overlap_of_boxes() -> None:
    """Boxes that are the same have 1, halves have 1/2, others 0."""
    iou = runpy.run_path(str(EXAMPLE))["iou"]
    box = torch.tensor([0.0, 0, 4, 4])

    assert iou(box, torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 2], [4, 0, 8, 4], [2, 2, 6, 6]])).tolist() == [
        1, 0.5, 0, pytest.approx(4 / 28),
    ]  # fmt: skip
