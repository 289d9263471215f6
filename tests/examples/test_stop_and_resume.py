"""The example that is stopped ends, when it is started again, with the bits of a run that was not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import WAYS
from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "stop_and_resume.py"
KILLED_AFTER = Path(__file__).parent / "killed_after.py"

TERMINATED_AFTER = """
import os, runpy, signal, sys
from itertools import count
from torch.optim.optimizer import register_optimizer_step_post_hook

counted = count(1)

def terminate_in_time(*_):
    if next(counted) == 50:
        os.kill(os.getpid(), signal.SIGTERM)

register_optimizer_step_post_hook(terminate_in_time)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def checksum(output: str) -> str:
    """The number of updates and the checksum of the weights that a complete run has printed."""
    (found,) = re.findall(r"After (.*) updates the checksum of the weights is (\d+)$", output, re.MULTILINE)
    return ": ".join(found)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_was_killed_ends_with_the_same_checksum(
    launch: Launch, shared_launch: SharedLaunches, ranks: int
) -> None:
    """After SIGKILL, the same command goes on from the newest state, and the last bit is the same."""
    whole = shared_launch("stop_and_resume", WAYS[ranks - 1])
    killed = launch(KILLED_AFTER, "33", str(EXAMPLE), "--epochs=3", "--output=killed", ranks=ranks)
    assert killed.status != 0

    resumed = launch(EXAMPLE, "--epochs=3", "--output=killed", ranks=ranks)

    assert re.search(r"Resuming from killed/step_20", resumed.output)
    assert checksum(resumed.output) == checksum(whole.output)


def test_a_run_that_was_terminated_loses_nothing(launch: Launch, shared_launch: SharedLaunches) -> None:
    """At SIGTERM the update is finished and saved, the status is 75, and the checksum of the rest is the same."""
    whole = shared_launch("stop_and_resume", "python")
    terminated = launch(TERMINATED_AFTER, str(EXAMPLE), "--epochs=3", "--output=terminated")
    assert terminated.status == 75

    resumed = launch(EXAMPLE, "--epochs=3", "--output=terminated")

    assert "after update 50" in resumed.output
    assert checksum(resumed.output) == checksum(whole.output)
