"""The example with a teacher and a student trains the student on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "distillation.py"


def test_a_student_learns_from_its_teacher(launch: Launch) -> None:
    """On two ranks, of 300 digits; the teacher stays as it was."""
    launched = launch(EXAMPLE, "--epochs=20", ranks=2)

    assert launched.status == 0
    assert _share("The student recognised", launched.output) > 85
    assert _share("The teacher recognised", launched.output) > 93


def _share(what: str, output: str) -> float:
    return float(re.findall(rf"{what}.*?([\d.]+)%", output)[-1])
