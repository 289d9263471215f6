"""Loops with updates over data of their own end, when they were killed in the middle of a batch, with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.launching import Launch

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLED_AFTER = Path(__file__).parent / "killed_after.py"


@pytest.mark.whole_proof
@pytest.mark.parametrize(
    ("name", "epochs", "after"), [("ppo", 2, 77), ("replay_buffer", 4, 250), ("truncated_bptt", 1, 60)]
)
def test_it_ends_with_the_same_bits_when_it_was_killed(launch: Launch, name: str, epochs: int, after: int) -> None:
    """In the middle of a rollout's updates, of those that follow some episodes, or of an excerpt, which begins again.

    All that is saved at the end is compared, but not the RNG state of NumPy, which the examples do not seed.
    """
    example, arguments = EXAMPLES / f"{name}.py", [f"--epochs={epochs}"]
    whole = launch(example, *arguments, "--output=whole")
    killed = launch(KILLED_AFTER, str(after), str(example), *arguments, "--output=killed")
    resumed = launch(example, *arguments, "--output=killed")
    assert (whole.status, resumed.status) == (0, 0)
    assert killed.status != 0
    assert "Resuming from killed/states/" in resumed.output
    expected, found = (_tensors_in(launch.folder / folder / "states" / "final") for folder in ("whole", "killed"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())


def _tensors_in(state: Path) -> dict[str, Tensor]:
    files = sorted(state.glob("*.safetensors"))
    return {
        f"{file.name} {key}": tensor
        for file in files
        for key, tensor in load_file(file).items()
        if "/numpy/" not in key
    }
