"""What must not pass a type checker around what a run records."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing_extensions import override

from pa_core import InMemoryRunHistory, RunHistory
from pa_core.tracking import MetricRecord

history = InMemoryRunHistory()
record = MetricRecord("loss", 0.5, epoch=1, update=1, samples=1, seconds=0.1)


class Unfinished(RunHistory):
    """Implements one method of many."""

    @override
    def get_latest_metric(self, metric_name: int) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.RunHistory.get_latest_metric: metrics have names
        raise NotImplementedError


Unfinished()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # pa_core.RunHistory: most methods are missing
history.current_epoch = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.RunHistory.current_epoch: the trainer counts
history.get_metric_values("loss").update()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.InMemoryRunHistory.get_metric_values: a list
history.get_metric_names().add("accuracy")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.InMemoryRunHistory.get_metric_names: only to read
record.value = 0.25  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.tracking.MetricRecord: it is frozen
