"""The digits example prints the truth, and computes in the precision that was asked for."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.examples.shared_launches import SharedLaunches

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"


def test_two_ranks_count_each_test_digit_once(shared_launch: SharedLaunches) -> None:
    """The printed share is that of the saved weights over the 300 test digits, counted by hand."""
    launched = shared_launch("train_digits", "torchrun with two ranks")

    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model: torch.nn.Module = example["make_model"]().eval()
    best = torch.load(launched.folder / "outputs" / "train_digits" / "best_digits.pt", weights_only=True)
    model.load_state_dict(best["model_state_dict"])
    ((pixels, digits),) = DataLoader(example["load_data"]()[2], batch_size=300)
    recognised = (model(pixels).argmax(dim=1) == digits).sum().item()
    assert launched.status == 0
    assert f"Recognised {recognised / 300:.1%} of the test digits" in launched.output
