"""Scripts of timm's users: its models, optimizers, schedules and losses do in a trainer what they do in a loop."""

from __future__ import annotations

import importlib
import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

from pa_core import AnyTrainer, SaveTrainingStateCallback, TrainerCallback, TrainerWithTimmScheduler
from pa_core.testing import make_regression
from tests.support.pa_compat.script_runs import names_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of timm's own, about its own functions
everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """What the script defines."""
    return names_of("timm_images.py", Path(__file__).parent / "scripts")


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize(
    "optimizer",
    [
        {"opt": "adamw", "lr": 2e-3, "weight_decay": 0.05, "layer_decay": 0.8},
        {"opt": "lamb", "lr": 0.01},
        {"opt": "muon", "lr": 0.01},
    ],
    ids=lambda optimizer: optimizer["opt"],
)
def test_a_run_is_that_of_a_loop_by_hand(script: dict[str, Any], optimizer: dict[str, Any], num_ranks: int) -> None:
    """Losses, rates and weights are those of the loop in timm's documentation, on any number of processes."""
    # In float32, optimizers that divide by the size of a gradient make much of how sums over two processes are rounded.
    dataset = script["digits"](0, 100, torch.float64)

    losses, rates, weights = script["with_trainer"](optimizer, dataset, 16 // num_ranks)

    expected_losses, expected_rates, expected_weights = script["with_a_loop_of_ones_own"](optimizer, dataset, 16)
    assert losses == pytest.approx(expected_losses, rel=1e-8)
    assert rates == expected_rates
    for name, expected in expected_weights.items():
        torch.testing.assert_close(weights[name], expected, rtol=1e-6, atol=1e-8)


@everywhere
def test_schedules_that_are_told_of_epochs_and_metrics(script: dict[str, Any]) -> None:
    """A schedule by epochs changes the rate after each epoch, one by a metric after epochs without progress."""
    warm_up, cosine = [0.01, 0.055], [0.05 * (1 + math.cos(math.pi * epoch / 6)) for epoch in range(2, 6)]

    assert script["by_epoch"]() == pytest.approx(warm_up + cosine)
    assert script["by_metric"]() == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.025])


@everywhere
def test_a_run_that_was_interrupted_goes_on(script: dict[str, Any], shared_tmp_path: Path) -> None:
    """With an optimizer and a schedule of timm's, a resumed run ends bit for bit as one that was not interrupted."""
    whole, resumed = script["weights_of_interrupted_run"](shared_tmp_path / "state")

    for name, expected in whole.items():
        assert torch.equal(resumed[name], expected), name


class _LeftError(Exception):
    """Leaves a run, as a signal would."""


class _NoteRates(TrainerCallback):
    """Notes the rate after each epoch, and leaves the run after some of them."""

    def __init__(self, leave_after: int = 0) -> None:
        self.rates: dict[int, float] = {}
        self._leave_after = leave_after

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        epoch = trainer.run_history.current_epoch
        self.rates[epoch] = trainer.optimizer.param_groups[0]["lr"]
        if epoch > self._leave_after > 0:
            raise _LeftError

    @override
    def state_dict(self) -> dict[str, Any]:
        """Nothing: each start notes its own epochs."""
        return {}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin without a note."""


def _schedule(name: str) -> Any:
    scheduler: Any = importlib.import_module("timm.scheduler")
    plateau = partial(scheduler.PlateauLRScheduler, patience_t=2, threshold=10.0, mode="min")
    schedules = {
        "plateau": plateau,
        "plateau with noise": partial(plateau, noise_range_t=(1, 9)),
        "plateau after a warm-up": partial(plateau, warmup_t=2, cooldown_t=1),
        "cosine with noise": partial(scheduler.CosineLRScheduler, t_initial=3, cycle_limit=3, noise_range_t=(2, 5)),
        "step": partial(scheduler.StepLRScheduler, decay_t=2, warmup_t=1),
        "multistep": partial(scheduler.MultiStepLRScheduler, decay_t=[2, 4]),
        "tanh": partial(scheduler.TanhLRScheduler, t_initial=4, cycle_limit=2),
        "poly": partial(scheduler.PolyLRScheduler, t_initial=7),
    }
    return schedules[name]


_SCHEDULES = "plateau, plateau with noise, plateau after a warm-up, cosine with noise, step, multistep, tanh, poly"


@pytest.mark.parametrize("name", _SCHEDULES.split(", "))
@pytest.mark.parametrize("leave_after", [1, 2, 3])
def test_a_resumed_schedule_of_timm_goes_on_where_it_was(name: str, leave_after: int, tmp_path: Path) -> None:
    """Its rates are those of a whole run, in every epoch, though the state of timm's own lacks counts of epochs."""

    def rates(folder: str, leave_after: int = 0, **options: Any) -> dict[int, float]:
        model = torch.nn.Linear(4, 1)
        notes = _NoteRates(leave_after)
        trainer = TrainerWithTimmScheduler(
            model,
            torch.nn.MSELoss(),
            torch.optim.SGD(model.parameters(), lr=1.0),
            callbacks=[notes, SaveTrainingStateCallback(tmp_path / folder, save_every_n_epochs=1)],
        )
        data = make_regression(8)
        with suppress(_LeftError):
            trainer.train(data, 7, data, 4, create_scheduler_fn=_schedule(name), **options)
        return notes.rates

    whole = rates("whole")
    left = rates("left", leave_after)
    resumed = rates("left", resume_from=tmp_path / "left")
    assert next(iter(resumed)) == leave_after + 1
    assert left | resumed == whole
