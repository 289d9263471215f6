"""Checks in memory, before training, that what a run saves can be stored and loaded again."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_checkpoint._encoding import Encoded, decode, encode
from pa_core.errors import CheckpointError
from pa_core.optimizer_parameters import parameters_of
from pa_core.state_dicts import missing_methods
from pa_core.state_misfits import has_own_form
from pa_core.training_state.optimizer_state import load_state
from pa_core.user_warnings import warn_user

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
                _encode_optimizer(optimizers[one], captured["state"])
        else:
            encode(part, name)


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
    """Raise an error for an optimizer whose present state could not be stored, or not be loaded again.

    Where the state has its own form, loading is tried on a copy of the optimizer on the CPU, which leaves the optimizer
    itself unchanged. Until this returns, host memory holds the state again.

    Args:
        optimizer: An optimizer that has made an update: most make their state with the first one.

    Raises:
        CheckpointError: The state cannot be stored, or ``load_state_dict`` does not take it.
    """
    encoded = _encode_optimizer(optimizer, optimizer.state_dict())
    if not has_own_form(optimizer):
        return
    name = type(optimizer).__name__
    try:
        copied = _copy_without_state(optimizer)
    except Exception as error:
        warn_user(
            f"Whether the state of {name} can be loaded again could not be tried, since the optimizer cannot be copied "
            f"({type(error).__name__}: {error}). Resume a short run before you rely on it."
        )
        return
    try:
        load_state(copied, _copy_of_state(optimizer, encoded))
        loaded = encode(copied.state_dict(), "optimizer").all_tensors()
    except Exception as error:
        raise _not_loaded(name, f"load_state_dict() raised {type(error).__name__}: {error}") from error
    lost = [name for name, tensor in encoded.all_tensors().items() if _shape(loaded.get(name)) != _shape(tensor)]
    if lost:
        raise _not_loaded(name, f"after load_state_dict(), state_dict() lacks {lost[0]}")


def _copy_of_state(optimizer: Optimizer, encoded: Encoded) -> Any:
    """The state as it would be read from a file; of sharded tensors, as this process has them."""
    if encoded.pieces:
        return copy.deepcopy(optimizer.state_dict())
    on_the_host = {name: tensor.to("cpu", copy=True) for name, tensor in encoded.tensors.items()}
    return decode(encoded.document, on_the_host)


def _encode_optimizer(optimizer: Optimizer, state: object) -> Encoded:
    try:
        return encode(state, "optimizer")
    except CheckpointError as error:
        raise CheckpointError(
            "The state of the optimizer cannot be stored in a training state.",
            given=f"{type(optimizer).__name__} with {error.given}",
            expected=error.expected,
            do="Use an optimizer whose state is of plain tensors, such as torch.optim.AdamW, or save no training "
            "states: trainer.save_model() saves the weights.",
        ) from error


def _copy_without_state(optimizer: Optimizer) -> Optimizer:
    """An optimizer of the same kind, as a new process would have it, with parameters that hold no values on the CPU.

    ``copy.deepcopy`` alone would leave out what a subclass keeps besides ``state``, and copy the parameters.
    """
    copied = object.__new__(type(optimizer))
    memo: dict[int, Any] = {id(optimizer): copied, id(optimizer.state): defaultdict[Any, Any](dict)}
    for parameter in parameters_of(optimizer):
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad)
    vars(copied).update({name: copy.deepcopy(value, memo) for name, value in vars(optimizer).items()})
    return copied


def _shape(tensor: Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape


def _not_loaded(name: str, found: str) -> CheckpointError:
    return CheckpointError(
        "The state of the optimizer can be stored, but not loaded again.",
        given=f"{name}: {found}",
        expected="a load_state_dict() that takes what state_dict() returns, its tensors on the CPU",
        do=f"Correct load_state_dict() of {name}; if it has none, write it to fit its state_dict().",
    )
