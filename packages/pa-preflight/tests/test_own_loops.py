"""Runs whose loop the script has are checked and planned before their block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from pa_core import LimitBatchesCallback, Run, SaveTrainingStateCallback
from pa_core.testing import make_classification
from pa_preflight import check, plan

DATA = make_classification(99)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def _run(model: nn.Module, **arguments: Any) -> Run[nn.Module, Any]:
    optimizer = arguments.pop("optimizer", None) or torch.optim.Adam(model.parameters(), lr=0.01)
    arguments = {"train_dataset": DATA, "num_epochs": 2, "per_device_batch_size": 16, **arguments}
    return Run(model, optimizer, **arguments)


def _train(run: Run[nn.Module, Any], model: nn.Module) -> list[tuple[int, float]]:
    """The learning rate of each update."""
    rates: list[tuple[int, float]] = []
    with run:
        for update in run.updates():
            for inputs, targets in update:
                update.backward(nn.functional.cross_entropy(model(inputs), targets))
            rates.append((update.number, run.optimizer.param_groups[0]["lr"]))
            update.step()
    return rates


@pytest.mark.parametrize("is_epoch", [False, True])
def test_a_loop_does_what_was_planned(is_epoch: bool, tmp_path: Any) -> None:
    """Batches, updates, states and rates are as planned, and the run is the one without plan and check."""

    def make() -> tuple[Run[nn.Module, Any], nn.Module]:
        model = _model()
        save = [SaveTrainingStateCallback(tmp_path / "states", 1, max_checkpoints=1)]
        arguments: dict[str, Any] = {"step_scheduler": "epoch"} if is_epoch else {}
        loader = DataLoader(DATA, 16, shuffle=True, generator=torch.Generator().manual_seed(1), drop_last=True)
        return (
            Run(
                model,
                torch.optim.Adam(model.parameters(), lr=0.01),
                loader,
                num_epochs=2,
                gradient_accumulation_steps=2,
                create_scheduler_fn=lambda one: StepLR(one, 1 if is_epoch else 2),
                callbacks=save,
                **arguments,
            ),
            model,
        )

    run, model = make()
    planned = plan(run)
    assert check(run).findings == []
    assert not (tmp_path / "states").exists()
    assert [(one.batches, one.updates) for one in planned.epochs] == [(6, 3), (6, 3)]
    assert [(one.update, one.name) for one in planned.saves] == [(3, "epoch_1"), (6, "epoch_2"), (6, "final")]
    rates = _train(run, model)
    assert planned.updates == run.num_updates_completed == 6
    of_updates = dict(rates)
    assert all(point.rate == pytest.approx(of_updates[point.update]) for point in planned.rates[0].points)
    assert planned.rates[0].points[-1].rate < 0.01
    digits = run.fingerprint()
    run, model = make()
    _train(run, model)
    assert run.fingerprint() == digits


def test_a_plan_of_a_loop_says_what_it_does_not_know() -> None:
    """Its evaluations, and the updates that it leaves out."""
    (note,) = plan(_run(_model())).notes
    assert "evaluations" in note


def test_mistakes_around_a_loop_are_found() -> None:
    """Parameters outside the optimizer, one sample for BatchNorm, samples of the training in the evaluation."""
    model = _model()
    run = _run(model, optimizer=torch.optim.Adam(model[:3].parameters()), per_device_batch_size=14)
    report = check(run, eval_dataset={"val": DATA})
    assert {finding.name for finding in report.findings} == {
        "parameters-outside-optimizer",
        "batch-of-one-with-batch-norm",
        "same-samples-in-evaluation",
    }
    assert any("python -m pa_preflight" in reason for reason in report.left_out)


def test_a_model_without_an_optimizer_is_no_mistake() -> None:
    """It may be a teacher, or a target network."""
    models = {"student": _model(), "teacher": _model()}
    optimizer = torch.optim.Adam(models["student"].parameters(), lr=0.01)
    assert check(Run(models, optimizer, DATA, num_epochs=1)).findings == []


def test_an_optimizer_that_is_made_in_the_block_is_checked() -> None:
    """It is made once more for the run."""
    model = _model()
    made: list[torch.optim.Optimizer] = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        made.append(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1))
        return made[-1]

    run = Run(model, None, DATA, num_epochs=1, create_optimizer_fn=make)
    assert [finding.name for finding in check(run).findings] == ["weight-decay-on-norms"]
    _train(run, model)
    assert len(made) == 2
    assert run.optimizer is made[1]


def _no_scheduler(optimizer: torch.optim.Optimizer) -> int:
    return len(optimizer.param_groups)


def test_arguments_that_a_run_refuses_are_reported() -> None:
    """In its words."""
    run = _run(_model(), create_scheduler_fn=_no_scheduler)
    (finding,) = check(run).findings
    assert finding.name == "step-fails"


def test_the_plan_of_a_loop_has_the_batches_and_the_limits_of_the_run(tmp_path: Path) -> None:
    """What did not fit is noted in the folder of the states; a subclass may limit otherwise, and is left out."""

    class Other(LimitBatchesCallback):
        pass

    (tmp_path / "per_device_batch_size_on_cpu.json").write_text('{"fits": 4, "does_not_fit": 8}')
    states = SaveTrainingStateCallback(tmp_path)
    run = _run(_model(), per_device_batch_size="fit", samples_per_update=32, callbacks=[states])
    assert plan(run).config.train_per_device_batch_size == 4
    planned = plan(_run(_model(), callbacks=[Other(2)]))
    assert planned.updates == 14
    assert any(note.startswith("Other is left out") for note in planned.notes)
