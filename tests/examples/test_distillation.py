"""The example with a teacher shows that a student learns more with one than without."""

from __future__ import annotations

import re

from tests.examples.shared_launches import SharedLaunches


def test_a_student_learns_from_its_teacher(shared_launch: SharedLaunches) -> None:
    """On two ranks, of 300 digits: more than from the digits alone, and less than the teacher."""
    launched = shared_launch("distillation", "torchrun with two ranks")

    assert launched.status == 0
    teacher, student, untaught = map(float, re.findall(r"([\d.]+)%", launched.output.partition("The teacher")[2]))
    assert teacher > student > untaught > 80
