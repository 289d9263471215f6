"""Scripts of timm's users: its models, optimizers, schedules and losses do in a trainer what they do in a loop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

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
