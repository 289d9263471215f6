"""The example with a replay buffer resumes with the buffer as it was."""

from __future__ import annotations

import pytest

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import numbers_in


def test_the_buffer_grows_and_the_way_to_the_exit_gets_shorter(shared_launch: SharedLaunches) -> None:
    """From epoch to epoch."""
    output = shared_launch("replay_buffer", "torchrun with two ranks").output
    steps = numbers_in(output, r"([\d.]+) steps to the exit")
    sizes = numbers_in(output, r"exit, (\d+) steps in the buffer")
    assert steps[0] > steps[-1]
    assert sizes == pytest.approx([48 * sum(steps[: number + 1]) for number in range(4)], abs=10)
