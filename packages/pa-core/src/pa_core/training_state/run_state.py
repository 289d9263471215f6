"""The content of a training state: capturing, reading and restoring the parts of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_checkpoint import StoredTensor, load
from pa_checkpoint.torch_states import SavedModel, TransactionalLoad, does_not_fit, incompatibility, refusals_explained
from pa_core import distributed
from pa_core._tensors import (
    is_sharded_module,
    named_parameters,
    names_by_group,
    parameters_beside,
    supports_state_dict,
)
from pa_core.data.custom_loader import count_steps
from pa_core.errors import CheckpointError, StopTrainingError
from pa_core.tracking import ExactLossTracker
from pa_core.training_state.model_state import (
    SavedOptimizer,
    added_groups,
    apply_hyperparameters,
    require_same_models,
    require_same_optimizers,
    restore_parameters_beside_the_model,
)
from pa_core.training_state.own_buffers import restore_own_buffers
from pa_core.training_state.progress import Phase, Position, Progress
from pa_core.training_state.run_settings import Difference, compare_settings, reject_differences
from pa_core.training_state.script_state import restore_script_state, shown_places
from pa_core.training_state.snapshotable import LOSS_FUNC, ResumableRun, modules_of
from pa_core.types import StatefulScheduler, SupportsStateDict
from pa_core.user_warnings import warn_user
from pa_data.orders import Shuffled
from pa_data.rng import restore_rng_state, seed_rng
from pa_data.script_state import ScriptState

_RecordT = TypeVar("_RecordT", SavedModel, SavedOptimizer, "SavedProcess")

OPTIMIZER = "optimizer"
"""The name of the only optimizer of a run, which entries by optimizer omit."""


class Extension(NamedTuple):
    """The position at which a run continues if more training is requested.

    Attributes:
        position: The position.
        number_in_history: The number of its epoch in the run history.
    """

    position: Position
    number_in_history: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**self._asdict(), "position": self.position.to_dict()}


class SavedProcess(NamedTuple):
    """The parts of a state that differ between processes.

    Attributes:
        streams: The result of ``capture_rng_state``.
        losses: The totals of the losses of the epoch.
        loaders: The states of custom data loaders, by their purpose.
        step_means: The totals of logged values, by name.
        script: The state of the script's objects, by place; None in states of earlier versions.
        buffers: The buffers that differ from the first process, by place.
    """

    streams: dict[str, Any]
    losses: Tensor
    loaders: Mapping[str, Mapping[str, Any] | None]
    step_means: Mapping[str, Sequence[float]] = MappingProxyType({})
    script: Mapping[str, Any] | None = None
    buffers: Mapping[str, Tensor | StoredTensor] = MappingProxyType({})


def by_optimizer(saved: Any) -> dict[str, Any]:
    """Return saved values by the name of the optimizer, which is omitted if there is a single optimizer.

    Example:
        >>> by_optimizer(32.0)
        {'optimizer': 32.0}
    """
    return cast("dict[str, Any]", saved) if isinstance(saved, dict) else {OPTIMIZER: saved}


def find_extension(run: ResumableRun, position: Position, progress: Progress) -> Extension | None:
    """Return the position at which a run that ended mid-epoch continues; None if it continues at its current position.

    Args:
        run: The run.
        position: The position of the run.
        progress: The counters of the run.

    Example:
        >>> from types import SimpleNamespace
        >>> run = SimpleNamespace(
        ...     train_dataloader=range(10),
        ...     run_history=SimpleNamespace(current_epoch=3),
        ...     run_config=SimpleNamespace(max_num_train_steps=12),
        ... )
        >>> ended = Position(Phase.COMPLETE, epochs=2, updates=12)
        >>> progress = Progress(updates=12, epochs=2, samples_in_epoch=16, steps_in_epoch=2)
        >>> find_extension(run, ended, progress).position
        Position(phase=<Phase.STEP: 'step'>, epochs=1, updates=12, samples=16, steps=2, eval_sets=())
    """
    num_steps, number_in_history = count_steps(run.train_dataloader), run.run_history.current_epoch
    samples, steps = progress.samples_in_epoch, progress.steps_in_epoch
    is_unfinished = steps > 0 and (num_steps is None or steps < num_steps)
    mid_epoch = position._replace(phase=Phase.STEP, samples=samples, steps=steps, eval_sets=())
    if progress.epoch_under_way is None:
        is_at_last_update = progress.updates == run.run_config.max_num_train_steps
        if position.phase.is_mid_epoch or not (is_at_last_update and is_unfinished):
            return None
        return Extension(mid_epoch._replace(epochs=position.epochs - 1), number_in_history - 1)
    # It was stopped or preempted at a step or an event of an epoch.
    if is_unfinished and position.phase in (Phase.COMPLETE, Phase.EVALUATION):
        return Extension(mid_epoch, number_in_history)
    if position.phase is not Phase.COMPLETE:
        return None
    if position.epochs > progress.epoch_under_way:
        return Extension(position._replace(phase=Phase.EPOCH), number_in_history + 1)
    phase = Phase.EVALUATION if steps else Phase.EPOCH
    return Extension(position._replace(phase=phase), number_in_history)


_SCHEDULER = "scheduler"


def capture(
    run: ResumableRun, objects: Sequence[SupportsStateDict], scaler: SupportsStateDict | None, shares_buffers: bool
) -> dict[str, Any]:
    """Return the states of the objects of a run, by reference; every process must call this.

    Args:
        run: The run.
        objects: The registered objects.
        scaler: The fp16 gradient scaler.
        shares_buffers: Whether all processes have the same buffers of the models: the buffers of the first process.
    """
    models = run.named_models()
    if shares_buffers:
        for model in models.values():
            distributed.broadcast_buffers(model)
    captured = {name: SavedModel.of(module)._asdict() for name, module in modules_of(run).items()}
    parameters = named_parameters(models)  # the state dicts have resharded the parameters
    callbacks = stateful_callbacks(run.callback_handler.callbacks)
    return {
        "models": captured,
        "optimizers": {
            name: _capture_optimizer(optimizer, parameters) for name, optimizer in run.named_optimizers().items()
        },
        "schedulers": {name: scheduler.state_dict() for name, scheduler in run.named_schedulers().items()},
        "scalers": {} if scaler is None else {"scaler": scaler.state_dict()},
        "history": run.run_history.state_dict(),
        "callbacks": {name: callback.state_dict() for name, callback in callbacks.items()},
        "objects": [{"class": _name(registered), "state": registered.state_dict()} for registered in objects],
    }


def _capture_optimizer(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "state": optimizer.state_dict(),
        "parameters": names_by_group(optimizer, parameters),
        "parameters_beside_the_model": [parameter.detach() for parameter in parameters_beside(optimizer, parameters)],
    }


def pack_by_optimizer(saved: Mapping[str, Any]) -> Any:
    """Return values by the name of the optimizer, without the name if there is a single optimizer."""
    return saved[OPTIMIZER] if [*saved] == [OPTIMIZER] else dict(saved)


class SavedRun:
    """A saved run, which other processes can resume.

    Args:
        path: The training state.
        in_shares: Whether all processes read it now, and each verifies its share of the pieces.

    Raises:
        CheckpointError: The state is damaged, or has entries that a run does not save.
    """

    def __init__(self, path: Path, *, in_shares: bool) -> None:
        state = load(path, lazy=True, in_shares=in_shares)
        self.path: Path = state.path
        self.digest: str = state.digest
        self.name: str = str(state.summary["run"])
        self.is_extended: bool = False
        self._registered: Sequence[SupportsStateDict] = ()
        self._begins_anew: Collection[str] = ()
        try:
            self._read(state.parts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "The training state has a format that this version of pa-core does not read.",
                given=f"{state.path}/state.json: {type(error).__name__}: {error}",
                do="Use another state, for example the previous, or the version of pa-core that saved this state.",
            ) from error

    def _read(self, parts: Mapping[str, Any]) -> None:
        run = parts["run"]
        self.position: Position = Position.from_dict(run["position"])
        self.seed: int = run["seed"]
        self.algorithm: str | None = run["algorithm"]
        if self.algorithm is not None:
            Shuffled(self.algorithm).epoch_order(0, seed=0, epoch=0)  # raises an error for an unknown algorithm
        self.settings: Mapping[str, Any] = run["settings"]
        self.reference_items: Mapping[str, float | None] = by_optimizer(run["nominal_items"])
        self._hyperparameters: Mapping[str, list[dict[str, Any]]] = by_optimizer(run["hyperparameters"])
        after = run.get("extension")
        self.extension: Extension | None = after and Extension(
            Position.from_dict(after["position"]), after["number_in_history"]
        )
        self._models = {name: _record(SavedModel, model) for name, model in parts["models"].items()}
        self._optimizers = {name: _record(SavedOptimizer, optimizer) for name, optimizer in parts["optimizers"].items()}
        self._ranks = [_record(SavedProcess, StoredTensor.resolve(process)) for process in parts["ranks"]]
        self._schedulers: dict[str, dict[str, Any]] = parts["schedulers"]
        self._scalers: dict[str, dict[str, Any]] = parts["scalers"]
        self._history: dict[str, Any] = parts["history"]
        self._callbacks: dict[str, Any] = parts["callbacks"]
        self._objects: list[dict[str, Any]] = parts["objects"]
        self.extras: dict[str, Any] = StoredTensor.resolve(parts["extras"])

    @property
    def current_epoch(self) -> int:
        """The number of the current epoch in the run history, or in the run if a history did not save its clock."""
        clock = self._history.get("clock")
        return self.position.epochs + 1 if clock is None else int(clock["epoch"])

    def extend(self, run: ResumableRun) -> None:
        """Continue with more epochs or updates than the saved run had; nothing changes if some were left.

        If only the number of updates has grown, a run whose epochs are all trained stays complete, because more updates
        are for a dataset that has grown.

        Args:
            run: The current run, whose history is restored.
        """
        if self.extension is not None:
            self.position, self.is_extended = self.extension.position, True
            run.run_history.clock.epoch = self.extension.number_in_history
        elif self.position.phase is Phase.COMPLETE and (
            not run.epoch_lengths.are_known or self.position.epochs < run.run_config.num_epochs
        ):
            self.position = self.position._replace(phase=Phase.EPOCH)

    def compare(self, settings: Mapping[str, Any], allowed: Collection[str]) -> list[Difference]:
        """Return the settings that differ from the saved run.

        Raises:
            CheckpointError: A difference changes the meaning of the run, and was not allowed.
        """
        differences = compare_settings(self.settings, settings)
        advice = {
            "samples_per_update": self._how_to_keep_the_updates(settings),
            "loader": "Only the trainer's own order can continue on different processes and with different batches.",
        }
        reject_differences(differences, allowed, advice)
        return differences

    def _how_to_keep_the_updates(self, settings: Mapping[str, Any]) -> str:
        total, processes = self.settings["samples_per_update"], settings["num_processes"]
        if isinstance(total, str) != isinstance(settings["samples_per_update"], str):
            return ""  # only one of the orders makes the batches
        steps, batch_size = settings["gradient_accumulation_steps"], settings["train_per_device_batch_size"]
        ways = {"per_device_batch_size": steps, "gradient_accumulation_steps": batch_size}
        if isinstance(total, str):  # an order that makes the batches, which are counted
            total = self.settings["num_processes"] * self.settings["gradient_accumulation_steps"]
            ways = {"gradient_accumulation_steps": 1}
        fitting = [f"{name}={total // processes // by}" for name, by in ways.items() if total % (processes * by) == 0]
        if not fitting and not isinstance(self.settings["samples_per_update"], str):
            return f"Pass samples_per_update={total}."
        return f"With num_processes={processes}, pass {' or '.join(fitting)}." if fitting else ""

    def restore(
        self,
        run: ResumableRun,
        *,
        hyperparameters: Mapping[str, Sequence[Mapping[str, Any]]],
        scaler: SupportsStateDict | None = None,
        objects: Sequence[SupportsStateDict] = (),
        allowed: Collection[str] = (),
    ) -> list[Difference]:
        """Restore models, optimizers, schedulers, scaler, history and registered objects.

        Args:
            run: The current run, with its objects.
            hyperparameters: The settings of each optimizer that the script chose, by name.
            scaler: The fp16 gradient scaler.
            objects: The registered objects.
            allowed: Names of ``RESUME_OVERRIDES``.

        Returns:
            The settings of the optimizers that differ from the saved run, and are used as requested.

        Raises:
            CheckpointError: The objects differ from the saved run, or an object rejects its state; nothing is restored.
        """
        before, self._registered, self._begins_anew = self._hyperparameters, objects, allowed
        with TransactionalLoad() as loading:
            self._restore_objects(objects, loading)
            loading.load(run.run_history, self._history, self._explain(run.run_history, "the run history"))
            self._restore_training(run, scaler, allowed, loading)
        schedulers, differences = run.named_schedulers(), list[Difference]()
        for name, optimizer in run.named_optimizers().items():
            if name in before:
                scheduler = schedulers.get(_scheduler_of(name))
                apply_hyperparameters(optimizer, scheduler, before[name], hyperparameters[name])
                differences += _compare_groups(name, before[name], hyperparameters[name])
        return differences

    def restore_training(self, run: ResumableRun, scaler: SupportsStateDict | None) -> None:
        """Restore models, optimizers, schedulers and scaler.

        Raises:
            CheckpointError: The objects differ from the saved run, or an object rejects its state; nothing is restored.
        """
        with TransactionalLoad() as loading:
            self._restore_training(run, scaler, (), loading)

    def _restore_training(
        self, run: ResumableRun, scaler: SupportsStateDict | None, allowed: Collection[str], loading: TransactionalLoad
    ) -> None:
        """Check all states, then restore: first objects that may raise an error, and last the weights, which cannot."""
        parameters = named_parameters(run.named_models())
        models, saved = {**run.named_models(), **self._saved_untrained(run)}, dict(self._models)
        loss_func = {LOSS_FUNC: run.loss_func} if isinstance(run.loss_func, nn.Module) and LOSS_FUNC in saved else {}
        saved_loss_func = {LOSS_FUNC: saved[LOSS_FUNC]} if loss_func else {}
        if LOSS_FUNC not in models:
            saved.pop(LOSS_FUNC, None)
        is_partial = "model" in allowed and _differ(models, saved)
        if not is_partial:
            require_same_models(models, saved)
        if "model" not in allowed:
            require_same_models(loss_func, saved_loss_func)
        optimizers = dict[str, Optimizer]()
        if not is_partial and "optimizer" not in allowed:
            optimizers.update(run.named_optimizers())
            require_same_optimizers(optimizers, parameters, self._optimizers)
        schedulers = {} if "scheduler" in allowed else self._fitting_schedulers(run)
        if scaler is not None and "scaler" in self._scalers:
            loading.load(scaler, self._scalers["scaler"], self._explain(scaler, "the gradient scaler"))
        for name, optimizer in optimizers.items():
            of_it, explain = self._optimizers[name], self._explain(optimizer, f"the optimizer {name}")
            loading.load_optimizer(optimizer, of_it.state, explain, added_groups(optimizer, parameters, of_it))
        for name, scheduler in schedulers.items():  # now the optimizer has the saved groups
            loading.load(scheduler, self._schedulers[name], self._explain(scheduler, f"the scheduler {name}"))
        loading.load_models({**models, **loss_func}, {**saved, **saved_loss_func})
        for name, optimizer in optimizers.items():
            restore_parameters_beside_the_model(optimizer, parameters, self._optimizers[name])
        self._restore_own_buffers(run)

    def _restore_own_buffers(self, run: ResumableRun) -> None:
        if self._is_split_as_before():
            restore_own_buffers(run, self._ranks[distributed.rank()].buffers)
            return
        differing = dict.fromkeys(place for process in self._ranks for place in process.buffers)
        if differing and distributed.rank() == 0:
            warn_user(
                f"{shown_places([*differing])} differed between the processes that saved {self.path}. This run has "
                "other processes: all of them continue with the values of the first process."
            )

    def _saved_untrained(self, run: ResumableRun) -> dict[str, nn.Module]:
        """Return the saved modules without an optimizer; states of earlier versions do not have them."""
        untrained = run.untrained_modules()
        missing = [name for name in untrained if name not in self._models]
        if missing:
            warn_user(
                f"{self.path} has no weights of {', '.join(missing)}, which no optimizer trains: an earlier version "
                "saved it. They keep the weights of the script."
            )
        return {name: module for name, module in untrained.items() if name not in missing}

    def _fitting_schedulers(self, run: ResumableRun) -> dict[str, StatefulScheduler]:
        """Return the schedulers of the run with a saved state, by name; a state that does not fit is an error."""
        schedulers = {name: scheduler for name, scheduler in run.named_schedulers().items() if name in self._schedulers}
        for name, scheduler in schedulers.items():
            if found := incompatibility(scheduler, self._schedulers[name]):
                do = 'Use another state, or begin a new schedule: resume_allow=("scheduler",).'
                raise does_not_fit(scheduler, f"{self.path}, with schedulers.{name}", do, found)
        return schedulers

    def _explain(self, target: object, what: str) -> Callable[[str], CheckpointError]:
        return partial(does_not_fit, target, f"{self.path}, with a state of {what}", "")

    def restore_callbacks(self, run: ResumableRun) -> None:
        """Restore the states of callbacks; warn about callbacks without a state, and states without a callback."""
        saved, is_sharded_run = dict(self._callbacks), any(map(is_sharded_module, run.named_models().values()))
        named = stateful_callbacks(run.callback_handler.callbacks)
        for name, callback in named.items():
            if name in saved:
                with refusals_explained(self._explain(callback, f"the callback {name}"), passing=(StopTrainingError,)):
                    own = callback.state_dict() if is_sharded_run else None
                    callback.load_state_dict(StoredTensor.resolve(saved.pop(name), own))
            else:
                warn_user(f"The callback {name} has no state in {self.path}, and starts over.")
        for name in saved:
            warn_user(f"The state of the callback {name} in {self.path} is ignored: the run has no such callback.")

    def restore_script_state(self, run: ResumableRun) -> None:
        """Restore the state of the script's objects, and warn about values without a place in this run.

        On a different number of processes, the values that were equal on all of them are restored.
        """
        of_each = [dict(process.script or {}) for process in self._ranks]
        stored = of_each[distributed.rank()] if self._is_split_as_before() else ScriptState.same_on_all(of_each)
        lost = [
            place for place in dict.fromkeys(place for values in of_each for place in values) if place not in stored
        ]
        wanted = {place: value for place, value in stored.items() if not place.startswith(tuple(self._begins_anew))}
        lost += restore_script_state(run, self._registered, StoredTensor.resolve(wanted))
        if lost and distributed.rank() == 0:
            warn_user(
                f"{shown_places(lost)} in {self.path} cannot be restored, and starts again: this run has no such "
                "place, or other processes."
            )

    def restore_rng_state(self, run: ResumableRun) -> None:
        """Restore the RNG state of this process; seed a new state if the number of processes has changed."""
        rank = distributed.rank()
        if self._is_split_as_before():
            restore_rng_state(self._ranks[rank].streams, run.device)
        else:
            seed_rng(0, self.seed, self.position.updates, rank, device=run.device)

    def restore_losses(self, run: ResumableRun) -> None:
        """Restore the means of the epoch: each process restores its own, or the first process restores all of them."""
        rank = distributed.rank()
        own = [self._ranks[rank]] if self._is_split_as_before() else self._ranks if rank == 0 else []
        home = "cpu" if isinstance(run.loss_tracker, ExactLossTracker) else run.device  # not every device has doubles
        if own:
            run.loss_tracker.load_totals(torch.stack([process.losses for process in own]).sum(0).to(home))
        run.step_means.load_totals([process.step_means for process in own])

    def state_of_loader(self, name: str, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the saved state of a loader of this process; None if there is none, or it cannot be used.

        Args:
            name: The purpose of the loader.
            settings: The settings of the current run.
        """
        if not self._is_split_as_before() or settings["loader"] != self.settings["loader"]:
            return None
        return self._ranks[distributed.rank()].loaders.get(name)

    def steps_in_epoch(self, settings: Mapping[str, Any]) -> int:
        """Return the number of batches of each process that were trained on, in batches of the current run.

        Args:
            settings: The settings of the current run.
        """
        if settings["loader"] != "keyed" and settings["loader"] == self.settings["loader"]:
            return self.position.steps
        global_batch: int = settings["train_per_device_batch_size"] * settings["num_processes"]
        return math.ceil(self.position.samples / global_batch)

    def _is_split_as_before(self) -> bool:
        return len(self._ranks) == distributed.num_processes()

    def _restore_objects(self, objects: Sequence[SupportsStateDict], loading: TransactionalLoad) -> None:
        given, expected = (
            [_name(registered) for registered in objects],
            [registered["class"] for registered in self._objects],
        )
        if given != expected:
            raise CheckpointError(
                "Other objects are registered than when the state was saved.",
                given=", ".join(given) or "none",
                expected=", ".join(expected) or "none",
                do="Call register_for_checkpointing with the same kinds of objects in the same order.",
            )
        for registered, saved in zip(objects, self._objects, strict=True):
            loading.load(registered, saved["state"], self._explain(registered, "a registered object"))


