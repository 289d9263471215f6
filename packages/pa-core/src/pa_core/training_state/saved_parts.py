"""The parts of a saved run, read once into records, before anything takes them over."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, TypedDict, cast

import torch
from torch import Tensor

from pa_core.errors import CheckpointError
from pa_core.progress import Phase, Position, Progress
from pa_core.storage import State
from pa_core.training_state.model_state import SavedModel
from pa_core.training_state.optimizer_state import SavedOptimizer
from pa_core.training_state.records import read_record
from pa_data.orders import epoch_order
from pa_data.rng import preserve_rng_state, restore_rng_state

__all__ = [
    "OPTIMIZER",
    "Extension",
    "SavedParts",
    "SavedProcess",
    "SavedSettings",
    "by_optimizer",
    "find_extension",
    "read_parts",
]

OPTIMIZER = "optimizer"
"""The name of the only optimizer of a run, which what is saved by optimizer does without."""

# Of the settings, those that are compared as numbers; others are only compared with what the script has.
_Settings = TypedDict(
    "_Settings",
    {
        "num_epochs": int,
        "max_num_train_steps": int,
        "num_processes": int,
        "gradient_accumulation_steps": NotRequired[int],
        "samples_per_update": int | str,
        "shuffle": bool | None,
        "loader": str,
        "length of the schedule": NotRequired[int | None],
    },
)
_Object = TypedDict("_Object", {"class": str, "state": Any})


class _Group(TypedDict):
    lr: NotRequired[float]


class _EpochStart(TypedDict):
    generators: dict[str, Any]
    has_workers: bool
    streams: dict[str, Any]


class _Loader(TypedDict):
    generators: dict[str, Any]
    has_workers: bool
    epoch_start: NotRequired[_EpochStart | None]


@dataclass(frozen=True, slots=True)
class Extension:
    """Where a run continues if more is requested.

    Attributes:
        position: What comes then.
        number_in_history: The number of that epoch in the run history.
    """

    position: Position
    number_in_history: int


@dataclass(frozen=True)
class SavedSettings:
    """What a run was requested.

    Attributes:
        position: Where it stands.
        seed: The number that the order of the data and the augmentation follow from.
        algorithm: The name of the permutation of ``Shuffled`` or ``Sequential``; None for other orders and
            for a custom data loader.
        settings: Its settings, as plain values.
        hyperparameters: What was set on each optimizer when the run began, by name, as ``by_optimizer`` reads it.
        nominal_items: The nominal number of items of an update of each optimizer, by name, as ``by_optimizer`` reads
            it; None where samples are counted.
        extension: Where the run continues if more is requested; None where it continues at its position.
    """

    position: Position
    seed: int
    algorithm: str | None
    settings: dict[str, Any]
    hyperparameters: list[dict[str, Any]] | dict[str, list[dict[str, Any]]]
    nominal_items: float | dict[str, float | None] | None
    extension: Extension | None = None


@dataclass(frozen=True, slots=True)
class SavedProcess:
    """What differs between processes.

    Attributes:
        streams: What ``capture_rng_state`` returned.
        losses: The totals of the losses of the epoch.
        loaders: What is saved of custom data loaders, by what they are for.
        step_means: The totals of what steps logged, by name.
    """

    streams: dict[str, Any]
    losses: Tensor
    loaders: dict[str, _Loader | None]
    step_means: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])


@dataclass(frozen=True, slots=True)
class SavedParts:
    """Everything that a training state holds.

    Attributes:
        models: By name.
        optimizers: By name.
        schedulers: Their states, by name.
        scalers: The state of the gradient scaler of fp16, if there was one.
        history: The state of the run history.
        callbacks: The states of callbacks, by the names of their classes.
        objects: The classes and the states of the objects that were registered, in order.
        run: The requested settings of the run.
        ranks: What differs between processes, in the order of the ranks.
        extras: Further entries of the script.
    """

    models: dict[str, SavedModel]
    optimizers: dict[str, SavedOptimizer]
    schedulers: dict[str, dict[str, Any]]
    scalers: dict[str, dict[str, Any]]
    history: dict[str, Any]
    callbacks: dict[str, Any]
    objects: list[_Object]
    run: SavedSettings
    ranks: list[SavedProcess]
    extras: dict[str, Any]


def read_parts(state: State) -> SavedParts:
    """Return what a state holds.

    Args:
        state: The training state, whole and verified.

    Raises:
        CheckpointError: It is not what a run saves.
    """
    try:
        parts: SavedParts = read_record(SavedParts, state.parts)
        for found in _contradictions(parts, state.summary):
            raise ValueError(found)
    except ValueError as error:
        raise CheckpointError(
            "The training state has another form than this version of pa-core reads.",
            given=f"{state.path}/state.json: {error}",
            expected="what a run of this version or of an earlier one saved",
            do="Use another state, such as the one before it, or the version of pa-core that saved this one.",
        ) from error
    return parts


def by_optimizer(saved: Any) -> dict[str, Any]:
    """Return what is saved by the name of an optimizer, which lacks the name if it is the only one.

    Example:
        >>> by_optimizer(32.0)
        {'optimizer': 32.0}
    """
    return cast("dict[str, Any]", saved) if isinstance(saved, dict) else {OPTIMIZER: saved}


def _contradictions(parts: SavedParts, summary: Mapping[str, object]) -> Iterator[str]:
    """Yield what contradicts itself, and what could not be restored."""
    run, settings = parts.run, read_record(_Settings, parts.run.settings, "run.settings")
    read_record(dict[str, list[_Group]], by_optimizer(run.hyperparameters), "run.hyperparameters")
    if run.algorithm is not None:
        epoch_order(0, seed=0, epoch=0, algorithm=run.algorithm)  # raises an error for one that is not known
    if len(parts.ranks) != settings["num_processes"]:
        yield f"ranks has {len(parts.ranks)} entries instead of {settings['num_processes']}, as run.settings says"
    if run.settings.get("scheduler") is not None and not parts.schedulers:
        yield f"schedulers is empty instead of the state of {run.settings['scheduler']}, as run.settings says"
    told = summary.get("update"), summary.get("complete")
    if (run.position.updates, run.position.phase is Phase.COMPLETE) != told:
        yield f"run.position is {run.position} instead of update {told[0]}, complete: {told[1]}, as the manifest says"
    for number, process in enumerate(parts.ranks):
        yield from _unrestorable(process, f"ranks.{number}")


def _unrestorable(process: SavedProcess, path: str) -> Iterator[str]:
    losses = process.losses
    if losses.shape != (2,) or not losses.is_floating_point() or not (losses[1].isfinite() and losses[1] >= 0):
        yield f"{path}.losses is {losses!r} instead of a total and a number of samples"
    streams = {f"{path}.streams": process.streams}
    for name, loader in process.loaders.items():
        if loader is not None and (start := loader.get("epoch_start")) is not None:
            streams[f"{path}.loaders.{name}.epoch_start.streams"] = start["streams"]
    for inside, state in streams.items():
        try:
            with preserve_rng_state():
                restore_rng_state(state, torch.device("cpu"))
                random.gauss()  # may have been drawn before, as a second number of a pair
        except Exception as error:  # generators raise errors of many kinds
            yield f"{inside} is not the state of all generators: {type(error).__name__}: {error}"


def find_extension(
    position: Position,
    progress: Progress,
    *,
    num_steps: int | None,
    number_in_history: int,
    is_at_last_update: bool,
) -> Extension | None:
    """Return where a run that has ended within an epoch continues; None where it continues at its position.

    Args:
        position: Where the run stands.
        progress: How far it has come in its last epoch.
        num_steps: Training steps of a whole epoch; None of a stream, whose end alone tells.
        number_in_history: The number of the current epoch in the run history.
        is_at_last_update: Whether all updates were made, so that the run left the epoch early.

    Example:
        >>> ended = Position(Phase.COMPLETE, epochs=2, updates=12)
        >>> progress = Progress(updates=12, epochs=2, samples_in_epoch=16, steps_in_epoch=2)
        >>> extension = find_extension(ended, progress, num_steps=10, number_in_history=3, is_at_last_update=True)
        >>> extension.position
        Position(phase=<Phase.STEP: 'step'>, epochs=1, updates=12, samples=16, steps=2, eval_sets=())
    """
    is_unfinished = progress.steps_in_epoch > 0 and (num_steps is None or progress.steps_in_epoch < num_steps)
    if progress.epoch_under_way is not None:
        return _of_stopped_epoch(position, progress, number_in_history, is_unfinished=is_unfinished)
    if position.phase.is_mid_epoch or not (is_at_last_update and is_unfinished):
        return None
    rest = replace(_mid_epoch(position, progress), epochs=position.epochs - 1)
    return Extension(rest, number_in_history - 1)


def _of_stopped_epoch(
    position: Position, progress: Progress, number_in_history: int, *, is_unfinished: bool
) -> Extension | None:
    """As above, where the run was stopped at one of the steps or events of an epoch, or preempted there."""
    if is_unfinished and position.phase in (Phase.COMPLETE, Phase.EVALUATION):
        return Extension(_mid_epoch(position, progress), number_in_history)
    if position.phase is not Phase.COMPLETE:
        return None
    if position.epochs > (progress.epoch_under_way or 0):
        return Extension(replace(position, phase=Phase.EPOCH), number_in_history + 1)
    phase = Phase.EVALUATION if progress.steps_in_epoch else Phase.EPOCH
    return Extension(replace(position, phase=phase), number_in_history)


def _mid_epoch(position: Position, progress: Progress) -> Position:
    steps, samples = progress.steps_in_epoch, progress.samples_in_epoch
    return replace(position, phase=Phase.STEP, samples=samples, steps=steps, eval_sets=())
