"""Steps copies of the optimizers and schedulers of a run, without its model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_preflight._plan_records import PlannedRate, PlannedRates

_MOST_STEPS = 1_000_000
"""Steps of schedules, each of one group, that take some seconds."""
_DRAWN = 1000
_ROUNDING = 1e-12


def rates_of(
    optimizers: Mapping[str, Optimizer], schedulers: Mapping[str, Any], updates: int, steps_after: Collection[int]
) -> list[PlannedRates]:
    """Return the learning rates of a run, or of its first updates where it would take too long.

    Args:
        optimizers: The optimizers as the run begins with them.
        schedulers: As well.
        updates: The number of updates.
        steps_after: The updates after which the schedulers are stepped.
    """
    copied, copied_schedulers = _copies(optimizers, schedulers, "meta")
    groups = [(name, number, group) for name, one in copied.items() for number, group in enumerate(one.param_groups)]
    last = min(updates, _MOST_STEPS // len(groups)) if schedulers else 1
    courses = [_Course(float(group["lr"]), max(1, last // _DRAWN)) for _, _, group in groups]
    with warnings.catch_warnings():  # schedulers of torch miss the steps of the optimizer
        warnings.simplefilter("ignore")
        for update in range(1, last):
            if update in steps_after:
                for scheduler in copied_schedulers:
                    scheduler.step()
            for (_, _, group), course in zip(groups, courses, strict=True):
                course.go_on(update + 1, float(group["lr"]))
    end = last if schedulers else updates
    return [
        PlannedRates(name, number, *one.ending(end)) for (name, number, _), one in zip(groups, courses, strict=True)
    ]


class _Course:
    """The turning points of a learning rate so far, and some between them."""

    def __init__(self, rate: float, step: int) -> None:
        self._step, self._drawn = step, [PlannedRate(1, rate)]
        self._first = self._highest = self._lowest = self._last = PlannedRate(1, rate)
        self._turns: list[PlannedRate] = []
        self._direction = 0.0

    def go_on(self, update: int, rate: float) -> None:
        before, now = self._last.rate, PlannedRate(update, rate)
        self._highest = now if rate > self._highest.rate else self._highest
        self._lowest = now if rate < self._lowest.rate else self._lowest
        change = rate - before
        if abs(change) > _ROUNDING * max(abs(rate), abs(before)):
            if change * self._direction < 0:
                self._turns.append(PlannedRate(update - 1, before))
            self._direction = change
        if update - self._drawn[-1].update >= self._step:
            self._drawn.append(now)
        self._last = now

    def ending(self, end: int) -> Iterator[tuple[PlannedRate, ...]]:
        points = {self._first, self._highest, self._lowest, *self._turns, PlannedRate(end, self._last.rate)}
        for some in (points, points.union(self._drawn)):
            yield tuple(sorted(some, key=lambda point: point.update))


def states_after_update(optimizers: Mapping[str, Optimizer]) -> list[Tensor]:
    """Return tensors of the sizes that the state of optimizers has after an update.

    Args:
        optimizers: The optimizers; copies are stepped.
    """
    try:
        return _states(_copies(optimizers, {}, "meta")[0].values())
    except Exception:  # some look at values, and others are implemented for certain devices only
        return _states(_copies(optimizers, {}, "cpu")[0].values())


def _states(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    for optimizer in optimizers:
        optimizer.step()
    states = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()]
    return list({id(one): one for one in states if isinstance(one, Tensor)}.values())


def _copies(
    optimizers: Mapping[str, Optimizer], schedulers: Mapping[str, Any], device: str
) -> tuple[dict[str, Optimizer], list[Any]]:
    """Return copies with other parameters of the same sizes; on "meta" they take no memory."""
    memo: dict[int, Any] = {}
    for optimizer in optimizers.values():
        for parameter in parameters_of([optimizer]):
            copied = nn.Parameter(torch.zeros_like(parameter, device=device), parameter.requires_grad)
            copied.grad = torch.zeros_like(copied) if parameter.requires_grad else None
            memo[id(parameter)] = copied
        for value in (value for state in optimizer.state.values() for value in state.values()):
            if isinstance(value, Tensor) and value.numel() > 1:  # a number of steps keeps its value
                memo[id(value)] = torch.zeros_like(value, device=device)
    return copy.deepcopy((dict(optimizers), list(schedulers.values())), memo)


def parameters_of(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return the parameters of optimizers.

    Args:
        optimizers: The optimizers.
    """
    return [parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]]


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the memory of tensors, of each once.

    Args:
        tensors: The tensors.
    """
    return sum(one.numel() * one.element_size() for one in {id(one): one for one in tensors}.values())
