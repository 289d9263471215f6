"""Keeps the reports that a killed run may have lost, and drops those that a resumed run repeats."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pa_callbacks_extra.tracker_like import TrackerLike

SPEED = "train/samples_per_second"
MEMORY = "train/accelerator_memory_gib"
_MEASURED = (SPEED, MEMORY)
"""Metrics that have another value each time that the same update is done."""
_SAME = 1e-3
"""The relative difference up to which two values of a step are the same point; a chart shows no smaller difference."""
_MOST_KEPT = 1000


class Point(NamedTuple):
    """A value of a metric in a tracker.

    Attributes:
        name: The metric.
        step: The position on the x axis.
        value: The value.
    """

    name: str
    step: int
    value: float


class Report(NamedTuple):
    """The values that were sent to trackers in one call.

    Attributes:
        step: The position on the x axis.
        values: Numbers by name.
    """

    step: int
    values: dict[str, float]


class RecentReports:
    """The last reports, which trackers may not have written yet.

    A report is kept until it is old enough and enough later reports have followed.

    Args:
        seconds: The age at which every tracker has written a report.
        reports: The number of later reports after which every tracker has written a report.

    Example:
        >>> recent = RecentReports(seconds=0, reports=1)
        >>> recent.add(1, {"loss": 0.5})
        >>> recent.add(2, {"loss": 0.25})
        >>> recent.reports()
        [Report(step=2, values={'loss': 0.25})]
    """

    def __init__(self, seconds: float, reports: int) -> None:
        self._seconds = seconds
        self._reports = reports
        self._kept: deque[tuple[float, Report]] = deque()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Keep a report."""
        self._kept.append((time.monotonic(), Report(step, dict(values))))
        self._forget()

    def reports(self) -> list[Report]:
        """Return the reports, the oldest first."""
        self._forget()
        return [report for _, report in self._kept]

    def _forget(self) -> None:
        now = time.monotonic()
        while len(self._kept) > self._reports and (
            now - self._kept[0][0] >= self._seconds or len(self._kept) > _MOST_KEPT
        ):
            self._kept.popleft()


class RecordedPoints:
    """The points of a resumed run that a tracker already has.

    Args:
        points: The points.

    Example:
        >>> recorded = RecordedPoints([Point("loss", 5, 0.5)])
        >>> recorded.lacking(5, {"loss": 0.5, "accuracy": 0.75})
        {'accuracy': 0.75}
        >>> recorded.lacking(5, {"loss": 0.625})
        {'loss': 0.625}
    """

    def __init__(self, points: Iterable[Point]) -> None:
        self._values: dict[tuple[str, int], list[float]] = {}
        for name, step, value in points:
            self._values.setdefault((name, step), []).append(value)
        self._last_step = max((step for _, step in self._values), default=-1)

    def lacking(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values that are not recorded, or are recorded with a different number.

        Args:
            step: The step of the values.
            values: Numbers by name.
        """
        if step > self._last_step:
            return dict(values)
        return {name: value for name, value in values.items() if not self._has(name, step, value)}

    def _has(self, name: str, step: int, value: float) -> bool:
        recorded = self._values.get((name, step), ())
        return (name in _MEASURED and len(recorded) > 0) or any(_are_same(known, value) for known in recorded)


def _are_same(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=_SAME) or (math.isnan(first) and math.isnan(second))


class WithoutRepeats:
    """A wrapper for the tracker of a resumed run that drops the points that the tracker already has.

    Args:
        tracker: The open tracker.
        recorded: The points that the tracker already has.
    """

    def __init__(self, tracker: TrackerLike, recorded: RecordedPoints) -> None:
        self.tracker: Any = tracker.tracker
        self._tracker = tracker
        self._recorded = recorded

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the settings of the run."""
        self._tracker.store_init_configuration(values)

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Record the values that the tracker lacks."""
        lacking = values if step is None else self._recorded.lacking(step, values)
        if lacking:
            self._tracker.log(lacking, step=step)

    def finish(self) -> None:
        """Write all remaining values, and end the run."""
        self._tracker.finish()
