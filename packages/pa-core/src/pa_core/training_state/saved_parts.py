"""The parts of a saved run, read once into records, before anything takes them over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from torch import Tensor

from pa_checkpoint import StoredTensor
from pa_core.errors import CheckpointError
from pa_core.progress import Position
from pa_core.storage import State
from pa_core.training_state.extension import Extension
from pa_core.training_state.model_state import SavedModel
from pa_core.training_state.optimizer_state import SavedOptimizer
from pa_data.orders import epoch_order

__all__ = ["OPTIMIZER", "SavedParts", "SavedProcess", "SavedSettings", "read_parts"]

OPTIMIZER = "optimizer"
"""The name of the only optimizer of a run, which what is saved by optimizer does without."""


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

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Read what ``capture`` returned."""
        algorithm, extension = saved["algorithm"], saved.get("extension")
        if algorithm is not None:
            epoch_order(0, seed=0, epoch=0, algorithm=algorithm)  # raises an error for one that is not known
        return cls(
            position=Position.from_dict(saved["position"]),
            seed=saved["seed"],
            algorithm=algorithm,
            settings=saved["settings"],
            hyperparameters=_by_optimizer(saved["hyperparameters"]),
            nominal_items=_by_optimizer(saved["nominal_items"]),
            extension=None if extension is None else Extension.from_dict(extension),
        )


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

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Read what ``capture`` returned."""
        return cls(saved["streams"], saved["losses"], saved.get("step_means", {}), saved["loaders"])


@dataclass(frozen=True, slots=True)
class SavedParts:
    """Everything that a training state holds.

    Attributes:
        name: The name of the run.
        models: By name.
        optimizers: By name.
        schedulers: Their states, by name.
        scaler: The state of the gradient scaler of fp16, if there was one.
        history: The state of the run history.
        callbacks: The states of callbacks, by the names of their classes.
        objects: The classes and the states of the objects that were registered, in order.
        run: The requested settings of the run.
        processes: What differs between processes, in the order of the ranks.
        extras: Further entries of the script, with whole tensors.
    """

    name: str
    models: dict[str, SavedModel]
    optimizers: dict[str, SavedOptimizer]
    schedulers: dict[str, dict[str, Any]]
    scaler: dict[str, Any] | None
    history: dict[str, Any]
    callbacks: dict[str, Any]
    objects: list[tuple[str, Any]]
    run: SavedSettings
    processes: list[SavedProcess]
    extras: dict[str, Any]


def read_parts(state: State) -> SavedParts:
    """Return what a state holds.

    Args:
        state: The training state, whole and verified.

    Raises:
        CheckpointError: It is not what a run saves.
    """
    parts: Mapping[str, Any] = state.parts
    try:
        return SavedParts(
            name=str(state.summary["run"]),
            models={name: SavedModel.from_dict(one) for name, one in parts["models"].items()},
            optimizers={name: SavedOptimizer.from_dict(one) for name, one in parts["optimizers"].items()},
            schedulers=parts["schedulers"],
            scaler=parts["scalers"].get("scaler"),
            history=parts["history"],
            callbacks=parts["callbacks"],
            objects=[(one["class"], one["state"]) for one in parts["objects"]],
            run=SavedSettings.from_dict(parts["run"]),
            processes=[SavedProcess.from_dict(one) for one in parts["ranks"]],
            extras=StoredTensor.resolve(parts["extras"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "The training state has another form than this version of pa-core reads.",
            given=f"{state.path}/state.json: {type(error).__name__}: {error}",
            expected="what a run of this version or of an earlier one saved",
            do="Use another state, such as the one before it, or the version of pa-core that saved this one.",
        ) from error


def _by_optimizer(saved: Any) -> dict[str, Any]:
    """What is saved by the name of an optimizer, without the name if it is the only one."""
    return cast("dict[str, Any]", saved) if isinstance(saved, dict) else {OPTIMIZER: saved}
