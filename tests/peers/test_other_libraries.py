"""What the tables of the documentation say of other libraries is what these libraries do."""

from __future__ import annotations

import pytest

from tests.peers.comparison import PEERS, Measured, measure

pytestmark = pytest.mark.skipif(PEERS is None, reason="there is no interpreter that has the other libraries")

EXPECTED = {
    "accelerate": Measured(
        whole_updates_alike=False,
        last_update_alike=False,
        alike_on_two_and_four=True,
        repeated_in_an_epoch=14,
        evaluates_exactly=True,
        same_bits=False,
        resumes_samples=False,
        resumes_weights=False,
        resumes_augmented=False,
    ),
    "lightning": Measured(
        whole_updates_alike=False,
        last_update_alike=False,
        alike_on_two_and_four=False,
        repeated_in_an_epoch=0,  # 50 samples are divisible by two processes
        evaluates_exactly=False,
        same_bits=False,
        resumes_samples=False,
        resumes_weights=False,
        resumes_augmented=False,
    ),
    "pa": Measured(
        whole_updates_alike=True,
        last_update_alike=True,
        alike_on_two_and_four=True,
        repeated_in_an_epoch=0,
        evaluates_exactly=True,
        same_bits=False,  # unless reproducible="any_processes" is passed
        resumes_samples=True,
        resumes_weights=True,
        resumes_augmented=True,
    ),
    "pytorch_accelerated": Measured(
        whole_updates_alike=False,
        last_update_alike=False,
        alike_on_two_and_four=True,
        repeated_in_an_epoch=14,
        evaluates_exactly=True,
        same_bits=False,
    ),
    "transformers": Measured(
        whole_updates_alike=True,
        last_update_alike=False,
        alike_on_two_and_four=True,
        repeated_in_an_epoch=14,
        evaluates_exactly=True,
        same_bits=False,
        resumes_samples=True,
        resumes_weights=True,
        resumes_augmented=False,
    ),
}


@pytest.mark.parametrize("library", sorted(EXPECTED))
def test_a_row_of_the_comparison_is_measured(library: str) -> None:
    """Each cell of the tables in README.md and docs/why.md that a program can decide is decided by one."""
    assert measure(library) == EXPECTED[library]
