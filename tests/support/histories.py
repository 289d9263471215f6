"""A history as users write one, and what histories have recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from pa_core import AnyTrainer, InMemoryRunHistory
from pa_core.tracking import MetricValue, RunHistory


class DocumentedHistory(RunHistory):
    """A history of a user's: the documented methods, and no ``super().__init__()``."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.values: dict[str, list[MetricValue]] = {}

    @override
    def get_metric_names(self) -> Iterable[str]:
        return set(self.values)

    @override
    def get_metric_values(self, metric_name: str) -> Iterable[MetricValue]:
        return self.values.get(metric_name, [])

    @override
    def get_latest_metric(self, metric_name: str, default: Any = ...) -> Any:
        return self.values[metric_name][-1] if default is ... else self.values.get(metric_name, [default])[-1]

    @override
    def update_metric(self, metric_name: str, metric_value: MetricValue) -> None:
        self.values.setdefault(self.prefix + metric_name, []).append(metric_value)

    @property
    @override
    def metric_name_prefix(self) -> str:
        return self.prefix

    @override
    def set_metric_name_prefix(self, prefix: str = "") -> None:
        self.prefix = prefix

    @override
    def reset(self) -> None:
        self.values = {}


def moments(trainer: AnyTrainer, metric: str | None = None) -> list[tuple[str, float, int, int, int]]:
    """The name, value, epoch, update and samples of all that was recorded, or of a metric."""
    assert isinstance(trainer.run_history, InMemoryRunHistory)
    records = trainer.run_history.records(metric)
    return [(one.metric, one.value, one.epoch, one.update, one.samples) for one in records]


def epochs_of(trainer: AnyTrainer, metric: str) -> list[int]:
    """The epochs in which a metric was recorded."""
    return [epoch for _, _, epoch, _, _ in moments(trainer, metric)]


def updates_of(trainer: AnyTrainer, metric: str) -> list[int]:
    """The updates that were complete each time a metric was recorded."""
    return [update for _, _, _, update, _ in moments(trainer, metric)]
