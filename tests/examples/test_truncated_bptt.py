"""The example of truncated backpropagation through time gains from the state that it carries on, and resumes."""

from __future__ import annotations

import pytest

from tests.examples.resumed_loops import ends_as_if_it_had_not_been_killed, numbers_in
from tests.examples.shared_launches import SharedLaunches
from tests.launching import Launch


def test_the_state_is_worth_something(shared_launch: SharedLaunches) -> None:
    """A character costs less where the state of the chunk before is known."""
    output = shared_launch("truncated_bptt", "torchrun with two ranks").output
    (bits,) = numbers_in(output, r"a character costs ([\d.]+) bits")
    (alone,) = numbers_in(output, r"not carried on: ([\d.]+) bits")
    assert bits < alone


@pytest.mark.whole_proof
def test_it_ends_with_the_same_bits_when_it_was_killed(launch: Launch) -> None:
    """In the middle of an excerpt, which is trained on again from its first chunk."""
    ends_as_if_it_had_not_been_killed(launch, "truncated_bptt", "--epochs=1", after=60)
