"""What is left of training states when the process that saves them is killed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.launching import Launch

_SCRIPT = Path(__file__).with_name("kills_during_saving.py")


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_killed_process_costs_no_completed_save(launch: Launch) -> None:
    """After each of 32 kills, the last completed save or a later one is found whole, and nothing broken is seen.

    `nox -s store_kills` kills 500.
    """
    launched = launch(_SCRIPT, "32", "7")

    assert launched.status == 0
    assert "32 kills" in launched.output
