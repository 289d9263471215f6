"""The example of truncated backpropagation through time gains from the state that it carries on, and resumes."""

from __future__ import annotations

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import numbers_in


def test_the_state_is_worth_something(shared_launch: SharedLaunches) -> None:
    """A character costs less where the state of the chunk before is known."""
    output = shared_launch("truncated_bptt", "torchrun with two ranks").output
    (bits,) = numbers_in(output, r"a character costs ([\d.]+) bits")
    (alone,) = numbers_in(output, r"not carried on: ([\d.]+) bits")
    assert bits < alone
