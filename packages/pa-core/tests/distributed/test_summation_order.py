"""The order in which gradients are added up is the same before and after an interruption."""

from __future__ import annotations

from pathlib import Path

from tests.launching import Launch

SCRIPT = Path(__file__).with_name("resumed_on_three_ranks.py")


def test_a_resumed_run_on_three_processes_ends_with_the_same_bits(launch: Launch) -> None:
    """The sum of three numbers depends on their order; that of a first update after a start is that of all others."""
    launched = launch(SCRIPT, ranks=3)
    assert launched.status == 0
    assert "\n0 of 6649 weights differ" in f"\n{launched.output}"
