"""A loop by hand resumes as the trainer does: the epochs and steps that are left, with everything it had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pa_core import CheckpointError
from pa_core.progress import Phase
from pa_core.training_state import find_saved_run
from tests.pa_core.training_states.several_models import UPDATES_PER_EPOCH, RunByHand


class Killed(Exception):
    """Stands for whatever ends a process."""


def kill_after(update: int, saved_at: int) -> Callable[[RunByHand], None]:
    """Ask for a state at one update, and fail at another."""

    def at_update(run: RunByHand) -> None:
        if run.progress.updates == saved_at:
            run.request("state")
        if run.progress.updates == update:
            raise Killed

    return at_update


@pytest.mark.parametrize("saved_at", [1, UPDATES_PER_EPOCH - 1, UPDATES_PER_EPOCH, UPDATES_PER_EPOCH + 2])
def test_a_run_of_two_models_goes_on_bit_for_bit(tmp_path: Path, saved_at: int) -> None:
    """From the middle of an epoch and from its last step, in objects that were made with other weights."""
    whole, killed, resumed = RunByHand(tmp_path), RunByHand(tmp_path), RunByHand(tmp_path, seed=5)
    whole.run()
    killed.at_update = kill_after(saved_at + 1, saved_at)
    with pytest.raises(Killed):
        killed.run()
    resumed.run(tmp_path / "state")

    assert resumed.losses == whole.losses[saved_at:]
    assert all(map(torch.equal, resumed.weights(), whole.weights()))
    assert resumed.progress == whole.progress


def test_a_new_run_has_all_of_its_epochs_before_it(tmp_path: Path) -> None:
    """It has no phase to reach, whenever that is asked."""
    run, seen = RunByHand(tmp_path, num_epochs=2), list[tuple[int, Phase | None]]()
    run.prepare()
    for epoch in run.resumption.remaining_epochs(run):
        seen.append((epoch, run.resumption.phase))
        run.progress.epochs += 1
    assert seen == [(0, None), (1, None)]


def test_a_complete_run_has_no_epoch_left_and_can_be_extended(tmp_path: Path) -> None:
    """With the same number of epochs it is as it ended; with a larger one it goes on, as if asked for that before."""
    whole, first, again, longer = (RunByHand(tmp_path, num_epochs=number) for number in (3, 2, 2, 3))
    whole.run()
    first.run()
    first.save("final")
    drawn_afterwards = torch.rand(2)

    again.at_end = lambda: torch.rand(3)
    again.run(tmp_path / "final")
    assert (again.losses, again.resumption.was_complete) == ([], True)
    assert all(map(torch.equal, again.weights(), first.weights()))
    assert torch.equal(torch.rand(2), drawn_afterwards)

    longer.run(tmp_path / "final")
    assert longer.losses == whole.losses[2 * UPDATES_PER_EPOCH :]
    assert not longer.resumption.was_complete


def test_the_phase_is_what_comes_next_until_the_run_has_got_there(tmp_path: Path) -> None:
    """In mid-epoch it lasts until the steps are resumed, and is not changed by looking at it."""
    killed, resumed = RunByHand(tmp_path), RunByHand(tmp_path)
    killed.at_update = kill_after(UPDATES_PER_EPOCH + 3, saved_at=UPDATES_PER_EPOCH + 2)
    with pytest.raises(Killed):
        killed.run()

    resumed.prepare(tmp_path / "state")
    assert [resumed.resumption.phase for _ in range(2)] == [Phase.STEP, Phase.STEP]
    assert next(resumed.resumption.remaining_epochs(resumed)) == 1
    passed_over: list[int] = []
    resumed.progress.start_epoch()
    assert resumed.resumption.resume_steps(resumed, resumed.train_dataloader, passed_over.append) is Phase.STEP
    assert passed_over == [resumed.progress.steps_in_epoch] == [2]
    assert resumed.resumption.phase is None
    assert resumed.resumption.resume_steps(resumed, resumed.train_dataloader, passed_over.append) is None


def test_the_state_to_resume_from_is_found_or_missed_with_advice(tmp_path: Path) -> None:
    """A path without a state is an error unless a new run may begin; one that is damaged is never taken."""
    with pytest.raises(FileNotFoundError, match="resume_missing"):
        find_saved_run(tmp_path / "nothing")
    assert find_saved_run(tmp_path / "nothing", "start") is None
    run = RunByHand(tmp_path, num_epochs=1)
    run.run()
    saved = run.save("state")
    assert find_saved_run(saved).path == saved
    (saved / "state.json").write_text("{}")
    with pytest.raises(CheckpointError):
        find_saved_run(saved)
