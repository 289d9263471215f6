"""What the learning rates of the whole run will be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.optim import lr_scheduler

from pa_preflight._findings import Finding, noticed
from pa_preflight._plan_records import PlannedRate, PlannedRates
from pa_preflight._planned_run import PlannedRun

_FEWEST = 10
"""Updates of a run whose schedule can be judged, and steps of a scheduler."""
_USUAL, _FAR_BELOW, _NOTHING, _LATE, _RISING = 0.2, 0.02, 1e-3, 0.6, 1.02
_LONGER, _SHORTER, _TOO_EARLY = 2.0, 0.8, 0.1
_PREVIEW = "Preview the schedule with pa_preflight.plan."


def check_schedules(planned: PlannedRun) -> Iterator[Finding]:
    """Yield what is wrong with schedules.

    Args:
        planned: What the run is going to do.
    """
    if not planned.schedulers or planned.updates < _FEWEST:
        return
    for course in planned.rates:
        found = next(_check_course(course, planned), None)
        if found is not None:
            yield found
            return
    for one in planned.schedulers.values():
        yield from _check_length(one, planned)


def _check_course(course: PlannedRates, planned: PlannedRun) -> Iterator[Finding]:
    points, first = course.course, planned.first_rates.get((course.optimizer, course.group), 0.0)
    highest = max(point.rate for point in points)
    if not highest:
        return
    if highest < _FAR_BELOW * first < _FAR_BELOW * _USUAL:  # a rate of 1 may stand for a factor
        yield noticed(
            "rate-far-below",
            f"The scheduler keeps the learning rate below {highest:.3g} in the whole run; the optimizer has "
            f"{first:.3g}.",
            "Let the scheduler return factors, which multiply the learning rate of the optimizer: LambdaLR takes no "
            "rates.",
        )
    elif _rises_to_the_end(points, highest):
        yield noticed(
            "schedule-does-not-fit",
            f"The learning rate rises until the end of the run, to {highest:.3g} after {planned.updates} updates: the "
            "warm-up is longer than the run, and the rate that it warms up to is never reached.",
            f"Give the warm-up a tenth of the updates of the run, or less. {_PREVIEW}",
        )
    else:
        yield from _check_end(points, highest, planned)


def _rises_to_the_end(points: Sequence[PlannedRate], highest: float) -> bool:
    end = points[-1]
    before = [point.rate for point in points if point.update <= 0.9 * end.update]  # the last tenth
    return end.rate == highest and bool(before) and end.rate > _RISING * before[-1]


def _check_end(points: Sequence[PlannedRate], highest: float, planned: PlannedRun) -> Iterator[Finding]:
    alive = max(point.update for point in points if point.rate > 1.01 * _NOTHING * highest)
    if alive < _LATE * planned.updates:
        last = points[-1].rate
        yield noticed(
            "schedule-does-not-fit",
            f"The learning rate falls from {highest:.3g} to less than a thousandth of it by update {alive + 1} of "
            f"{planned.updates}, and ends at {last:.3g}: the rest of the run learns nothing.",
            "Look at what the scheduler counts: the run steps it after each update, unless step_scheduler says "
            f"otherwise. {_PREVIEW}",
        )


def _check_length(scheduler: Any, planned: PlannedRun) -> Iterator[Finding]:
    steps, kind = planned.scheduler_steps, type(scheduler).__name__
    begins, length = _begin_of(scheduler), _length_of(scheduler)
    if begins > steps or length > _LONGER * steps:
        yield noticed(
            "schedule-does-not-fit",
            f"{kind} {f'begins to change the rate after {begins}' if begins else f'takes {length}'} steps, and the run "
            f"makes {steps}: the learning rate does not come near its end.",
            f"Give it the number of steps that it is called for, or pass step_scheduler. {_PREVIEW}",
            "note" if steps < _FEWEST else "warning",  # the beginning of a longer run, as of a first try
        )
    elif isinstance(scheduler, lr_scheduler.CosineAnnealingLR) and length < _SHORTER * steps:
        yield noticed(
            "schedule-does-not-fit",
            f"CosineAnnealingLR comes down in T_max={length} steps, and the run makes {steps}: the learning rate rises "
            "again.",
            f"Pass the number of steps of the whole run as T_max, or step_scheduler. {_PREVIEW}",
        )
    elif isinstance(scheduler, lr_scheduler.MultiStepLR) and length < _TOO_EARLY * steps:
        yield noticed(
            "schedule-does-not-fit",
            f"The last milestone of MultiStepLR is {length}, and the run makes {steps} steps: nearly all of it has the "
            "lowest rate.",
            f"Count the milestones in the steps that the scheduler makes, or pass step_scheduler. {_PREVIEW}",
        )


def _begin_of(scheduler: Any) -> int:
    """The steps after which a scheduler of torch changes the rate for the first time; 0 if it begins at once."""
    if isinstance(scheduler, lr_scheduler.StepLR):
        return int(scheduler.step_size)
    return min(scheduler.milestones, default=0) if isinstance(scheduler, lr_scheduler.MultiStepLR) else 0


def _length_of(scheduler: Any) -> int:
    """The steps in which a scheduler of torch changes the rate; 0 of others."""
    if isinstance(scheduler, lr_scheduler.CosineAnnealingLR):
        return int(scheduler.T_max)
    if isinstance(scheduler, lr_scheduler.OneCycleLR):
        return int(scheduler.total_steps)
    if isinstance(scheduler, (lr_scheduler.LinearLR, lr_scheduler.PolynomialLR)):
        return int(scheduler.total_iters)
    return max(scheduler.milestones, default=0) if isinstance(scheduler, lr_scheduler.MultiStepLR) else 0
