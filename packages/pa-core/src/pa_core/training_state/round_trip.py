"""Checks in memory, before training, that what a run saves can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from pa_checkpoint import Writer
from pa_core.errors import CheckpointError
from pa_core.state_dicts import missing_methods

__all__ = ["check_scheduler", "check_state_of_optimizer", "check_storable"]


def check_storable(parts: Mapping[str, Any], optimizers: Mapping[str, Optimizer]) -> None:
    """Raise an error for anything that could not be stored.

    Args:
        parts: What ``capture`` returned.
        optimizers: The optimizers by name, for the message.

    Raises:
        CheckpointError: Something in the parts is neither a tensor nor plain.
    """
    for name, part in parts.items():
        if name == "optimizers":
            for one, captured in part.items():
                _check_optimizer(optimizers[one], captured["state"])
        else:
            Writer.check({name: part})


def check_scheduler(scheduler: object) -> None:
    """Raise an error for a scheduler that has no state to save, or none that could be loaded.

    Raises:
        CheckpointError: It lacks ``state_dict`` or ``load_state_dict``.
    """
    lacking = missing_methods(scheduler)
    if lacking:
        raise CheckpointError(
            "The scheduler cannot be part of a training state.",
            given=f"{type(scheduler).__name__} without {' and '.join(lacking)}",
            expected="a scheduler with state_dict() and load_state_dict()",
            do=f"Give {type(scheduler).__name__} these methods.",
        )


def check_state_of_optimizer(optimizer: Optimizer) -> None:
    """Raise an error for an optimizer whose present state could not be stored.

    Args:
        optimizer: An optimizer that has made an update: most make their state with the first one.

    Raises:
        CheckpointError: Something in the state is neither a tensor nor plain.
    """
    _check_optimizer(optimizer, optimizer.state_dict())


def _check_optimizer(optimizer: Optimizer, state: object) -> None:
    try:
        Writer.check({"optimizer": state})
    except CheckpointError as error:
        raise CheckpointError(
            "The state of the optimizer cannot be stored in a training state.",
            given=f"{type(optimizer).__name__} with {error.given}",
            expected=error.expected,
            do="Use an optimizer whose state is of plain tensors, such as torch.optim.AdamW, or save no training "
            "states: trainer.save_model() saves the weights.",
        ) from error
