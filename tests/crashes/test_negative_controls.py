"""The comparison sees what it should: the smallest change of a saved state makes it red."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pa_core.storage import newest_valid
from pa_core.storage.state import write_state
from tests.crashes.configurations import Configuration
from tests.crashes.harness import CrashLab, Run
from tests.crashes.strikes import Strike

CONFIGURATION = Configuration(accumulation=3)


@pytest.fixture(scope="module")
def killed_run(lab: CrashLab) -> Run:
    """A run that was killed in the middle."""
    run = lab.new_run()
    ended = run.start(CONFIGURATION, Strike(phase="UPDATED", occurrence=20))
    assert ended.is_hit
    return run


def leave_everything(_parts: dict[str, Any]) -> None:
    """Change nothing."""


def change_optimizer(parts: dict[str, Any]) -> None:
    """Change one element of one tensor, by a thousandth."""
    parts["optimizers"]["optimizer"]["state"]["state"][0]["exp_avg"][0, 0] *= 1.001


def change_counter(parts: dict[str, Any]) -> None:
    """Have a callback begin to count at another number."""
    parts["callbacks"]["tests.crashes.recording.Recorder"]["batches"] += 1


def change_stream(parts: dict[str, Any]) -> None:
    """Change one bit of what dropout draws next."""
    stream = parts["ranks"][0]["streams"]["torch"]
    words, position = 24, int.from_bytes(bytes(stream[16:24].tolist()), "little") % 624
    stream[words + 8 * position] ^= 1


def change_position(parts: dict[str, Any]) -> None:
    """Leave one batch out."""
    parts["run"]["position"]["samples"] += 4


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (leave_everything, set[str]()),
        (change_optimizer, {"rank 0: weights as trained", "rank 0: optimizer as trained"}),
        (change_counter, {"rank 0: samples"}),
        (change_stream, {"rank 0: weights as trained", "rank 0: streams in the end"}),
        (change_position, {"rank 0: weights as trained", "rank 0: samples"}),
    ],
)
def test_a_changed_state_is_seen_in_the_end(
    killed_run: Run, change: Callable[[dict[str, Any]], None], expected: set[str]
) -> None:
    """A state that was changed, and stored with valid digests, leads to another end; one stored again unchanged not."""
    run = killed_run.copy()
    state, skipped = newest_valid(run.states)
    assert state is not None
    assert not skipped
    change(state.parts)
    write_state(state.path, state.parts, state.summary)

    run.start(CONFIGURATION)

    differences = run.differences(CONFIGURATION)
    assert bool(differences) == bool(expected)
    assert {one for one in expected if any(found.startswith(one) for found in differences)} == expected
    run.remove()
