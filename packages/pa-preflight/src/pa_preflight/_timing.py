"""Measures the time of some updates and batches, to predict the time of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from statistics import median
from typing import Any, Self

import torch
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    LimitBatchesCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_preflight._arguments import evaluated_sets, ignore, trial, with_methods
from pa_preflight._findings import first_line
from pa_preflight._plan_records import PlannedEvaluation, PlannedSeconds
from pa_preflight._tensors import tensors_in

_UPDATES, _BATCHES = 10, 5

_FIRST, _ENOUGH = 5.0, 3.0
"""Seconds after which no more is timed: before the end of the first update or batch, which warm up, and after it."""


class Timing:
    """Makes the first updates of a run, and evaluates the first batches; both are undone.

    Args:
        trainer: The trainer.
        asked: The arguments of the run.
        limits: Callbacks that limit its batches.

    Attributes:
        batch: The largest batch that was trained on; None before any batch.
        notes: The parts that could not be timed, with the reasons.
        is_possible: Whether an update was made, or would have been with more memory.
    """

    def __init__(
        self, trainer: Trainer[Any, Any, Any, Any], asked: Mapping[str, Any], limits: Iterable[LimitBatchesCallback]
    ) -> None:
        self.batch: Any = None
        self.notes: list[str] = []
        self._is_evaluated = False
        self._clock = _Clock()
        sets = evaluated_sets(asked["eval_dataset"]).values()
        without: dict[str, Any] = dict.fromkeys(("eval_dataset", "watch_metric", "create_scheduler_fn"))
        updates = {**asked, **without, "sanity_eval_steps": 0, "step_scheduler": "update"}
        evaluations = {**updates, "eval_dataset": asked["eval_dataset"], "sanity_eval_steps": _BATCHES}
        step = self._noting_batches(trainer.calculate_train_batch_loss)
        with (
            trial(trainer, *limits, self._clock, data=asked.values()),
            # without training_run_end, because no training has taken place
            with_methods(trainer, calculate_train_batch_loss=step, training_run_end=ignore),
        ):
            self.is_possible = self._run("An update", trainer, updates)
            if sets:
                self._clock.is_training = False
                self._is_evaluated = self._run("An evaluation", trainer, evaluations)

    def _noting_batches(self, calculate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def note(batch: Any) -> Any:
            if self.batch is None or _bytes_of(batch) > _bytes_of(self.batch):
                self.batch = batch
            return calculate(batch)

        return note

    def _run(self, subject: str, trainer: Trainer[Any, Any, Any, Any], asked: dict[str, Any]) -> bool:
        try:
            trainer.train(**asked)
        except Exception as error:
            self.notes.append(f"{subject} could not be made: {first_line(error)}")
            return isinstance(error, (torch.OutOfMemoryError, MemoryError))
        return True

    def seconds(self, batches: int, updates: int, evaluations: Iterable[PlannedEvaluation]) -> PlannedSeconds:
        """Return the predicted seconds of a run.

        Args:
            batches: The number of batches of an update.
            updates: The number of updates.
            evaluations: The evaluations of the run.
        """
        update, of_batches = self._clock.of_update(batches), self._clock.of_evaluations()
        each = [
            None
            if evaluation.batches is None or evaluation.name not in of_batches
            else evaluation.batches * of_batches[evaluation.name]
            for evaluation in evaluations
        ]
        known = [seconds for seconds in each if seconds is not None]
        if len(known) < len(each) and self._is_evaluated:
            self.notes.append(
                "The time of evaluations is left out: a set has no length, or its evaluation was not reached in time."
            )
        return PlannedSeconds(
            update=update,
            updates=None if update is None else updates * update,
            evaluations=sum(known) if len(known) == len(each) else None,
        )


class _Clock(TrainerCallback):
    """Records when steps begin and end."""

    def __init__(self) -> None:
        self.is_training = True
        self._has_evaluated = False
        self._steps: list[float] = []
        self._updates: list[float] = []
        self._evaluated: dict[str | None, list[float]] = {}
        self._ends_at = 0.0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return this object, as the evaluation before a run would call a copy."""
        return self

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._ends_at = time.perf_counter() + _FIRST

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if not self.is_training:
            raise StopTrainingError("The evaluation is timed.")

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._steps.append(self._now(trainer))
        if self._steps[-1] > self._ends_at and len(self._steps) > 1:
            raise StopTrainingError("That took long enough.")

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self._updates.append(self._now(trainer))
        if update == 1:
            self._ends_at = self._updates[-1] + _ENOUGH
        if self._updates[-1] > self._ends_at or update >= _UPDATES:
            raise StopTrainingError("That is enough.")

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        raise StopTrainingError("An epoch is enough.")

    @override
    def on_eval_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._evaluated.setdefault(trainer.eval_name, [self._now(trainer)])

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self._evaluated[trainer.eval_name].append(self._now(trainer))
        if not self._has_evaluated:
            self._has_evaluated, self._ends_at = True, self._now(trainer) + _ENOUGH
        if self._now(trainer) > self._ends_at:
            raise StopTrainingError("That took long enough.")

    def _now(self, trainer: AnyTrainer) -> float:
        if trainer.device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()

    def of_update(self, batches: int) -> float | None:
        """Return the seconds of an update of some batches; the first, which warms up, counts only if it is alone."""
        steps, updates = self._steps, self._updates
        if len(updates) > 1:
            return _typical(updates)
        if len(steps) > 1:
            return batches * _typical(steps)
        return updates[0] - steps[0] if updates else None

    def of_evaluations(self) -> dict[str | None, float]:
        """Return the seconds of a batch of each set; the first batch counts only if it is alone."""
        timed = {name: times for name, times in self._evaluated.items() if times[1:]}
        return {name: _typical(times[1:] if times[2:] else times) for name, times in timed.items()}


def _typical(times: list[float]) -> float:
    return median(later - earlier for earlier, later in pairwise(times))


def _bytes_of(batch: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(batch))
