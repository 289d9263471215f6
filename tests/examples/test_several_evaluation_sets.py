"""The example of several evaluation sets chooses the best model by one of them, and prints the truth about each."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "several_evaluation_sets.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_set_is_counted_with_the_best_weights(launch: Launch, ranks: int) -> None:
    """The printed shares are those of the saved weights over each set, counted by hand."""
    launched = launch(EXAMPLE, "--epochs=3", "--output=here", ranks=ranks)
    assert launched.status == 0

    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    best = torch.load(launch.folder / "here" / "best.pt", weights_only=True)
    model.load_state_dict(best["model_state_dict"])
    sets = example["load_data"]()[1]
    assert [*sets] == ["clean", "noisy", "shifted"]
    for name, dataset in sets.items():
        pixels, digits = dataset.tensors
        share = (model(pixels).argmax(dim=1) == digits).float().mean().item()
        assert re.search(rf"^{name} +{share:.1%} recognised$", launched.output, re.MULTILINE), name
