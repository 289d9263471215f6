"""The example of several evaluation sets chooses the best model by one of them, and prints the truth about each."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import WAYS

EXAMPLE = Path(__file__).parents[2] / "examples" / "several_evaluation_sets.py"


@pytest.mark.usefixtures("importable_torchvision")
@pytest.mark.parametrize("way", WAYS[:2])
def test_each_set_is_counted_with_the_best_weights(shared_launch: SharedLaunches, way: str) -> None:
    """The printed shares are those of the saved weights over each set, counted by hand."""
    launched = shared_launch("several_evaluation_sets", way)
    assert launched.status == 0

    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    best = torch.load(launched.folder / "outputs" / "several_evaluation_sets" / "best.pt", weights_only=True)
    model.load_state_dict(best["model_state_dict"])
    sets = example["load_data"]()[1]
    assert [*sets] == ["clean", "noisy", "shifted"]
    for name, dataset in sets.items():
        pixels, digits = dataset.tensors
        share = (model(pixels).argmax(dim=1) == digits).float().mean().item()
        assert re.search(rf"^{name} +{share:.1%} recognised$", launched.output, re.MULTILINE), name
