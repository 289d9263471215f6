"""The example that averages weights prints the truth about both kinds, on one process and on two."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.examples.ways import WAYS

if TYPE_CHECKING:
    from tests.examples.shared_launches import SharedLaunches

EXAMPLE = Path(__file__).parents[2] / "examples" / "average_weights.py"


@pytest.mark.usefixtures("importable_torchvision")
@pytest.mark.parametrize("way", WAYS[:2])
def test_the_average_recognises_more_digits(shared_launch: SharedLaunches, way: str) -> None:
    """The printed share is that of the saved average, counted by hand; after some epochs, it is the larger one."""
    launched = shared_launch("average_weights", way)

    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model: torch.nn.Module = example["make_model"]().eval()
    model.load_state_dict(
        torch.load(launched.folder / "outputs" / "average_weights" / "average_of_digits.pt", weights_only=True)[
            "model_state_dict"
        ]
    )
    ((images, digits),) = DataLoader(example["load_data"]()[2], batch_size=1000)
    recognised = (model(images).argmax(dim=1) == digits).float().mean().item()
    assert launched.status == 0
    shares = re.findall(r"Recognised ([\d.]+)% of the test digits with the (last|best)", launched.output)
    assert [kind for _, kind in shares] == ["last", "best"]
    assert shares[1][0] == f"{100 * recognised:.1f}"
    if way == "python":  # the run on two ranks is short
        assert float(shares[1][0]) > float(shares[0][0])
