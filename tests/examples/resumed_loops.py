"""What a loop with updates over data of its own ends with when it was killed in the middle of a batch."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.launching import Launch

__all__ = ["ends_as_if_it_had_not_been_killed", "numbers_in"]

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLED_AFTER = Path(__file__).parent / "killed_after.py"


def numbers_in(output: str, pattern: str) -> list[float]:
    """The numbers that the one group of a pattern finds."""
    return [float(found) for found in re.findall(pattern, output)]


def ends_as_if_it_had_not_been_killed(launch: Launch, name: str, *arguments: str, after: int) -> None:
    """Compare everything that is saved at the end of an example, once undisturbed, and once killed and started again.

    But not the RNG state of NumPy, which the examples do not seed.

    Args:
        launch: Starts scripts.
        name: The example.
        *arguments: Of its command line.
        after: The number of updates after which it is killed.
    """
    example = EXAMPLES / f"{name}.py"
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
