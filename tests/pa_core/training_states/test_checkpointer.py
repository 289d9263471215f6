"""When a loop by hand may save its state: at safe points, after its end, and from before an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_core import CheckpointError, ConfigurationError, TrainingPreempted
from pa_core.progress import Phase
from pa_core.storage import read_state
from pa_core.training_state import EvaluationInterrupted, SavedRun
from tests.pa_core.training_states.several_models import UPDATES_PER_EPOCH, RunByHand
from tests.small_runs import make_trainer, samples


class Killed(Exception):
    """Stands for whatever ends a process."""


def position_of(state: Path) -> tuple[Phase, int]:
    """What comes next in a saved run, and how many updates it has made."""
    position = SavedRun(read_state(state)).position
    return position.phase, position.updates


def at(update: int, do: Callable[[RunByHand], object]) -> Callable[[RunByHand], None]:
    """Do something after one of the updates."""

    def at_update(run: RunByHand) -> None:
        if run.progress.updates == update:
            do(run)

    return at_update


def test_a_request_waits_for_the_next_safe_point(tmp_path: Path) -> None:
    """Callbacks are told before the state is captured, except at the end of a run."""
    run, there_at_once = RunByHand(tmp_path), list[bool]()
    run.at_update = at(3, lambda run: there_at_once.append(run.request("state").exists()))
    run.run()
    assert there_at_once == [False]
    assert position_of(tmp_path / "state") == (Phase.STEP, 3)
    assert run.events == ["on_training_state_save"]

    assert position_of(run.save("final")) == (Phase.COMPLETE, 3 * UPDATES_PER_EPOCH)
    assert run.events == ["on_training_state_save"]


def ask_for_state(run: RunByHand) -> None:
    """As ``request_training_state`` does."""
    run.rank_sync.save.is_asked = True


def ask_for_preemption(run: RunByHand) -> None:
    """As ``request_preemption`` does."""
    run.rank_sync.preempt.is_asked = True


def test_what_some_process_asks_for_is_done_after_the_update(tmp_path: Path) -> None:
    """A state is left to the callbacks; a preemption ends the run with a state that it resumes from."""
    run = RunByHand(tmp_path)
    run.at_update = lambda run: (at(2, ask_for_state)(run), at(4, ask_for_preemption)(run))[0]
    with pytest.raises(TrainingPreempted):
        run.run()
    assert run.events == ["on_training_state_request", "on_preemption"]
    assert run.progress.updates == 4
    run.checkpointer.end(TrainingPreempted(), run.device)

    whole, resumed = RunByHand(tmp_path), RunByHand(tmp_path, seed=5)
    whole.run()
    resumed.run(run.save("preempted"))
    assert resumed.losses == whole.losses[4:]


def test_there_is_nothing_to_save_before_a_run(tmp_path: Path) -> None:
    """Neither now nor at the next safe point."""
    run = RunByHand(tmp_path)
    for save in (run.request, run.save):
        with pytest.raises(ConfigurationError, match="before a training run"):
            save("state")


def test_that_there_is_nothing_to_save_is_said_before_what_comes_with_it_is_looked_at(tmp_path: Path) -> None:
    """Entries that could not be stored, or are large, are no matter where nothing is saved."""
    trainer = make_trainer()
    with pytest.raises(ConfigurationError, match="before a training run"):
        trainer.save_training_state(tmp_path / "state", {"function": print})
    trainer.train(samples(4), 1)
    trainer.evaluate(samples(4))
    with pytest.raises(CheckpointError, match="after a run that trained nothing"):
        trainer.save_training_state(tmp_path / "state", {"function": print})


def test_a_run_that_failed_is_saved_if_it_was_between_two_updates(tmp_path: Path) -> None:
    """With the random numbers of that moment, whatever the script draws before it saves; never within an update."""
    within, between = RunByHand(tmp_path), RunByHand(tmp_path)

    def fail(run: RunByHand) -> None:
        run.request("requested")
        raise Killed

    within.at_update = at(2, fail)
    with pytest.raises(Killed) as killed:
        within.run()
    within.checkpointer.end(killed.value, within.device)
    within.checkpointer.abandon(killed.value)
    assert "requested was requested but not saved" in killed.value.__notes__[0]
    with pytest.raises(CheckpointError, match="in the middle of an update"):
        within.save("state")

    between.prepare()
    between.reach(Phase.EPOCH)
    between.checkpointer.end(Killed(), between.device)
    expected = torch.rand(2)
    SavedRun(read_state(between.save("state"))).restore_rng_state(between)
    assert torch.equal(torch.rand(2), expected)


def evaluate(run: RunByHand, phase: Phase, *, nested: bool = False) -> None:
    """Draw in an evaluation of three batches, in the second of which the run is to be preempted."""
    points = run.checkpointer
    inner = points.evaluating() if nested else nullcontext()
    with points.interruptible(phase, run), points.evaluating(), inner:
        for batch in range(3):
            torch.rand(2)
            if batch == 1:
                ask_for_preemption(run)
            points.leave_evaluation_if_asked(run)
    run.events.append("evaluated")


@pytest.mark.parametrize("phase", [Phase.EVALUATION, Phase.INTERMEDIATE_EVALUATION])
def test_an_interrupted_evaluation_is_still_to_be_done(tmp_path: Path, phase: Phase) -> None:
    """The state says so, and has the random numbers from before it."""
    run = RunByHand(tmp_path)
    run.prepare()
    run.checkpointer.is_between_steps = phase.is_mid_epoch
    state = torch.default_generator.get_state()
    with pytest.raises(EvaluationInterrupted):
        evaluate(run, phase)
    run.checkpointer.is_between_steps = False
    path = run.request("state")
    with pytest.raises(TrainingPreempted):
        run.reach(Phase.STEP if phase.is_mid_epoch else phase)

    assert position_of(path) == (phase, 0)
    assert torch.equal(read_state(path).parts["ranks"][0]["streams"]["torch"], state)
    assert "evaluated" not in run.events


@pytest.mark.parametrize("why", ["not preemptible", "within another one", "within an update"])
def test_an_evaluation_that_could_not_be_repeated_is_brought_to_its_end(tmp_path: Path, why: str) -> None:
    """The run is preempted after it."""
    run = RunByHand(tmp_path)
    run.prepare()
    run.preemptible = why != "not preemptible"
    phase = Phase.INTERMEDIATE_EVALUATION if why == "within an update" else Phase.EVALUATION
    evaluate(run, phase, nested=why == "within another one")
    assert run.events == ["evaluated"]
    with pytest.raises(TrainingPreempted):
        run.reach(Phase.EPOCH)


class Secretive(SGD):
    """Saves, from its first update on, something that nobody can store."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "secret": object() if self.state else None}


def test_each_optimizer_is_checked_after_its_first_update(tmp_path: Path) -> None:
    """One whose state cannot be stored is an error, once it has a state; the others are not."""
    run = RunByHand(tmp_path)
    secretive = Secretive(run.discriminator.parameters(), lr=0.1, momentum=0.9)
    run.optimizers["discriminator"], run.schedulers["discriminator"] = secretive, StepLR(secretive, 2)
    run.prepare()
    run.checkpointer.check(run)
    assert run.checkpointer.unchecked_optimizers == {"generator", "discriminator"}
    run.step(torch.ones(4, 2))
    run.checkpointer.check_optimizer("generator", run)
    with pytest.raises(CheckpointError, match="Secretive"):
        run.checkpointer.check_optimizer("discriminator", run)
    assert not run.checkpointer.unchecked_optimizers
