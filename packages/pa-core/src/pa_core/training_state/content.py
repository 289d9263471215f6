"""What a training state holds: taken from a run, and given to one that goes on with it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_core import distributed
from pa_core.any_trainer import AnyTrainer
from pa_core.errors import CheckpointError
from pa_core.progress import Phase, Position
from pa_core.rng import capture_streams, restore_streams, start_streams
from pa_core.storage import State
from pa_core.tracking import RunHistory
from pa_core.training_state.extension import Extension
from pa_core.training_state.model_state import capture_model, differences_of_weights, restore_model
from pa_core.training_state.optimizer_state import (
    apply_hyperparameters,
    capture_optimizer,
    restore_optimizer,
)
from pa_core.training_state.settings import Difference, compare_settings, refuse_differences
from pa_core.types import SupportsStateDict

__all__ = ["Run", "SavedRun", "capture"]


@dataclass(frozen=True)
class Run:
    """What a run knows beside what its trainer shows.

    Attributes:
        position: Where it stands.
        seed: The number that the order of the data and the augmentation follow from.
        algorithm: The name of the order of the data; None where it is the user's own.
        settings: What it was asked for, as plain values.
        hyperparameters: What was asked of the optimizer when the run began.
        nominal_items: The nominal number of items of an update; None where samples are counted.
        loaders: What this process' loaders of the user's own hold, by what they are for.
        scaler: The gradient scaler of fp16.
        objects: What was registered to be saved too.
        streams: The random streams to save; None for those of this moment.
        extension: Where it goes on if more is asked of it; None where it goes on at its position.
    """

    position: Position
    seed: int
    algorithm: str | None
    settings: Mapping[str, Any]
    hyperparameters: Sequence[Mapping[str, Any]]
    nominal_items: float | None = None
    loaders: Mapping[str, Any] = field(default_factory=dict[str, Any])
    scaler: SupportsStateDict | None = None
    objects: Sequence[SupportsStateDict] = ()
    streams: Mapping[str, Any] | None = None
    extension: Extension | None = None


def capture(trainer: AnyTrainer, run: Run) -> dict[str, Any]:
    """Return all parts of a training state, by reference; every process must call this.

    Args:
        trainer: The trainer.
        run: What it does not show.
    """
    model = trainer.get_model(keep_torch_compile=False)
    distributed.broadcast_buffers(model)
    models = {"model": capture_model(model)}
    if isinstance(trainer.loss_func, nn.Module):
        models["loss_func"] = capture_model(trainer.loss_func)
    return {
        "models": models,
        "optimizers": {"optimizer": capture_optimizer(trainer.optimizer, model)},
        "schedulers": {} if trainer.scheduler is None else {"scheduler": trainer.scheduler.state_dict()},
        "scalers": {} if run.scaler is None else {"scaler": run.scaler.state_dict()},
        "history": trainer.run_history.state_dict(),
        "callbacks": {_name(one): one.state_dict() for one in _stateful(trainer.callback_handler.callbacks)},
        "objects": [{"class": _name(one), "state": one.state_dict()} for one in run.objects],
        "run": {
            "position": run.position.to_dict(),
            "seed": run.seed,
            "algorithm": run.algorithm,
            "settings": dict(run.settings),
            "hyperparameters": [dict(group) for group in run.hyperparameters],
            "nominal_items": run.nominal_items,
            "extension": None if run.extension is None else run.extension.to_dict(),
        },
        "ranks": distributed.gather_objects(
            {
                "streams": run.streams or capture_streams(trainer.device),
                "losses": trainer.loss_tracker.totals().cpu(),
                "step_means": trainer.step_means.totals(),
                "loaders": dict(run.loaders),
            }
        ),
    }


class SavedRun:
    """A run that was saved, and goes on in another process, or in other processes.

    Args:
        state: The training state, whole and verified.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._parts: Mapping[str, Any] = state.parts
        run: Mapping[str, Any] = self._parts["run"]
        self.path: Path = state.path
        self.name: str = str(state.summary["run"])
        self.position: Position = Position.from_dict(run["position"])
        self.seed: int = run["seed"]
        self.algorithm: str | None = run["algorithm"]
        self.settings: Mapping[str, Any] = run["settings"]
        self.nominal_items: float | None = run["nominal_items"]
        extension = run.get("extension")
        self.extension: Extension | None = None if extension is None else Extension.from_dict(extension)
        self.is_extended: bool = False
        self.extras: dict[str, Any] = self._parts["extras"]

    @property
    def was_complete(self) -> bool:
        """Whether the run had come to its end, early or not."""
        return bool(self._state.summary["complete"])

    def extend(self, history: RunHistory) -> None:
        """Go on with more epochs or updates than the saved run was asked for; no change where some were left.

        Args:
            history: The restored history of the run.
        """
        if self.extension is not None:
            self.position, self.is_extended = self.extension.position, True
            history.clock.epoch = self.extension.number_in_history
        elif self.position.phase is Phase.NOTHING:
            self.position = replace(self.position, phase=Phase.EPOCH)

    def compare(self, settings: Mapping[str, Any], allowed: Collection[str]) -> list[Difference]:
        """Return the settings that differ from those of the saved run.

        Raises:
            CheckpointError: One of them changes what the run means, and was not allowed.
        """
        differences = compare_settings(self.settings, settings)
        advice = {
            "samples_per_update": self._how_to_keep_the_updates(settings),
            "loader": "Only the trainer's own order goes on with other processes and other batches.",
        }
        refuse_differences(differences, allowed, advice)
        return differences

    def _how_to_keep_the_updates(self, settings: Mapping[str, Any]) -> str:
        samples, processes = self.settings["samples_per_update"], settings["num_processes"]
        steps, batch_size = settings["gradient_accumulation_steps"], settings["train_per_device_batch_size"]
        ways: list[str] = []
        if samples % (processes * steps) == 0:
            ways.append(f"per_device_batch_size={samples // (processes * steps)}")
        if samples % (processes * batch_size) == 0:
            ways.append(f"gradient_accumulation_steps={samples // (processes * batch_size)}")
        if not ways:
            return f"{samples} samples cannot be shared by {processes} processes and {steps} batches each."
        return f"With {processes} processes, pass {' or '.join(ways)}."

    def restore(self, trainer: AnyTrainer, run: Run, allowed: Collection[str]) -> list[Difference]:
        """Put model, optimizer, scheduler, scaler, history and registered objects back.

        Returns:
            The settings of the optimizer that differ from those of the saved run, and are those that were asked for.

        Raises:
            CheckpointError: They are not those of the saved run.
        """
        self.restore_training(trainer, run.scaler, allowed)
        before = self._parts["run"]["hyperparameters"]
        apply_hyperparameters(trainer.optimizer, trainer.scheduler, before, run.hyperparameters)
        trainer.run_history.load_state_dict(self._parts["history"])
        self._restore_objects(run.objects)
        return [
            one
            for index, (old, new) in enumerate(zip(before, run.hyperparameters, strict=False))
            for one in compare_settings(
                {f"group {index}: {name}": value for name, value in old.items() if name in new},
                {f"group {index}: {name}": value for name, value in new.items() if name in old},
            )
        ]

    def restore_training(
        self, trainer: AnyTrainer, scaler: SupportsStateDict | None, allowed: Collection[str] = ()
    ) -> None:
        """Put model, optimizer, scheduler and scaler back.

        Raises:
            CheckpointError: They are not those of the saved run.
        """
        model, models = trainer.get_model(keep_torch_compile=False), self._parts["models"]
        is_partial = "model" in allowed and bool(differences_of_weights(model, models["model"]["weights"]))
        restore_model(model, models["model"], partly=is_partial)
        if isinstance(trainer.loss_func, nn.Module) and "loss_func" in models:
            restore_model(trainer.loss_func, models["loss_func"], partly="model" in allowed)
        if not is_partial and "optimizer" not in allowed:
            restore_optimizer(trainer.optimizer, model, self._parts["optimizers"]["optimizer"])
        scheduler = self._parts["schedulers"].get("scheduler")
        if trainer.scheduler is not None and scheduler is not None and "scheduler" not in allowed:
            trainer.scheduler.load_state_dict(scheduler)
        if scaler is not None and "scaler" in self._parts["scalers"]:
            scaler.load_state_dict(self._parts["scalers"]["scaler"])

    def restore_callbacks(self, trainer: AnyTrainer) -> None:
        """Give each callback the state that it had; warn of those that have none, and of states without a callback."""
        saved = dict(self._parts["callbacks"])
        for callback in _stateful(trainer.callback_handler.callbacks):
            name = _name(callback)
            if name in saved:
                callback.load_state_dict(saved.pop(name))
            else:
                _warn(f"The callback {name} has no state in {self._state.path}, and begins anew.")
        for name in saved:
            _warn(f"The state of the callback {name} in {self._state.path} is left out: the run has no such callback.")

    def restore_streams(self, trainer: AnyTrainer) -> None:
        """Put the random streams of this process back; begin others where there were more or fewer processes."""
        rank = distributed.rank()
        if self._is_split_as_before():
            restore_streams(self._parts["ranks"][rank]["streams"], trainer.device)
        else:
            start_streams(self.seed, self.position.updates, rank, trainer.device)

    def restore_losses(self, trainer: AnyTrainer) -> None:
        """Go on with the means of the epoch: each process with its own, or the first one with all of them."""
        rank, ranks = distributed.rank(), self._parts["ranks"]
        losses: list[Tensor] = [one["losses"] for one in ranks]
        if self._is_split_as_before():
            trainer.loss_tracker.load_totals(losses[rank].to(trainer.device))
        elif rank == 0:
            trainer.loss_tracker.load_totals(torch.stack(losses).sum(0).to(trainer.device))
        means = [one.get("step_means", {}) for one in ranks]
        trainer.step_means.load_totals([means[rank]] if self._is_split_as_before() else means if rank == 0 else [])

    def state_of_loader(self, name: str, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what a loader of this process held; None where there was none, or where it cannot be taken over.

        Args:
            name: What the loader is for.
            settings: Those of the run that goes on.
        """
        if not self._is_split_as_before() or settings["loader"] != self.settings["loader"]:
            return None
        loaders: Mapping[str, Any] = self._parts["ranks"][distributed.rank()]["loaders"]
        return loaders.get(name)

    def steps_in_epoch(self, settings: Mapping[str, Any]) -> int:
        """Return the number of batches of each process that were trained on, in those of the run that goes on.

        Args:
            settings: Those of the run that goes on.
        """
        if settings["loader"] != "keyed" and settings["loader"] == self.settings["loader"]:
            return self.position.steps
        global_batch: int = settings["train_per_device_batch_size"] * settings["num_processes"]
        return math.ceil(self.position.samples / global_batch)

    def _is_split_as_before(self) -> bool:
        return len(self._parts["ranks"]) == distributed.num_processes()

    def _restore_objects(self, objects: Sequence[SupportsStateDict]) -> None:
        saved = cast("list[Mapping[str, Any]]", self._parts["objects"])
        given, expected = [_name(one) for one in objects], [one["class"] for one in saved]
        if given != expected:
            raise CheckpointError(
                "Other objects are registered than when the state was saved.",
                given=", ".join(given) or "none",
                expected=", ".join(expected) or "none",
                do="Call register_for_checkpointing with the same kinds of objects in the same order.",
            )
        for one, entry in zip(objects, saved, strict=True):
            one.load_state_dict(entry["state"])


def _stateful(callbacks: Iterable[object]) -> list[SupportsStateDict]:
    methods = ("state_dict", "load_state_dict")
    return [
        cast("SupportsStateDict", one)
        for one in callbacks
        if all(callable(getattr(one, name, None)) for name in methods)
    ]


def _name(one: object) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=2)
