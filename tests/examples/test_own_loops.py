"""The examples whose loop is their own do what they say, on two ranks, and go on where they were."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launching import Launch

EXAMPLES = Path(__file__).parents[2] / "examples"


def _share(what: str, output: str) -> float:
    return float(re.findall(rf"{what}.*?([\d.]+)%", output)[-1])


def test_the_digits_are_recognised_and_the_loop_goes_on(launch: Launch) -> None:
    """On two ranks; started again, it has nothing left to do but to test."""
    launched = launch(EXAMPLES / "own_loop.py", "--epochs=6", ranks=2)
    again = launch(EXAMPLES / "own_loop.py", "--epochs=6", ranks=2)

    assert (launched.status, again.status) == (0, 0)
    tested = re.findall(r"Recognised ([\d.]+)% of the test digits", launched.output)
    assert len(tested) == 1
    assert float(tested[0]) > 90
    assert "Epoch" not in again.output.replace("Resuming from", "")
    assert re.findall(r"Recognised ([\d.]+)% of the test digits", again.output) == tested


def test_a_generator_comes_nearer_to_the_digits(launch: Launch) -> None:
    """The mean of what it makes; one that has learned nothing is twice as far away."""
    launched = launch(EXAMPLES / "gan.py", "--epochs=20", ranks=2)

    assert launched.status == 0
    assert launched.output.count("Epoch 20:") == 1
    distance = float(re.findall(r"is ([\d.]+) from", launched.output)[0])
    assert distance < 0.35


def test_a_student_learns_from_its_teacher(launch: Launch) -> None:
    """On two ranks, of 300 digits; the teacher stays as it was."""
    launched = launch(EXAMPLES / "distillation.py", "--epochs=20", ranks=2)

    assert launched.status == 0
    assert _share("The student recognised", launched.output) > 85
    assert _share("The teacher recognised", launched.output) > 93
