"""The digits example prints the truth, and computes in the precision that was asked for."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.examples.shared_launches import SharedLaunches
from tests.launching import forked_python, run_command

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"

RUN_OBSERVED = """
import runpy, sys
import torch

dtypes = set()

def note(module, inputs, output):
    if isinstance(module, torch.nn.Linear):
        dtypes.add(str(output.dtype))

torch.nn.modules.module.register_module_forward_hook(note)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
print("layers computed in", *dtypes)
"""


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


def test_mixed_precision_reaches_the_layers(tmp_path: Path) -> None:
    """Under `accelerate launch --mixed_precision bf16`, every linear layer computes in bfloat16."""
    observed = tmp_path / "run_observed.py"
    observed.write_text(RUN_OBSERVED)
    python = forked_python()
    accelerate = [*python, "-m", "accelerate.commands.launch", "--no_python", "--mixed_precision=bf16"]
    command = [*accelerate, *python, "-u", str(observed), str(EXAMPLE), "--epochs=1"]
    launched = run_command(command, folder=tmp_path, env={"HF_HOME": str(tmp_path)})
    assert launched.status == 0
    assert "layers computed in torch.bfloat16\n" in launched.output
