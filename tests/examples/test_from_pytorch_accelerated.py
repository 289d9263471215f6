"""The example of a script that was written for pytorch-accelerated tells the truth, and is such a script."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "porting" / "from_pytorch_accelerated.py"


def test_it_knows_nothing_of_ours_but_the_names_of_the_original() -> None:
    """The example imports none of our packages by its own name: nobody had to change it."""
    imports = [node for node in ast.walk(ast.parse(EXAMPLE.read_text())) if isinstance(node, ast.ImportFrom)]
    imported = {str(node.module).partition(".")[0] for node in imports}

    assert "pytorch_accelerated" in imported
    assert [name for name in imported if name.startswith("pa_")] == []


def test_two_ranks_print_the_share_of_the_saved_average(launch: Launch) -> None:
    """The printed share is that of the saved average over the 300 test digits, counted by hand."""
    launched = launch(EXAMPLE, "--epochs=6", "--output=best", ranks=2)

    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model: torch.nn.Module = example["create_model"]().eval()
    saved = torch.load(launch.folder / "best" / "averaged_digits.pt", weights_only=True)
    model.load_state_dict(saved["model_state_dict"])
    ((pixels, digits),) = DataLoader(example["load_data"]()[2], batch_size=300)
    recognised = (model(pixels).argmax(dim=1) == digits).sum().item()
    assert launched.status == 0
    assert f"Recognised {recognised / 300:.1%} of the test digits with averaged weights" in launched.output
    assert recognised >= 285
    assert "Trained by pa_core.trainer" in launched.output
