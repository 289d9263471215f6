"""The types of what a run records, and of the settings that it was started with."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping
from typing import Any, assert_type

import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    InMemoryRunHistory,
    LossTracker,
    MetricRecord,
    RunClock,
    RunHistory,
    Trainer,
    TrainerCallback,
    TrainerRunConfig,
)
from tests.typing.vocabulary import Net, make_data, make_optimizer


class LastValues(RunHistory):
    """A history of one's own: the last value of each metric."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    @override
    def get_metric_names(self) -> set[str]:
        return set(self.values)

    @override
    def get_metric_values(self, metric_name: str) -> list[float]:
        return [self.values[metric_name]]

    @override
    def get_latest_metric(self, metric_name: str) -> float:
        return self.values[metric_name]

    @override
    def update_metric(self, metric_name: str, metric_value: float | Tensor) -> None:
        self.values[metric_name] = float(metric_value)

    @property
    @override
    def metric_name_prefix(self) -> str:
        return ""

    @override
    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Know no prefix."""

    @override
    def reset(self) -> None:
        self.values.clear()


def test_metrics_are_what_was_recorded() -> None:
    """Any plain value is recorded and given back; the history in memory is more exact about its containers."""

    def read(history: RunHistory) -> None:
        assert_type(history.get_metric_names(), Iterable[str])
        assert_type(history.get_metric_values("loss"), Iterable[Any])
        assert_type(history.get_latest_metric("loss"), Any)
        assert_type(history.current_epoch, int)
        assert_type(history.clock, RunClock)
        assert_type(history.clock.seconds, float)
        assert_type(history.metric_name_prefix, str)

    history = InMemoryRunHistory()
    history.update_metric("loss", torch.tensor(0.5))
    history.update_metric("test", {"f1": 0.5, "worst": "cat"})
    read(history)
    assert_type(history.get_metric_names(), KeysView[str])
    assert_type(history.get_metric_values("loss"), list[Any])
    assert_type(history.records("loss"), list[MetricRecord])
    assert_type(history.records()[0].value, float)
    assert_type(history.to_dict(), dict[str, list[Any]])
    assert history.records("loss")[0].value == 0.5


def test_a_trainer_takes_a_history_of_ones_own() -> None:
    """It is annotated as any history; the object itself keeps its own types."""
    net = Net()
    own = LastValues()
    trainer = Trainer(net, nn.CrossEntropyLoss(), make_optimizer(net), callbacks=[], run_history=own)
    trainer.train(make_data(), num_epochs=1)

    assert_type(trainer.run_history, RunHistory)
    assert_type(own.get_latest_metric("train_loss_epoch"), float)
    assert own.values.keys() == {"train_loss_epoch"}


def test_the_run_config_is_a_record() -> None:
    """Settings are read as attributes with a type each; by name, they may be anything."""

    class Look(TrainerCallback):
        epochs = 0

        @override
        def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            config = trainer.run_config
            assert_type(config, TrainerRunConfig)
            assert_type(config.num_epochs, int)
            assert_type(config.gradient_clip_value, float | None)
            assert_type(config.max_num_train_steps, int | None)
            assert_type(config.train_dl_kwargs, Mapping[str, Any])
            assert_type(config.mixed_precision, str)
            assert_type(config.is_distributed, bool)
            assert_type(config.seed, int | None)
            assert_type(config.num_local_update_steps_per_epoch, int)
            assert_type(config["num_epochs"], Any)
            assert_type(config.keys(), tuple[str, ...])
            assert_type(config.to_dict(), dict[str, Any])
            self.epochs = config.num_epochs

    net = Net()
    look = Look()
    Trainer(net, nn.CrossEntropyLoss(), make_optimizer(net), callbacks=[look]).train(make_data(), num_epochs=3)
    assert look.epochs == 3


def test_the_loss_tracker_adds_up_in_float() -> None:
    """The tracker gives what callbacks show."""
    tracker = LossTracker()
    tracker.update(torch.tensor(2.0), batch_size=2)
    tracker.update(5.0)

    assert_type(tracker.totals(), Tensor)
    assert float(tracker.average) == 3
