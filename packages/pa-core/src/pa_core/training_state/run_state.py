"""What a training state holds of a run: captured, read back and restored."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_checkpoint import StoredTensor
from pa_core import distributed
from pa_core.errors import CheckpointError
from pa_core.incompatible_state import misfit_of_scheduler, without_foreign_entries
from pa_core.model_tensors import is_sharded_module, supports_state_dict
from pa_core.progress import Phase, Position, Progress
from pa_core.storage import State
from pa_core.training_state.load_with_rollback import refusals_explained, taken_over
from pa_core.training_state.model_state import (
    SavedModel,
    SavedOptimizer,
    apply_hyperparameters,
    capture_model,
    capture_optimizer,
    model_differs,
    named_parameters,
    require_same_models,
    require_same_optimizers,
    restore_models,
    restore_optimizer,
    restore_parameters_beside_the_model,
)
from pa_core.training_state.records import read_record
from pa_core.training_state.run_settings import (
    Difference,
    compare_settings,
    refuse_differences,
)
from pa_core.training_state.snapshotable import ResumableRun, Snapshotable
from pa_core.types import StatefulScheduler, SupportsStateDict
from pa_core.user_warnings import warn_user
from pa_data.orders import epoch_order
from pa_data.rng import capture_rng_state, preserve_rng_state, restore_rng_state, seed_rng_of_rank

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


_LOSS_FUNC, _SCHEDULER = "loss_func", "scheduler"


@dataclass(frozen=True)
class RunState(SavedSettings):
    """What a training state holds besides the objects of the run.

    Attributes:
        loaders: What is saved of the custom data loaders of this process, by what they are for.
        scaler: The gradient scaler of fp16.
        objects: What was registered to be saved with the run.
        rng_state: The RNG state to save; None for the current one.
    """

    loaders: Mapping[str, Any] = field(default_factory=dict[str, Any])
    scaler: SupportsStateDict | None = None
    objects: Sequence[SupportsStateDict] = ()
    rng_state: Mapping[str, Any] | None = None


def capture(run: Snapshotable, state: RunState) -> dict[str, Any]:
    """Return all parts of a training state, by reference; every process must call this.

    Args:
        run: The run, with its objects.
        state: What it holds besides them.
    """
    models = run.named_models()
    for model in models.values():
        distributed.broadcast_buffers(model)
    captured = {name: capture_model(model) for name, model in models.items()}
    extension = state.extension
    parameters = named_parameters(models)  # the state dicts have split again what fully_shard had put together
    if isinstance(run.loss_func, nn.Module):
        captured[_LOSS_FUNC] = capture_model(run.loss_func)
    return {
        "models": captured,
        "optimizers": {name: capture_optimizer(one, parameters) for name, one in run.named_optimizers().items()},
        "schedulers": {name: one.state_dict() for name, one in run.named_schedulers().items()},
        "scalers": {} if state.scaler is None else {"scaler": state.scaler.state_dict()},
        "history": run.run_history.state_dict(),
        "callbacks": {_name(one): one.state_dict() for one in _stateful(run.callback_handler.callbacks)},
        "objects": [{"class": _name(one), "state": one.state_dict()} for one in state.objects],
        "run": {
            "position": state.position.to_dict(),
            "seed": state.seed,
            "algorithm": state.algorithm,
            "settings": dict(state.settings),
            "hyperparameters": _pack(state.hyperparameters),
            "nominal_items": _pack(state.nominal_items),
            "extension": None if extension is None else {**asdict(extension), "position": extension.position.to_dict()},
        },
        "ranks": distributed.gather_objects(
            {
                "streams": state.rng_state or capture_rng_state(run.device),
                "losses": run.loss_tracker.totals().cpu(),
                "step_means": run.step_means.totals(),
                "loaders": dict(state.loaders),
            }
        ),
    }


def _pack(saved: Any) -> Any:
    """Leave out the name of an optimizer that is the only one."""
    return saved[OPTIMIZER] if [*saved] == [OPTIMIZER] else dict(saved)


class SavedRun:
    """A saved run, to be resumed in other processes.

    Args:
        state: The training state, whole and verified.

    Raises:
        CheckpointError: Something in it is not what a run saves.
    """

    def __init__(self, state: State) -> None:
        self._parts = read_parts(state)
        run = self._parts.run
        self.path: Path = state.path
        self.digest: str = state.digest
        self.name: str = str(state.summary["run"])
        self.position: Position = run.position
        self.seed: int = run.seed
        self.algorithm: str | None = run.algorithm
        self.settings: Mapping[str, Any] = run.settings
        self.nominal_items: Mapping[str, float | None] = by_optimizer(run.nominal_items)
        self.extension: Extension | None = run.extension
        self.is_extended: bool = False
        self.extras: dict[str, Any] = StoredTensor.resolve(self._parts.extras)

    @property
    def current_epoch(self) -> int:
        """The number of the current epoch in the run history, or in the run where a history saved no clock."""
        clock = self._parts.history.get("clock")
        return self.position.epochs + 1 if clock is None else int(clock["epoch"])

    def extend(self, run: ResumableRun) -> None:
        """Continue with more epochs or updates than the saved run had; no change where some were left.

        More updates alone leave a run complete whose epochs are all trained: they are for a dataset that has grown.

        Args:
            run: The current run, whose history is restored.
        """
        if self.extension is not None:
            self.position, self.is_extended = self.extension.position, True
            run.run_history.clock.epoch = self.extension.number_in_history
        elif self.position.phase is Phase.COMPLETE and (
            not run.epoch_lengths.are_known or self.position.epochs < run.run_config.num_epochs
        ):
            self.position = replace(self.position, phase=Phase.EPOCH)

    def compare(self, settings: Mapping[str, Any], allowed: Collection[str]) -> list[Difference]:
        """Return the settings that differ from the saved run.

        Raises:
            CheckpointError: One of them changes what the run means, and was not allowed.
        """
        differences = compare_settings(self.settings, settings)
        advice = {
            "samples_per_update": self._how_to_keep_the_updates(settings),
            "loader": "Only the trainer's own order can continue with other processes and other batches.",
        }
        refuse_differences(differences, allowed, advice)
        return differences

    def _how_to_keep_the_updates(self, settings: Mapping[str, Any]) -> str:
        samples, processes = self.settings["samples_per_update"], settings["num_processes"]
        if isinstance(samples, str) != isinstance(settings["samples_per_update"], str):
            return ""  # an order that makes the batches, and one that does not
        if isinstance(samples, str):
            return self._how_to_keep_the_batches(processes)
        steps, batch_size = settings["gradient_accumulation_steps"], settings["train_per_device_batch_size"]
        ways: list[str] = []
        if samples % (processes * steps) == 0:
            ways.append(f"per_device_batch_size={samples // (processes * steps)}")
        if samples % (processes * batch_size) == 0:
            ways.append(f"gradient_accumulation_steps={samples // (processes * batch_size)}")
        if not ways:
            return f"{samples} samples cannot be shared by {processes} processes and {steps} batches each."
        return f"{_with(processes)}, pass {' or '.join(ways)}."

    def _how_to_keep_the_batches(self, processes: int) -> str:
        batches: int = self.settings["num_processes"] * self.settings["gradient_accumulation_steps"]
        if batches % processes:
            return f"{batches} batches cannot be shared by {processes} processes."
        return f"{_with(processes)}, pass gradient_accumulation_steps={batches // processes}."

    def restore(
        self,
        run: Snapshotable,
        *,
        hyperparameters: Mapping[str, Sequence[Mapping[str, Any]]],
        scaler: SupportsStateDict | None = None,
        objects: Sequence[SupportsStateDict] = (),
        allowed: Collection[str] = (),
    ) -> list[Difference]:
        """Restore models, optimizers, schedulers, scaler, history and registered objects.

        Args:
            run: The current run, with its objects.
            hyperparameters: What it sets on each optimizer, by name.
            scaler: The gradient scaler of fp16.
            objects: What was registered to be saved with the run.
            allowed: Names of ``RESUME_OVERRIDES``.

        Returns:
            The settings of the optimizers that differ from the saved run, and are used as requested.

        Raises:
            CheckpointError: They differ from the saved run, or one of them rejects its state; nothing is restored.
        """
        before = by_optimizer(self._parts.run.hyperparameters)
        with ExitStack() as undo:
            self._restore_objects(objects, undo)
            self._take_over(run.run_history, self._parts.history, "the run history", undo)
            self._restore_training(run, scaler, allowed, undo)
        schedulers, differences = run.named_schedulers(), list[Difference]()
        for name, optimizer in run.named_optimizers().items():
            if name in before:
                scheduler = schedulers.get(_scheduler_of(name))
                apply_hyperparameters(optimizer, scheduler, before[name], hyperparameters[name])
                differences += _compare_groups(name, before[name], hyperparameters[name])
        return differences

    def restore_training(
        self, run: Snapshotable, scaler: SupportsStateDict | None, allowed: Collection[str] = ()
    ) -> None:
        """Restore models, optimizers, schedulers and scaler.

        Raises:
            CheckpointError: They differ from the saved run, or one of them rejects its state; nothing is restored.
        """
        with ExitStack() as undo:
            self._restore_training(run, scaler, allowed, undo)

    def _restore_training(
        self, run: Snapshotable, scaler: SupportsStateDict | None, allowed: Collection[str], undo: ExitStack
    ) -> None:
        """Check everything, then restore: first objects that may raise an error, and last the weights, which cannot."""
        models, saved_models = self._models(run)
        loss_func = {_LOSS_FUNC: run.loss_func} if isinstance(run.loss_func, nn.Module) else {}
        saved_loss_func = {name: self._parts.models[name] for name in loss_func if name in self._parts.models}
        is_partial = "model" in allowed and _differ(models, saved_models)
        if not is_partial:
            require_same_models(models, saved_models)
        if saved_loss_func and "model" not in allowed:
            require_same_models(loss_func, saved_loss_func)
        parameters, optimizers = named_parameters(models), dict[str, Optimizer]()
        if not is_partial and "optimizer" not in allowed:
            optimizers.update(run.named_optimizers())
            require_same_optimizers(optimizers, parameters, self._parts.optimizers)
        schedulers = {} if "scheduler" in allowed else self._fitting_schedulers(run)
        if scaler is not None and "scaler" in self._parts.scalers:
            self._take_over(scaler, self._parts.scalers["scaler"], "the gradient scaler", undo)
        for name, optimizer in optimizers.items():
            with refusals_explained(f"the optimizer {name}, {type(optimizer).__name__}", self.path):
                undo.enter_context(restore_optimizer(optimizer, parameters, self._parts.optimizers[name]))
        for name, scheduler in schedulers.items():  # now the optimizer has the groups that it was saved with
            state = without_foreign_entries(scheduler, self._parts.schedulers[name])
            self._take_over(scheduler, state, f"the scheduler {name}", undo)
        restore_models({**models, **loss_func}, {**saved_models, **saved_loss_func})
        for name, optimizer in optimizers.items():
            restore_parameters_beside_the_model(optimizer, parameters, self._parts.optimizers[name])

    def _models(self, run: Snapshotable) -> tuple[dict[str, nn.Module], dict[str, SavedModel]]:
        """The models of the run and what was saved of them, without a loss function."""
        models, saved = dict(run.named_models()), dict(self._parts.models)
        if _LOSS_FUNC not in models:
            saved.pop(_LOSS_FUNC, None)
        return models, saved

    def _fitting_schedulers(self, run: Snapshotable) -> dict[str, StatefulScheduler]:
        """The schedulers of the run of which there is a state, by name; an error if one cannot take it over."""
        saved = self._parts.schedulers
        schedulers = {name: one for name, one in run.named_schedulers().items() if name in saved}
        for name, scheduler in schedulers.items():
            misfit = misfit_of_scheduler(scheduler, saved[name])
            if misfit is not None:
                raise CheckpointError(
                    f"The training state holds what this {type(scheduler).__name__} cannot continue with; nothing was "
                    "loaded.",
                    given=f"{self.path}, with schedulers.{name}: {misfit}",
                    do='Use another state, or begin a new schedule: resume_allow=("scheduler",).',
                )
        return schedulers

    def _take_over(self, target: SupportsStateDict, state: Any, what: str, undo: ExitStack) -> None:
        undo.enter_context(taken_over(target, state, what, self.path))

    def restore_callbacks(self, run: Snapshotable) -> None:
        """Restore the states of callbacks; warn about callbacks without a state, and states without a callback."""
        saved, is_sharded_run = dict(self._parts.callbacks), any(map(is_sharded_module, run.named_models().values()))
        for callback in _stateful(run.callback_handler.callbacks):
            name = _name(callback)
            if name in saved:
                with refusals_explained(f"the callback {name}", self.path):
                    own = callback.state_dict() if is_sharded_run else None
                    callback.load_state_dict(StoredTensor.resolve(saved.pop(name), own))
            else:
                warn_user(f"The callback {name} has no state in {self.path}, and starts over.")
        for name in saved:
            warn_user(f"The state of the callback {name} in {self.path} is ignored: the run has no such callback.")

    def restore_rng_state(self, run: Snapshotable) -> None:
        """Restore the RNG state of this process; seed another where there were more or fewer processes."""
        rank = distributed.rank()
        if self._is_split_as_before():
            restore_rng_state(self._parts.ranks[rank].streams, run.device)
        else:
            seed_rng_of_rank(self.seed, self.position.updates, rank, run.device)

    def restore_losses(self, run: Snapshotable) -> None:
        """Restore the means of the epoch: each process its own, or the first one all of them."""
        rank = distributed.rank()
        losses = [one.losses for one in self._parts.ranks]
        if self._is_split_as_before():
            run.loss_tracker.load_totals(losses[rank].to(run.device))
        elif rank == 0:
            run.loss_tracker.load_totals(torch.stack(losses).sum(0).to(run.device))
        means = [one.step_means for one in self._parts.ranks]
        run.step_means.load_totals([means[rank]] if self._is_split_as_before() else means if rank == 0 else [])

    def state_of_loader(self, name: str, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what is saved of a loader of this process; None where there is nothing, or nothing that can be used.

        Args:
            name: What the loader is for.
            settings: The settings of the current run.
        """
        if not self._is_split_as_before() or settings["loader"] != self.settings["loader"]:
            return None
        return self._parts.ranks[distributed.rank()].loaders.get(name)

    def steps_in_epoch(self, settings: Mapping[str, Any]) -> int:
        """Return how many batches of each process were trained on, in batches of the current run.

        Args:
            settings: The settings of the current run.
        """
        if settings["loader"] != "keyed" and settings["loader"] == self.settings["loader"]:
            return self.position.steps
        global_batch: int = settings["train_per_device_batch_size"] * settings["num_processes"]
        return math.ceil(self.position.samples / global_batch)

    def _is_split_as_before(self) -> bool:
        return len(self._parts.ranks) == distributed.num_processes()

    def _restore_objects(self, objects: Sequence[SupportsStateDict], undo: ExitStack) -> None:
        given, expected = [_name(one) for one in objects], [one["class"] for one in self._parts.objects]
        if given != expected:
            raise CheckpointError(
                "Other objects are registered than when the state was saved.",
                given=", ".join(given) or "none",
                expected=", ".join(expected) or "none",
                do="Call register_for_checkpointing with the same kinds of objects in the same order.",
            )
        for one, saved in zip(objects, self._parts.objects, strict=True):
            self._take_over(one, saved["state"], "a registered object", undo)


def _with(processes: int) -> str:
    return f"With {processes} {'process' if processes == 1 else 'processes'}"


def _scheduler_of(optimizer: str) -> str:
    return _SCHEDULER if optimizer == OPTIMIZER else optimizer


def _differ(models: Mapping[str, nn.Module], saved: Mapping[str, SavedModel]) -> bool:
    return models.keys() != saved.keys() or any(model_differs(model, saved[name]) for name, model in models.items())


def _compare_groups(
    name: str, before: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]]
) -> list[Difference]:
    prefix = "" if name == OPTIMIZER else f"{name}, "
    return [
        one
        for index, (old, new) in enumerate(zip(before, asked, strict=False))
        for one in compare_settings(
            {f"{prefix}group {index}: {setting}": value for setting, value in old.items() if setting in new},
            {f"{prefix}group {index}: {setting}": value for setting, value in new.items() if setting in old},
        )
    ]


def _stateful(callbacks: Iterable[object]) -> list[SupportsStateDict]:
    return [one for one in callbacks if supports_state_dict(one)]


def _name(one: object) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"
