"""The epochs of a run and its learning rates, from copies of optimizers and schedulers without the model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_preflight._arguments import is_overridden, is_trainer
from pa_preflight._plan_records import PlannedEpoch, PlannedRate, PlannedRates
from pa_preflight._tensors import parameters_of

_MOST_STEPS = 1_000_000
"""The number of steps of schedules, for each group, that take some seconds."""

_DRAWN = 1000

_ROUNDING = 1e-12


def epochs_of(trainer: AnyTrainer) -> Iterator[PlannedEpoch]:
    """Yield the epochs of a run.

    Args:
        trainer: The trainer, in the run.
    """
    config, lengths = trainer.run_config, trainer.epoch_lengths
    for epoch in range(config.num_epochs):
        begins_at = lengths.updates_before(epoch)
        updates = min(lengths.updates_of(epoch), (config.max_num_train_steps or 0) - begins_at)
        batches = min(lengths.steps_of(epoch), updates * config.gradient_accumulation_steps)
        yield PlannedEpoch(batches, updates, begins_at + updates)


def follows_from_metrics(trainer: AnyTrainer, asked: Mapping[str, Any]) -> bool:
    """Whether learning rates are not known before a run, because they depend on a metric, or the script sets them.

    Args:
        trainer: The trainer.
        asked: The arguments of the run.
    """
    is_own = is_trainer(trainer) and is_overridden(trainer, "scheduler_step")
    return bool(trainer.named_schedulers()) and (is_own or asked["watch_metric"] is not None)


def steps_after(epochs: Sequence[PlannedEpoch], asked: Mapping[str, Any]) -> Collection[int]:
    """Return the updates after which schedulers are stepped.

    Args:
        epochs: The epochs of a run.
        asked: Its arguments.
    """
    updates = epochs[-1].ends_at
    return range(1, updates) if asked["step_scheduler"] == "update" else {epoch.ends_at for epoch in epochs}


def rates_of(
    optimizers: Mapping[str, Optimizer], schedulers: Mapping[str, Any], updates: int, steps: Collection[int]
) -> list[PlannedRates]:
    """Return the learning rates of a run, or of its first updates if all would take too long.

    Args:
        optimizers: The optimizers at the start of the run.
        schedulers: The schedulers at the start of the run.
        updates: The number of updates.
        steps: The updates after which the schedulers are stepped.
    """
    copied, copied_schedulers = _copies(optimizers, schedulers, "meta")
    groups = [
        (name, number, group)
        for name, optimizer in copied.items()
        for number, group in enumerate(optimizer.param_groups)
    ]
    last = min(updates, _MOST_STEPS // len(groups)) if schedulers else 1
    courses = [_Course(float(group["lr"]), max(1, last // _DRAWN)) for _, _, group in groups]
    with warnings.catch_warnings():  # schedulers of torch warn that the optimizer was not stepped
        warnings.simplefilter("ignore")
        for update in range(1, last):
            if update in steps:
                for scheduler in copied_schedulers:
                    scheduler.step()
            for (_, _, group), course in zip(groups, courses, strict=True):
                course.go_on(update + 1, float(group["lr"]))
    end = last if schedulers else updates
    return [
        PlannedRates(name, number, *course.ending(end))
        for (name, number, _), course in zip(groups, courses, strict=True)
    ]


class _Course:
    """The turning points of a learning rate so far, and some points between them."""

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
    """Return tensors of the same sizes as the state of optimizers after an update.

    Args:
        optimizers: The optimizers; copies are stepped.
    """
    try:
        return _states(_copies(optimizers, {}, "meta")[0].values())
    except Exception:  # some read values, and others support only certain devices
        return _states(_copies(optimizers, {}, "cpu")[0].values())


def _states(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    for optimizer in optimizers:
        optimizer.step()
    states = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()]
    return list({id(value): value for value in states if isinstance(value, Tensor)}.values())


def _copies(
    optimizers: Mapping[str, Optimizer], schedulers: Mapping[str, Any], device: str
) -> tuple[dict[str, Optimizer], list[Any]]:
    """Return copies with new parameters of the same sizes; on "meta" they take no memory."""
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


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the memory of tensors; a tensor that appears twice counts once.

    Args:
        tensors: The tensors.
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in {id(tensor): tensor for tensor in tensors}.values())


class PlannedRun(TrainerCallback):
    """The number of updates of a run, and their learning rates.

    Args:
        trainer: The trainer, before the run.
        asked: The arguments of the run.

    Attributes:
        first_rates: The learning rates of the optimizers without a scheduler: of each group, by the name of the
            optimizer and the number of the group.
        updates: The number of updates; 0 if it is not known.
        epochs: The number of epochs.
        schedulers: The schedulers, by name.
        scheduler_steps: The number of their steps.
        rates: The course of the rate of each group; empty if it depends on a metric or is set by the script.
    """

    def __init__(self, trainer: Trainer[Any, Any, Any, Any], asked: Mapping[str, Any]) -> None:
        self._asked = asked
        self.first_rates: dict[tuple[str, int], float] = {
            (name, number): float(group["lr"])
            for name, optimizer in trainer.named_optimizers().items()
            for number, group in enumerate(optimizer.param_groups)
        }
        self.updates = self.epochs = self.scheduler_steps = 0
        self.schedulers: dict[str, Any] = {}
        self.rates: list[PlannedRates] = []
        self._is_known = False

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self._is_known or not trainer.epoch_lengths.are_known:
            return
        self._is_known = True
        epochs = list(epochs_of(trainer))
        self.updates, self.epochs = epochs[-1].ends_at, len(epochs)
        self.schedulers = dict(trainer.named_schedulers())
        steps = steps_after(epochs, self._asked)
        self.scheduler_steps = len(steps)
        if follows_from_metrics(trainer, self._asked):
            return
        try:
            self.rates = rates_of(trainer.named_optimizers(), self.schedulers, self.updates, steps)
        except Exception:  # such as for a scheduler that cannot be copied
            self.rates = []
