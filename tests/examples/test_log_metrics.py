"""The example that follows a training in TensorBoard writes what it prints, on one process and on two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.event_files import read_configs, read_curves

if TYPE_CHECKING:
    from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "log_metrics.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_curves_are_those_of_the_run(launch: Launch, ranks: int) -> None:
    """Each metric has a point for each epoch, the progress has its own, and the last accuracy is the printed one."""
    launched = launch(EXAMPLE, "--epochs=2", "--output=here", ranks=ranks)
    assert launched.status == 0

    curves = read_curves(launch.folder / "here" / "runs" / "digits")
    updates = -(-1200 // (16 * ranks))
    for name in ("train_accuracy", "train_f1", "eval_accuracy", "eval_f1", "train_loss_epoch", "eval_loss_epoch"):
        assert [step for step, _ in curves[name]] == [updates, 2 * updates], name
    for name in ("loss", "learning_rate", "gradient_norm", "samples_per_second"):
        assert [step for step, _ in curves[f"train/{name}"]] == list(range(10, 2 * updates + 1, 10)), name
    ((step, accuracy),) = curves["evaluation_accuracy"]
    assert step == 2 * updates
    assert re.findall(r"Recognised ([\d.]+)% of the test digits", launched.output) == [f"{100 * accuracy:.1f}"]
    (config,) = read_configs(launch.folder)
    assert (config["hidden"], config["num_processes"]) == (64, ranks)
