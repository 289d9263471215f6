"""A plan says what a run is going to do, and the run does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pa_preflight import Plan, plan
from tests.support.pa_preflight.configurations import Configuration, changed, state_of
from tests.support.pa_preflight.planned_runs import Observed, planned_run


def _cases(default: int, more: int) -> list[object]:
    return [*range(default), *(pytest.param(seed, marks=pytest.mark.more_cases) for seed in range(default, more))]


@pytest.mark.parametrize("seed", _cases(50, 1000))
@pytest.mark.filterwarnings("ignore")
def test_a_run_does_what_was_planned(seed: int, tmp_path: Path) -> None:
    """Epochs, updates, evaluations, saves, deletions, learning rates and memory are those of the plan."""
    folder = tmp_path / "states"
    (trainer, arguments), observed = planned_run(seed, folder)
    planned = plan(trainer, **arguments)
    assert not folder.exists()
    assert planned.notes == ()
    trainer.train(**arguments)

    assert planned.updates == trainer.num_updates_completed == len(observed.rates)
    assert [(one.batches, one.updates, one.ends_at) for one in planned.epochs] == observed.epochs
    assert planned.samples == observed.samples_of_epochs[0]
    assert [
        (one.update, one.name, one.batches, one.kind == "intermediate") for one in planned.evaluations
    ] == observed.evaluations
    _check_saves(planned, observed)
    _check_rates(planned, observed.rates)
    _check_memory(planned, observed, trainer.model, trainer.optimizer)
    for state in folder.glob("[!.]*/"):
        size = sum(file.stat().st_size for file in state.iterdir())
        assert planned.memory.saved_state == pytest.approx(size, rel=0.01)


def _check_saves(planned: Plan, observed: Observed) -> None:
    """The states that are there when the next one comes, and at the end."""
    kept: set[str] = set()
    there = list[tuple[int, set[str]]]()
    for one in planned.saves:
        there.append((one.update, set(kept)))
        kept = {*kept, one.name}.difference(one.deletes)
    if not planned.saves or planned.saves[-1].name != "final":
        there.append((planned.updates, kept))
    assert there == observed.states_at_saves
    assert kept == observed.states()


def _check_rates(planned: Plan, observed: Sequence[Sequence[float]]) -> None:
    """Each planned rate is the one of its update, and between two of them the rate never turns."""
    assert len(planned.rates) == len(observed[0])
    for one in planned.rates:
        rates = [of_groups[one.group] for of_groups in observed]
        assert [point.rate for point in one.points] == [rates[point.update - 1] for point in one.points]
        assert (one.points[0].update, one.points[-1].update) == (1, len(rates))
        assert {min(rates), max(rates)} <= {point.rate for point in one.points}
        for before, after in zip(one.points[:-1], one.points[1:], strict=True):
            part = rates[before.update - 1 : after.update]
            assert part in (sorted(part), sorted(part, reverse=True))


def _check_memory(planned: Plan, observed: Observed, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = [value for of_one in optimizer.state.values() for value in of_one.values() if isinstance(value, Tensor)]
    parameters = [*model.parameters()]
    assert planned.memory.optimizer == sum(one.nbytes for one in state)
    assert planned.memory.weights == sum(one.nbytes for one in (*parameters, *model.buffers()))
    assert planned.memory.gradients == observed.gradients == sum(one.trained_bytes for one in planned.parameters)
    assert sum(one.trained + one.frozen for one in planned.parameters) == sum(one.numel() for one in parameters)


@pytest.mark.parametrize("seed", _cases(10, 50))
def test_a_plan_changes_nothing(seed: int) -> None:
    """Weights, gradients, modes, optimizer, history and random numbers, right after it and after the run."""
    configuration = Configuration.random(seed)
    planned = configuration.make()
    before = state_of(planned)
    plan(planned.trainer, **planned.arguments)
    assert changed(before, state_of(planned)) == []
    planned.trainer.train(**planned.arguments)

    unplanned = configuration.make()
    unplanned.trainer.train(**unplanned.arguments)
    assert changed(state_of(planned), state_of(unplanned)) == []
