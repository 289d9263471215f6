"""When a run evaluates, and when it saves and deletes training states."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pa_core import (
    AnyTrainer,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    TrainerCallback,
)
from pa_core.types import SizedIterable
from pa_preflight._plan_records import PlannedDisk, PlannedEpoch, PlannedEvaluation, PlannedSave

_CallbackT = TypeVar("_CallbackT")

PLANNED = (LimitBatchesCallback, LimitEvalStepsCallback, SaveTrainingStateCallback, StepBasedEvaluationCallback)
"""The callbacks whose doings are planned."""


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


def evaluations_of(
    trainer: AnyTrainer, callbacks: Iterable[TrainerCallback], epochs: Sequence[PlannedEpoch], sanity_eval_steps: int
) -> Iterator[PlannedEvaluation]:
    """Yield the evaluations of a run.

    Args:
        trainer: The trainer, in the run.
        callbacks: The callbacks of the run.
        epochs: The epochs.
        sanity_eval_steps: The argument of the run.
    """
    loaders: dict[str | None, SizedIterable] = {name: one for name, one in trainer.eval_dataloaders.items()}  # noqa: C416  # with None among the keys
    if trainer.eval_dataloader is not None and not loaders:
        loaders = {None: trainer.eval_dataloader}
    every = {name: trainer.eval_sets[name].every_n_epochs if name else 1 for name in loaders}
    first = [(0, [*loaders], sanity_eval_steps, "sanity")] if sanity_eval_steps else []
    for update, names, most, kind in (*first, *_evaluated(callbacks, epochs, every)):
        for name in names:
            yield PlannedEvaluation(update, name, _length(loaders[name], most), kind)


def _evaluated(
    callbacks: Iterable[TrainerCallback], epochs: Sequence[PlannedEpoch], every: Mapping[str | None, int]
) -> Iterator[tuple[int, list[str | None], int | None, str]]:
    """After which updates which sets are evaluated, with a limit on their batches."""
    often, limit = _find(callbacks, StepBasedEvaluationCallback), _find(callbacks, LimitEvalStepsCallback)
    most = None if limit is None else limit.num_eval_steps
    most_after_epoch = None if limit is None or limit.limit_intermediate_only else most
    for number, epoch in enumerate(epochs, 1):
        if often is not None:  # with the last update of an epoch, its own evaluation takes their place
            chosen = [name for name, n in every.items() if n == 1] if often.eval_names is None else often.eval_names
            names = [name for name in every if name in chosen]
            for update in _multiples(often.eval_every_n_steps, epoch, epoch.ends_at):
                yield update, names, most, "intermediate"
        due = [name for name, n in every.items() if number % n == 0 or number == len(epochs)]
        yield epoch.ends_at, due, most_after_epoch, "epoch"


def saves_of(callbacks: Iterable[TrainerCallback], epochs: Sequence[PlannedEpoch]) -> Iterator[PlannedSave]:
    """Yield the training states of a run.

    Args:
        callbacks: The callbacks of the run.
        epochs: The epochs.
    """
    save, kept = _find(callbacks, SaveTrainingStateCallback), list[str]()
    for update, name in () if save is None else _states(save, epochs):
        kept.append(name)
        most = len(kept) if save is None or save.max_checkpoints is None else save.max_checkpoints
        yield PlannedSave(update, name, tuple(kept[:-most]))
        kept = kept[-most:]


def disk_of(callbacks: Iterable[TrainerCallback], saves: Sequence[PlannedSave], size: int | None) -> PlannedDisk | None:
    """Return what training states need on the disk; None where there are none, or their size is not known.

    Args:
        callbacks: The callbacks of the run.
        saves: What it saves and deletes.
        size: The bytes of a state.
    """
    save = _find(callbacks, SaveTrainingStateCallback)
    if save is None or size is None or not saves:
        return None
    most, at_end = states_at_once(saves)
    return PlannedDisk(most * size, at_end * size, shutil.disk_usage(existing(save.save_dir)).free)


def states_at_once(saves: Sequence[PlannedSave]) -> tuple[int, int]:
    """Return how many states are there at one time at the most, and at the end.

    Args:
        saves: What is saved and deleted; a new state is there before an old one is deleted.
    """
    held = most = 0
    for saved in saves:
        most, held = max(most, held + 1), held + 1 - len(saved.deletes)
    return most, held


def existing(folder: Path) -> Path:
    """Return a folder, or what is there of its path.

    Args:
        folder: A folder that may be made later.
    """
    path = Path(os.path.realpath(folder))
    return next(one for one in (path, *path.parents) if one.exists())


def _states(save: SaveTrainingStateCallback, epochs: Sequence[PlannedEpoch]) -> Iterator[tuple[int, str]]:
    for number, epoch in enumerate(epochs, 1):
        if save.save_every_n_steps is not None:
            for update in _multiples(save.save_every_n_steps, epoch, epoch.ends_at + 1):
                yield update, f"step_{update}"
        if save.save_every_n_epochs is not None and number % save.save_every_n_epochs == 0:
            yield epoch.ends_at, f"epoch_{number}"
    if save.save_at_end:
        yield epochs[-1].ends_at, "final"


def _multiples(step: int, epoch: PlannedEpoch, stop: int) -> range:
    begins_at = epoch.ends_at - epoch.updates
    return range(begins_at - begins_at % step + step, stop, step)


def _find(callbacks: Iterable[TrainerCallback], kind: type[_CallbackT]) -> _CallbackT | None:
    return next((one for one in callbacks if type(one) is kind), None)


def _length(loader: SizedIterable, most: int | None) -> int | None:
    """The number of batches to evaluate; None of data without a length."""
    try:
        return min(len(loader), len(loader) if most is None else most)
    except (TypeError, NotImplementedError):
        return None
