"""The example that learns from its own episodes learns, and resumes between two batches of them."""

from __future__ import annotations

import pytest

from tests.examples.resumed_loops import ends_as_if_it_had_not_been_killed, numbers_in
from tests.examples.shared_launches import SharedLaunches
from tests.launching import Launch


def test_the_pole_stands_for_longer(shared_launch: SharedLaunches) -> None:
    """In the second epoch, after sixteen updates with the first."""
    launched = shared_launch("ppo", "torchrun with two ranks")
    first, second = numbers_in(launched.output, r"stands for ([\d.]+) steps")
    assert second > 1.5 * first


@pytest.mark.whole_proof
def test_it_ends_with_the_same_bits_when_it_was_killed(launch: Launch) -> None:
    """In the middle of a rollout's updates; the rollout is played again, by the policy that was saved."""
    ends_as_if_it_had_not_been_killed(launch, "ppo", "--epochs=2", after=77)
