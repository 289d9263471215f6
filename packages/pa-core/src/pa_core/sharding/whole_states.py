"""Loads whole weights, and the whole state of an optimizer, of which each process takes its pieces."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core.optimizer_parameters import parameters_of
from pa_core.sharded_tensors import is_sharded
from pa_core.storage.sharded_tensor import StoredTensor

__all__ = ["load_whole_weights", "split_like", "split_optimizer_state"]


def load_whole_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load a state dict of whole tensors into a sharded model; nothing is exchanged.

    Args:
        model: The model without wrappers.
        weights: With the keys and shapes of the model.
    """
    own = model.state_dict()
    split = {name: value for name, value in own.items() if is_sharded(value)}
    # what else the state has may be refused, and comes first
    model.load_state_dict({name: value for name, value in weights.items() if name not in split}, strict=False)
    for name, value in split.items():
        StoredTensor.of(weights[name]).read_into(value)


def split_like(whole: Tensor, tensor: Tensor) -> Tensor:
    """Return what each process has of a whole tensor, split as another one of the same shape; nothing is exchanged.

    Args:
        whole: On every process, with the same values.
        tensor: Split over the processes, or a plain one.
    """
    return StoredTensor.of(whole).like(tensor)


def split_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer with the pieces of this process instead of whole tensors; a copy.

    Args:
        optimizer: One whose state has the form of torch's, of sharded parameters.
        state: What the ``state_dict`` of such an optimizer returned, with whole tensors.
    """
    numbers = chain.from_iterable(group["params"] for group in state["param_groups"])
    parameters = dict(zip(numbers, parameters_of(optimizer), strict=True))
    entries = {
        number: _split_entries(of_parameter, parameters[number])
        if number in parameters
        else copy.deepcopy(of_parameter)
        for number, of_parameter in state["state"].items()
    }
    return {**{name: copy.deepcopy(value) for name, value in state.items() if name != "state"}, "state": entries}


def _split_entries(entries: Any, parameter: Tensor | None) -> Any:
    if parameter is None or not is_sharded(parameter):
        return copy.deepcopy(entries)
    return {
        name: split_like(value, parameter) if isinstance(value, Tensor) and value.dim() > 0 else copy.deepcopy(value)
        for name, value in entries.items()
    }
