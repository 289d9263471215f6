"""The example that learns from its own episodes learns, and resumes between two batches of them."""

from __future__ import annotations

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import numbers_in


def test_the_pole_stands_for_longer(shared_launch: SharedLaunches) -> None:
    """In the second epoch, after sixteen updates with the first."""
    launched = shared_launch("ppo", "torchrun with two ranks")
    first, second = numbers_in(launched.output, r"stands for ([\d.]+) steps")
    assert second > 1.5 * first
