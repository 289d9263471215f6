"""The example with a teacher shows that a student learns more with one than without."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "distillation.py"


def test_a_student_learns_from_its_teacher(launch: Launch) -> None:
    """On two ranks, of 300 digits: more than from the digits alone, and less than the teacher."""
    launched = launch(EXAMPLE, "--epochs=10", ranks=2)

    assert launched.status == 0
    teacher, student, untaught = map(float, re.findall(r"([\d.]+)%", launched.output.partition("The teacher")[2]))
    assert teacher > student > untaught > 80
