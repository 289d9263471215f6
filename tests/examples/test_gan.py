"""The example with a generator and a discriminator trains both on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "gan.py"


def test_a_generator_comes_nearer_to_the_digits(launch: Launch) -> None:
    """The mean of what it makes; one that has learned nothing is twice as far away."""
    launched = launch(EXAMPLE, "--epochs=20", ranks=2)

    assert launched.status == 0
    assert launched.output.count("Epoch 20:") == 1
    distance = float(re.findall(r"is ([\d.]+) from", launched.output)[0])
    assert distance < 0.35
