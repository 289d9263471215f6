"""The parts of a saved run, read once into records, before anything takes them over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pa_checkpoint import StoredTensor
from pa_core.errors import CheckpointError
from pa_core.progress import Phase, Position
from pa_core.storage import State
from pa_core.tracking import InMemoryRunHistory
from pa_core.training_state.entries import Entry
from pa_core.training_state.extension import Extension
from pa_core.training_state.model_state import SavedModel
from pa_core.training_state.optimizer_state import SavedOptimizer
from pa_data.orders import epoch_order
from pa_data.rng import check_rng_state

__all__ = ["OPTIMIZER", "SavedObject", "SavedParts", "SavedProcess", "SavedSettings", "read_parts", "read_position"]

_T = TypeVar("_T")

OPTIMIZER = "optimizer"
"""The name of the only optimizer of a run, which what is saved by optimizer does without."""

_COUNTED_SETTINGS = ("max_num_train_steps", "num_epochs")


@dataclass(frozen=True, slots=True)
class SavedSettings:
    """What a run was requested.

    Attributes:
        position: Where it stands.
        seed: The number that the order of the data and the augmentation follow from.
        algorithm: The name of the permutation of ``Shuffled`` or ``Sequential``; None for other orders and
            for a custom data loader.
        settings: Its settings, as plain values.
        hyperparameters: What was set on each optimizer when the run began, by name.
        nominal_items: The nominal number of items of an update of each optimizer, by name.
        extension: Where the run continues if more is requested; None where it continues at its position.
    """

    position: Position
    seed: int
    algorithm: str | None
    settings: dict[str, Any]
    hyperparameters: dict[str, list[dict[str, Any]]]
    nominal_items: dict[str, float | None]
    extension: Extension | None


@dataclass(frozen=True, slots=True)
class SavedProcess:
    """What differs between processes.

    Attributes:
        rng_state: What ``capture_rng_state`` returned.
        losses: The totals of the losses of the epoch.
        step_means: The totals of what steps logged, by name.
        loaders: What is saved of custom data loaders, by what they are for.
    """

    rng_state: dict[str, Any]
    losses: Tensor
    step_means: dict[str, tuple[float, int]]
    loaders: dict[str, dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class SavedObject:
    """The state of an object that was registered.

    Attributes:
        kind: The name of its class.
        state: What its ``state_dict`` returned.
    """

    kind: str
    state: Any


@dataclass(frozen=True, slots=True)
class SavedParts:
    """Everything that a training state holds.

    What only an object itself can judge is left as it is: the states of schedulers, scalers, callbacks, objects
    and loaders, and the state of a custom history.

    Attributes:
        models: By name.
        optimizers: By name.
        schedulers: Their states, by name.
        scaler: The state of the gradient scaler of fp16, if there was one.
        history: The state of the run history.
        callbacks: The states of callbacks, by the names of their classes.
        objects: The objects that were registered, in order.
        run: The requested settings of the run.
        processes: What differs between processes, in the order of the ranks.
        extras: Further entries of the script, with whole tensors.
    """

    models: dict[str, SavedModel]
    optimizers: dict[str, SavedOptimizer]
    schedulers: dict[str, dict[str, Any]]
    scaler: dict[str, Any] | None
    history: dict[str, Any]
    callbacks: dict[str, Any]
    objects: list[SavedObject]
    run: SavedSettings
    processes: list[SavedProcess]
    extras: dict[str, Any]


def read_parts(state: State) -> SavedParts:
    """Return what a state holds.

    Args:
        state: The training state, whole and verified.

    Raises:
        CheckpointError: An entry is missing or is another one than a run saves; its path is in the message.
    """
    parts = Entry(state.path / "state.json", "", state.parts)
    read = SavedParts(
        models=parts.at("models").each(_model),
        optimizers=parts.at("optimizers").each(_optimizer),
        schedulers=parts.at("schedulers").each(Entry.mapping),
        scaler=_optional(parts.at("scalers").find("scaler"), Entry.mapping),
        history=_history(parts.at("history")),
        callbacks=parts.at("callbacks").mapping(),
        objects=parts.at("objects").all(_object),
        run=_settings(parts.at("run")),
        processes=parts.at("ranks").all(_process),
        extras=StoredTensor.resolve(parts.at("extras").mapping()),
    )
    _require_agreement(parts, state.summary, read)
    return read


def _require_agreement(parts: Entry, summary: Mapping[str, object], read: SavedParts) -> None:
    """Raise an error for entries that say two things of one state."""
    processes, position = read.run.settings["num_processes"], read.run.position
    if len(read.processes) != processes:
        raise parts.at("ranks").wrong(f"a list of {processes} entries, as run.settings.num_processes says")
    if read.run.settings.get("scheduler") is not None and not read.schedulers:
        raise parts.at("schedulers").wrong("the state of a scheduler, as run.settings.scheduler says")
    if summary["update"] != position.updates or summary["complete"] != (position.phase is Phase.COMPLETE):
        found = f"{position.phase.value!r} after update {position.updates}"
        expected = "complete" if summary["complete"] else "not complete"
        raise (
            parts.at("run")
            .at("position")
            .wrong(f"{expected} after update {summary['update']}, as the manifest says", found)
        )


def _optional(entry: Entry | None, read: Callable[[Entry], _T]) -> _T | None:
    return None if entry is None or entry.value is None else read(entry)


def _model(entry: Entry) -> SavedModel:
    return SavedModel(
        weights=entry.at("weights").mapping(),
        other_buffers=entry.at("other_buffers").each(_whole_tensor),
        trainable=entry.at("trainable").each(Entry.flag),
    )


def _optimizer(entry: Entry) -> SavedOptimizer:
    return SavedOptimizer(
        state=entry.at("state").mapping(),
        parameters=entry.at("parameters").all(lambda group: group.all(_name)),
        others=entry.at("parameters_beside_the_model").all(_tensor),
    )


def _whole_tensor(entry: Entry) -> Tensor:
    stored = _tensor(entry)
    return stored.whole() if isinstance(stored, StoredTensor) else stored


def _tensor(entry: Entry) -> Tensor | StoredTensor:
    return entry.value if isinstance(entry.value, StoredTensor) else entry.tensor()


def _name(entry: Entry) -> str | None:
    return entry.one_of(str, type(None))


def _object(entry: Entry) -> SavedObject:
    return SavedObject(entry.at("class").text(), entry.at("state").value)


def _history(entry: Entry) -> dict[str, Any]:
    history, clock = entry.mapping(), entry.find("clock")
    if clock is not None:
        for unit in ("epoch", "update", "samples"):
            clock.at(unit).count()
        clock.at("seconds").number()
    if history.keys() >= {"clock", "metrics", "metric_name_prefix"}:
        entry.at("metric_name_prefix").text()
        try:
            InMemoryRunHistory().load_state_dict(history)
        except CheckpointError as error:
            raise entry.wrong(error.expected, error.given) from error
    return history


def _settings(entry: Entry) -> SavedSettings:
    settings = entry.at("settings")
    for name in _COUNTED_SETTINGS:
        settings.at(name).count()
    settings.at("num_processes").count(least=1)
    if isinstance(settings.at("samples_per_update").one_of(int, str), str):
        settings.at("gradient_accumulation_steps").count(least=1)
    else:
        settings.at("samples_per_update").count()
    for name, kinds in (("loader", (str,)), ("shuffle", (bool, type(None)))):
        settings.at(name).one_of(*kinds)
    return SavedSettings(
        position=read_position(entry.at("position")),
        seed=entry.at("seed").count(),
        algorithm=_algorithm(entry.at("algorithm")),
        settings=settings.each(_plain),
        hyperparameters=_by_optimizer(entry.at("hyperparameters"), _groups),
        nominal_items=_by_optimizer(entry.at("nominal_items"), _nominal_items),
        extension=_optional(entry.find("extension"), _extension),
    )


def _algorithm(entry: Entry) -> str | None:
    name = _name(entry)
    if name is not None:
        epoch_order(0, seed=0, epoch=0, algorithm=name)
    return name


def read_position(entry: Entry) -> Position:
    """Return a position in a run.

    Args:
        entry: What ``Position.to_dict`` returned.

    Raises:
        CheckpointError: It is something else.
    """
    phase = entry.at("phase")
    phases = [one.value for one in Phase]
    if phase.value not in phases:
        raise phase.wrong(f"one of {', '.join(phases)}")
    names = {field.name for field in fields(Position)} - {"phase", "eval_sets"}
    counts = {name: entry.at(name).count() for name in names}
    eval_sets = entry.find("eval_sets")
    return Position(
        Phase(phase.text()), **counts, eval_sets=() if eval_sets is None else tuple(eval_sets.all(Entry.text))
    )


def _extension(entry: Entry) -> Extension:
    return Extension(read_position(entry.at("position")), entry.at("number_in_history").count())


def _by_optimizer(entry: Entry, read: Callable[[Entry], _T]) -> dict[str, _T]:
    """What is saved by the name of an optimizer, without the name if it is the only one."""
    return entry.each(read) if isinstance(entry.value, dict) else {OPTIMIZER: read(entry)}


def _nominal_items(entry: Entry) -> float | None:
    if entry.value is not None and entry.number() <= 0:
        raise entry.wrong("a number above 0, or nothing")
    return cast("float | None", entry.value)


def _groups(entry: Entry) -> list[dict[str, Any]]:
    return entry.all(_group)


def _group(entry: Entry) -> dict[str, Any]:
    _optional(entry.find("lr"), Entry.number)
    return entry.each(_setting_of_group)


def _setting_of_group(entry: Entry) -> Any:
    return tuple(entry.all(_setting_of_group)) if isinstance(entry.value, tuple) else _plain(entry)


def _plain(entry: Entry) -> Any:
    return entry.one_of(bool, int, float, str, type(None))


def _process(entry: Entry) -> SavedProcess:
    step_means = entry.find("step_means")
    return SavedProcess(
        rng_state=_rng_state(entry.at("streams")),
        losses=_losses(entry.at("losses")),
        step_means={} if step_means is None else step_means.each(_total_and_count),
        loaders=entry.at("loaders").each(_loader),
    )


def _rng_state(entry: Entry) -> dict[str, Any]:
    state = entry.mapping()
    try:
        check_rng_state(state)
    except ValueError as error:
        raise entry.wrong("the state of the generators of Python, NumPy and torch", f"a state with {error}") from error
    return state


def _losses(entry: Entry) -> Tensor:
    totals = entry.tensor()
    if totals.shape != (2,) or not totals.is_floating_point() or not torch.isfinite(totals[1]) or totals[1] < 0:
        raise entry.wrong("a total and a number of samples")
    return totals


def _total_and_count(entry: Entry) -> tuple[float, int]:
    values = entry.all(Entry.anything)
    total, count = values if len(values) == 2 else (None, None)  # noqa: PLR2004 - a pair
    if not isinstance(total, float | int) or not isinstance(count, int) or count < 0:
        raise entry.wrong("a total and a number of samples")
    return float(total), count


def _loader(entry: Entry) -> dict[str, Any] | None:
    if entry.value is None:
        return None
    _between_epochs(entry)
    start = entry.find("epoch_start")
    if start is not None and start.value is not None:
        _between_epochs(start)
        _rng_state(start.at("streams"))
    return entry.mapping()


def _between_epochs(entry: Entry) -> None:
    entry.at("generators").mapping()
    entry.at("has_workers").flag()
