"""Jobs that are started twice, or started again too early."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.launching import Launch

_SCRIPT = Path(__file__).with_name("runs_in_one_folder.py")


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_no_run_takes_or_loses_a_state_in_a_folder_that_others_want_too(launch: Launch) -> None:
    """In 4 folders two to four runs start at random moments, some are killed, and one more comes to the right end.

    `nox -s shared_folders` does so in 200.
    """
    launched = launch(_SCRIPT, "4", "7")

    assert launched.status == 0
    assert "4 tries" in launched.output
