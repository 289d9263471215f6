"""A history as users write one."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from pa_core.tracking import MetricValue, RunHistory

__all__ = ["DocumentedHistory"]


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
    def get_latest_metric(self, metric_name: str) -> MetricValue:
        return self.values[metric_name][-1]

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
