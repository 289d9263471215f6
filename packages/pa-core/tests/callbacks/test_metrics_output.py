"""Metrics on their way out of the run history: to a logger, and to the table that closes a run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from typing_extensions import override

from pa_core import AnyTrainer, LogMetricsCallback, PrintProgressCallback, TrainerCallback
from pa_core.testing import make_regression
from tests.support.trainers import linear_trainer

DATA = make_regression(40)
TRAINED = "on_train_epoch_end"


class LogToList(LogMetricsCallback):
    """A logger as users write them: its ``__init__`` does not call that of its base class."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        assert trainer.run_config.to_dict()

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        self.logged.append((trainer.run_history.current_epoch, dict(metrics)))

    @property
    def names(self) -> list[set[str]]:
        """The names of the metrics of each call."""
        return [set(metrics) for _, metrics in self.logged]


class RecordTensors(TrainerCallback):
    """Records metrics as users do: as tensors, in several events."""

    def __init__(self, **metrics: str) -> None:
        for event in metrics.values():
            setattr(self, event, partial(self._record, [name for name in metrics if metrics[name] == event]))

    def _record(self, names: list[str], trainer: AnyTrainer, **_: Any) -> None:
        for name in names:
            trainer.run_history.update_metric(name, torch.tensor([0.5]))


def test_metrics_are_logged_when_they_belong_to_the_phase() -> None:
    """Metrics with train in their name come after the training epoch, all others after the evaluation, as numbers."""
    logger = LogToList()
    record = RecordTensors(accuracy=TRAINED, my_train_accuracy=TRAINED, precision="on_eval_epoch_end")
    linear_trainer(record, logger).train(DATA, 2, DATA)
    assert logger.names == 2 * [{"my_train_accuracy", "train_loss_epoch"}, {"accuracy", "eval_loss_epoch", "precision"}]
    assert [epoch for epoch, _ in logger.logged] == [1, 1, 2, 2]
    assert all(type(value) is float for _, metrics in logger.logged for value in metrics.values())


def test_a_metric_is_logged_once_and_none_is_forgotten() -> None:
    """What is recorded behind the logger, or without any evaluation, is logged at the end of its epoch or run."""
    logger = LogToList()
    late = RecordTensors(late="on_training_run_epoch_end", behind="on_eval_epoch_end")
    linear_trainer(logger, late).train(DATA, 2, DATA)
    assert logger.names == [
        {"train_loss_epoch"},
        {"eval_loss_epoch"},
        {"behind"},
        {"train_loss_epoch"},
        {"eval_loss_epoch", "late"},
        {"behind"},
        {"late"},
    ]

    logger = LogToList()
    linear_trainer(RecordTensors(accuracy=TRAINED), logger).train(DATA, 1)
    assert logger.names == [{"train_loss_epoch"}, {"accuracy"}]


def test_a_later_run_logs_its_own_metrics_only() -> None:
    """Old metrics are not logged again, and new values are, even if there are as many of them as before."""
    logger = LogToList()
    trainer = linear_trainer(logger)
    trainer.train(DATA, 1, DATA)
    trainer.train(DATA, 1, reset_run_history=False)
    trainer.evaluate(DATA)
    trainer.evaluate(DATA)
    assert logger.names == [
        {"train_loss_epoch"},
        {"eval_loss_epoch"},
        {"train_loss_epoch"},
        {"evaluation_loss"},
        {"evaluation_loss"},
    ]


def test_the_closing_table_names_the_best_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are best when low, accuracies when high; what was told wins, and other names have a best only then."""

    class Record(TrainerCallback):
        @override
        def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            value = [0.5, 0.75, 0.25][trainer.run_history.current_epoch - 1]
            for name in ("accuracy", "my_error", "speed", "beauty", "score"):
                trainer.run_history.update_metric(name, value)

    summary = PrintProgressCallback(greater_is_better={"beauty": True, "score": False})
    linear_trainer(Record, summary).train(DATA, 3)
    table = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[-7:]}
    assert table["metric"] == ["last", "best", "epoch"]
    assert table["accuracy"] == ["0.25", "0.75", "2"]
    assert table["my_error"] == ["0.25", "0.25", "3"]
    assert table["beauty"] == ["0.25", "0.75", "2"]
    assert table["score"] == ["0.25", "0.25", "3"]
    assert table["speed"] == ["0.25", "-", "-"]
