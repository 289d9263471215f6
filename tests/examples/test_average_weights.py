"""The example that averages weights prints the truth about both kinds, on two processes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from tests.examples.shared_launches import SharedLaunches

EXAMPLE = Path(__file__).parents[2] / "examples" / "average_weights.py"


def test_the_average_recognises_more_digits(shared_launch: SharedLaunches) -> None:
    """The printed share is that of the saved average over the test digits, counted by hand, and the larger one."""
    launched = shared_launch("average_weights", "torchrun with two ranks")

    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model: torch.nn.Module = example["make_model"]().eval()
    model.load_state_dict(
        torch.load(launched.folder / "outputs" / "average_of_digits.pt", weights_only=True)["model_state_dict"]
    )
    ((images, digits),) = DataLoader(example["load_data"]()[2], batch_size=1000)
    recognised = (model(images).argmax(dim=1) == digits).float().mean().item()
    assert launched.status == 0
    shares = re.findall(r"Recognised ([\d.]+)% of the test digits with the (last|best)", launched.output)
    assert [kind for _, kind in shares] == ["last", "best"]
    assert shares[1][0] == f"{100 * recognised:.1f}"
    assert float(shares[1][0]) > float(shares[0][0])
