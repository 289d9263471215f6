"""The example whose loop is its own recognises the digits on two ranks, and goes on where it was."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def test_the_digits_are_recognised_and_the_loop_goes_on(launch: Launch) -> None:
    """On two ranks; started again, it has nothing left to do but to test."""
    launched = launch(EXAMPLE, "--epochs=6", ranks=2)
    again = launch(EXAMPLE, "--epochs=6", ranks=2)

    assert (launched.status, again.status) == (0, 0)
    tested = re.findall(r"Recognised ([\d.]+)% of the test digits", launched.output)
    assert len(tested) == 1
    assert float(tested[0]) > 90
    assert "Epoch" not in again.output.replace("Resuming from", "")
    assert re.findall(r"Recognised ([\d.]+)% of the test digits", again.output) == tested
