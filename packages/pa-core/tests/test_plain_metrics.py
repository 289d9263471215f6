"""Metrics that are no numbers, in a run with everything that reads metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    ConfigurationError,
    LogMetricsCallback,
    RunHistory,
    SaveBestModelCallback,
    Trainer,
    TrainerCallback,
    plot_run_history,
)
from pa_core.testing import make_regression
from tests.support.histories import DocumentedHistory

DATA = make_regression(8)


class RecordsAnything(TrainerCallback):
    """Records what scripts record: what a metric library returned, a vector for the classes, and a string."""

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        epoch = trainer.run_history.current_epoch
        trainer.run_history.update_metric("test", {"accuracy": torch.tensor(epoch / 10), "worst": "cat"})
        trainer.run_history.update_metric("per_class", torch.tensor([0.0, epoch / 10]))
        trainer.run_history.update_metric("phase", "warm-up")


class Logged(LogMetricsCallback):
    """Notes what would be sent to a tracker."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        self.metrics.append(metrics)


def make_trainer(*callbacks: Any, history: RunHistory | None = None) -> Trainer[nn.Linear]:
    """A trainer of a linear model that records anything."""
    torch.default_generator.manual_seed(0)
    model = nn.Linear(4, 1)
    all_callbacks = [RecordsAnything(), *callbacks]
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=all_callbacks, run_history=history)


def test_everything_that_reads_metrics_takes_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The console, its table, what trackers are sent, the best model and a plot leave out what is no number."""
    logged = Logged()
    save = SaveBestModelCallback(tmp_path / "best.pt", "test_accuracy", greater_is_better=True)
    trainer = make_trainer(*DEFAULT_CALLBACKS, logged, save)
    trainer.train(DATA, 2, DATA)

    numbers = {"eval_loss_epoch", "test_accuracy"}
    assert [set(metrics) for metrics in logged.metrics] == 2 * [{"train_loss_epoch"}, numbers]
    assert torch.load(tmp_path / "best.pt", weights_only=True)["best_value"] == pytest.approx(0.2)
    table = capsys.readouterr().out.split("best  epoch\n")[1]
    assert [line.split()[0] for line in table.splitlines()] == ["eval_loss_epoch", "test_accuracy", "train_loss_epoch"]
    assert plot_run_history(trainer.run_history, tmp_path / "plot.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("metric", "advice"), [("test", "Watch one of its numbers: test_accuracy"), ("phase", "Record the number")]
)
def test_a_metric_to_watch_has_to_be_a_number(metric: str, advice: str, tmp_path: Path) -> None:
    """The error says what was recorded, and which of its numbers can be watched."""
    trainer = make_trainer(SaveBestModelCallback(tmp_path / "best.pt", metric))
    with pytest.raises(ConfigurationError, match=rf"watch_metric='{metric}'(.|\n)*{advice}"):
        trainer.train(DATA, 1, DATA)


def test_a_plot_of_what_is_no_number_is_refused(tmp_path: Path) -> None:
    """There is nothing to draw."""
    trainer = make_trainer()
    trainer.train(DATA, 1, DATA)
    with pytest.raises(ConfigurationError, match="nothing to draw"):
        plot_run_history(trainer.run_history, tmp_path / "plot.png", metrics=["phase"])


def test_a_history_of_ones_own_may_hold_anything(capsys: pytest.CaptureFixture[str]) -> None:
    """The console and its table leave out what is no number, also of a history that is not the one in memory."""
    history = DocumentedHistory()
    make_trainer(*DEFAULT_CALLBACKS, history=history).train(DATA, 1, DATA)
    assert history.values["phase"] == ["warm-up"]
    printed = capsys.readouterr().out
    assert re.search(r"^  eval_loss_epoch +[\d.e-]+ +[\d.e-]+ +-$", printed, re.M)
    assert re.search(r"^ +1 +[\d.e-]+ +[\d.e-]+ ", printed, re.M)
    assert "phase" not in printed
