"""What the tables of the documentation say of other libraries is what these libraries do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.peers.comparison import PEERS, Measured, measure

pytestmark = pytest.mark.skipif(PEERS is None, reason="there is no interpreter that has the other libraries")

AS_ACCELERATE = Measured(alike_on_two_and_four=True, repeated_in_an_epoch=14, evaluates_exactly=True)
EXPECTED = {
    "accelerate": AS_ACCELERATE,
    "lightning": Measured(),  # it repeats none only because 50 samples are divisible by two processes
    "pa": Measured(
        whole_updates_alike=True,
        last_update_alike=True,
        alike_on_two_and_four=True,
        evaluates_exactly=True,
        same_bits=False,  # unless reproducible="any_processes" is passed
        resumes_samples=True,
        resumes_weights=True,
        resumes_augmented=True,
    ),
    "pytorch_accelerated": AS_ACCELERATE,
    "transformers": replace(AS_ACCELERATE, whole_updates_alike=True, resumes_samples=True, resumes_weights=True),
}
"""What holds of each library; what is not named does not."""


@pytest.mark.parametrize("library", sorted(EXPECTED))
def test_a_row_of_the_comparison_is_measured(library: str) -> None:
    """Each cell of the tables in README.md and docs/why.md that a program can decide is decided by one."""
    assert measure(library) == EXPECTED[library]
