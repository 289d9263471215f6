"""What must not pass a type checker around what a run records."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing_extensions import override

from pa_core import InMemoryRunHistory, LossTracker, MetricRecord, RunHistory, plot_run_history
from pa_core.errors import ConfigurationError, StopTrainingError

history = InMemoryRunHistory()
record = MetricRecord("loss", 0.5, epoch=1, update=1, samples=1, seconds=0.1)


class Unfinished(RunHistory):
    """Implements one method of many."""

    @override
    def get_latest_metric(self, metric_name: int) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.RunHistory.get_latest_metric: metrics have names
        raise NotImplementedError


Unfinished()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # pa_core.RunHistory: most methods are missing
history.update_metric(1, 0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.RunHistory.update_metric: a name
history.update_metric("loss")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.RunHistory.update_metric: a value is missing
history.current_epoch = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.RunHistory.current_epoch: the trainer counts
history.get_latest_metric(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.InMemoryRunHistory.get_latest_metric: a name
history.get_metric_values("loss").update()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.InMemoryRunHistory.get_metric_values: a list
history.get_metric_names().add("accuracy")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.InMemoryRunHistory.get_metric_names: only to read
history.records(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.InMemoryRunHistory.records: a name
record.value = 0.25  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.MetricRecord: it is frozen
MetricRecord("loss", 0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.MetricRecord: its moment is missing
LossTracker().update("0.5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.LossTracker.update: text is no loss
LossTracker(0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.LossTracker: it begins at nothing
plot_run_history({"loss": [0.5]})  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.plot_run_history: a history
ConfigurationError()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.ConfigurationError: what is wrong?
StopTrainingError(reason="enough")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.StopTrainingError: no such argument