def _record(kind: type[_RecordT], values: Mapping[str, Any]) -> _RecordT:
    """Create a record from saved values, without entries of other versions."""
    return kind(**{name: values[name] for name in kind._fields if name in values})


def _scheduler_of(optimizer: str) -> str:
    return _SCHEDULER if optimizer == OPTIMIZER else optimizer


def _differ(models: Mapping[str, nn.Module], saved: Mapping[str, SavedModel]) -> bool:
    return models.keys() != saved.keys() or any(
        incompatibility(model, saved[name].weights) for name, model in models.items()
    )


def _compare_groups(
    name: str, before: Sequence[Mapping[str, Any]], requested: Sequence[Mapping[str, Any]]
) -> list[Difference]:
    prefix = "" if name == OPTIMIZER else f"{name}, "
    return [
        difference
        for index, (old, new) in enumerate(zip(before, requested, strict=False))
        for difference in compare_settings(
            {f"{prefix}group {index}: {setting}": value for setting, value in old.items() if setting in new},
            {f"{prefix}group {index}: {setting}": value for setting, value in new.items() if setting in old},
        )
    ]


def stateful_callbacks(callbacks: Iterable[object]) -> dict[str, SupportsStateDict]:
    """Return the callbacks with a state by their names in it: their classes, with numbers for equal names.

    Args:
        callbacks: All callbacks, in their order.
    """
    named = dict[str, SupportsStateDict]()
    numbers = Counter[str]()
    for callback in filter(supports_state_dict, callbacks):
        numbers[_name(callback)] += 1
        number = numbers[_name(callback)]
        named[_name(callback) if number == 1 else f"{_name(callback)} #{number}"] = callback
    return named


def _name(value: object) -> str:
    instance_name: str = getattr(value, "instance_name", "")
    suffix = f"[{instance_name}]" if instance_name else ""
    return f"{type(value).__module__}.{type(value).__qualname__}{suffix}"
