"""The comparison sees what it should: the smallest change of a saved state makes it red, as does what is not saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pa_checkpoint import Folder, load
from pa_checkpoint._checkpoint import write_checkpoint
from tests.crashes.configurations import Configuration
from tests.crashes.harness import CrashLab, Run
from tests.crashes.strikes import Strike

CONFIGURATION = Configuration(accumulation=3)
ADVERSARIES = Configuration(loop="adversaries")


def _killed_run(lab: CrashLab, configuration: Configuration) -> Run:
    run = lab.new_run()
    ended = run.start(configuration, Strike(phase="UPDATED", occurrence=20))
    assert ended.is_hit
    return run


@pytest.fixture(scope="module")
def killed_runs(lab: CrashLab) -> dict[Configuration, Run]:
    """Runs that were killed in the middle: of a trainer, and of a loop of one's own with two optimizers."""
    return {configuration: _killed_run(lab, configuration) for configuration in (CONFIGURATION, ADVERSARIES)}


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


def change_second_optimizer(parts: dict[str, Any]) -> None:
    """Change one element of one tensor of the second optimizer, by a thousandth."""
    parts["optimizers"]["discriminator"]["state"]["state"][0]["momentum_buffer"][0, 0] *= 1.001


def change_second_schedule(parts: dict[str, Any]) -> None:
    """Put the schedule of the second optimizer one update back."""
    parts["schedulers"]["discriminator"]["_num_updates"] -= 1


def change_average(parts: dict[str, Any]) -> None:
    """Change one element of the model that has no optimizer, by a thousandth."""
    parts["models"]["average"]["weights"]["0.weight"][0, 0] *= 1.001


@pytest.mark.parametrize(
    ("configuration", "change", "expected"),
    [
        (CONFIGURATION, leave_everything, set[str]()),
        (CONFIGURATION, change_optimizer, {"rank 0: weights as trained", "rank 0: optimizer as trained"}),
        (CONFIGURATION, change_counter, {"rank 0: samples"}),
        (CONFIGURATION, change_stream, {"rank 0: weights as trained", "rank 0: streams in the end"}),
        (CONFIGURATION, change_position, {"rank 0: weights as trained", "rank 0: samples"}),
        (ADVERSARIES, leave_everything, set[str]()),
        (ADVERSARIES, change_second_optimizer, {"rank 0: weights as trained", "rank 0: optimizer as trained"}),
        (ADVERSARIES, change_second_schedule, {"rank 0: weights as trained", "rank 0: scheduler as trained"}),
        (ADVERSARIES, change_average, {"rank 0: weights as trained", "rank 0: history as trained"}),
    ],
)
def test_a_changed_state_is_seen_in_the_end(
    killed_runs: dict[Configuration, Run],
    configuration: Configuration,
    change: Callable[[dict[str, Any]], None],
    expected: set[str],
) -> None:
    """A state that was changed, and stored with valid digests, leads to another end; one stored again unchanged not."""
    run = killed_runs[configuration].copy()
    state, skipped = Folder(run.states).newest_readable(load)
    assert state is not None
    assert not skipped
    change(state.parts)
    write_checkpoint(state.path, state.parts, state.summary)
    run.start(configuration)
    differences = run.differences(configuration)
    assert bool(differences) == bool(expected)
    assert {one for one in expected if any(found.startswith(one) for found in differences)} == expected
    run.remove()


@pytest.mark.whole_proof
@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("one model", {"rank 0: weights", "rank 0: history"}),
        ("adversaries", {"rank 0: history"}),
        ("distillation", {"rank 0: weights", "rank 0: history"}),
    ],
)
def test_what_a_loop_does_not_save_is_seen_in_the_end(lab: CrashLab, loop: str, expected: set[str]) -> None:
    """A loop that keeps something from its states ends elsewhere after a kill, and only after a kill."""
    configuration = Configuration(loop=loop, others=("--is-forgetful",))
    whole = lab.new_run()
    whole.start(configuration)
    assert whole.differences(configuration) == []
    whole.remove()

    run = _killed_run(lab, configuration)
    run.start(configuration)
    found = run.differences(configuration)
    assert {one for one in expected if any(each.startswith(one) for each in found)} == expected
    run.remove()
