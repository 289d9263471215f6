"""The character transformer learns, makes the same updates on two processes, and writes without looking ahead."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "character_transformer.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_learns(launch: Launch, ranks: int) -> None:
    """After two epochs it guesses characters far better than by their number, and writes a whole paragraph."""
    launched = launch(EXAMPLE, "--epochs=2", ranks=ranks)
    assert launched.status == 0
    (found,) = re.findall(r"loss of a character is ([\d.]+), and it writes: (.*)", launched.output, re.DOTALL)
    assert float(found[0]) < 2.9  # a guess among 95 characters has 4.55
    assert len(found[1]) == 128 + len("\n")


def test_no_character_is_seen_before_it_is_guessed() -> None:
    """The logits of a position do not depend on the characters after it."""
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    model = example["CharacterTransformer"]().eval()
    first = torch.randint(128, (1, 20))
    second = torch.cat([first[:, :10], torch.randint(128, (1, 10))], dim=1)
    torch.testing.assert_close(model(first)[:, :10], model(second)[:, :10])
    assert not torch.equal(model(first)[:, 10:], model(second)[:, 10:])
