"""The example of a detector counts each digit once, on one process and on two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.shared_launches import SharedLaunches

EXAMPLE = Path(__file__).parents[2] / "examples" / "detect_digits.py"


def test_two_ranks_find_as_many_digits(shared_launch: SharedLaunches) -> None:
    """Two processes end where one does: metrics and losses are those of all images."""
    ends = [shared_launch("detect_digits", way) for way in ("python", "torchrun with two ranks")]

    assert [end.status for end in ends] == [0, 0]
    for name, off in (("eval_found_epoch", 0.05), ("eval_wrong_boxes_epoch", 0.1), ("eval_loss_epoch", 0.2)):
        single, pair = (float(re.findall(rf"{name} +([\d.]+)", end.output)[-1]) for end in ends)
        assert pair == pytest.approx(single, abs=off)
    assert float(re.findall(r"([\d.]+)% of the digits", ends[0].output)[-1]) > 70
