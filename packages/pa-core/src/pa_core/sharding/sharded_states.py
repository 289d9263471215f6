"""States of sharded models and their optimizers: brought together, one tensor at a time, and split again."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_checkpoint import StoredTensor
from pa_core.model_tensors import is_sharded, parameters_of, whole_tensor


@contextmanager
def gathering(tensors: Iterable[Tensor]) -> Generator[Iterator[Tensor]]:
    """Give whole tensors within the context, each made when it is requested; every process must enter it.

    Those that a process does not take, because it needs none or has failed, are made when it leaves the context: the
    others would wait for it.

    Args:
        tensors: Split over processes, or plain ones; the same on each process.
    """
    whole = (whole_tensor(tensor.detach()) for tensor in tensors)
    try:
        yield whole
    finally:
        for _ in whole:
            pass


def gather_state(state: dict[str, Any], *, keep: bool) -> dict[str, Any]:
    """Return a nested state with whole tensors on the host instead of sharded ones; every process must call this.

    Args:
        state: What a ``state_dict`` returned, with the same structure on each process.
        keep: Whether this process has a use for the tensors. An empty one stands for each where it has none, so that
            no more than one of them takes memory.
    """
    made: dict[int, Tensor] = {}
    whole: dict[str, Any] = _gathered(state, made, keep=keep)
    return whole


def _gathered(value: Any, made: dict[int, Tensor], *, keep: bool) -> Any:
    if isinstance(value, dict):
        state = cast("dict[Any, Any]", value)  # type: ignore[redundant-cast]  # pyright knows less of it
        entries = copy.copy(state)  # with what a state dict has beside its entries
        entries.update({name: _gathered(entry, made, keep=keep) for name, entry in state.items()})
        return entries
    if type(value) in (list, tuple):
        return type(value)(_gathered(entry, made, keep=keep) for entry in value)
    if not isinstance(value, Tensor):
        return value
    if not is_sharded(value):
        return value.detach()
    if id(value) not in made:
        whole = whole_tensor(value.detach())
        made[id(value)] = whole.to("cpu") if keep else torch.empty(0, dtype=value.dtype)
    return made[id(value)]


def load_whole_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load a state dict of whole tensors into a sharded model; nothing is exchanged.

    Args:
        model: The model without wrappers.
        weights: With keys and shapes of the model; what they lack stays as it is.
    """
    own = model.state_dict()
    split = {name: value for name, value in own.items() if name in weights and is_sharded(value)}
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


def split_like_parameters(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer with those tensors split that it keeps for parameters which are split.

    They may have been saved in other pieces, or whole. What belongs to a plain parameter is whole.

    Args:
        state: What the ``state_dict`` of an optimizer of the same parameters returned, perhaps with stored tensors.
        optimizer: The optimizer that takes it over.
    """
    entries, numbers = state.get("state"), _numbers(state.get("param_groups"))
    parameters = list(parameters_of(optimizer))
    if not isinstance(entries, Mapping) or len(numbers) != len(parameters):  # a form of its own
        is_split = any(map(is_sharded, parameters))
        own_form: dict[str, Any] = StoredTensor.resolve(dict(state), optimizer.state_dict() if is_split else None)
        return own_form
    by_number = dict(zip(numbers, parameters, strict=True))
    split = {
        number: _split_entries(by_number.get(number), of_parameter)
        for number, of_parameter in cast("Mapping[object, object]", entries).items()
    }
    return {**{name: StoredTensor.resolve(value) for name, value in state.items() if name != "state"}, "state": split}


def _numbers(groups: Any) -> list[object]:
    """The numbers by which a state calls the parameters, group by group."""
    try:
        return [number for group in groups for number in group["params"]]
    except (KeyError, TypeError):  # a form of its own
        return []


def _split_entries(parameter: Tensor | None, entries: object) -> Any:
    if parameter is None or not isinstance(entries, Mapping):
        return StoredTensor.resolve(entries)
    return {
        name: StoredTensor.of(value).like(parameter)
        if _is_split_with(value, parameter)
        else StoredTensor.resolve(value)
        for name, value in cast("Mapping[str, object]", entries).items()
    }


def _is_split_with(value: object, parameter: Tensor) -> TypeGuard[Tensor | StoredTensor]:
    """Whether an optimizer keeps a value in pieces, as it does the parameter. A number of steps is whole."""
    if not is_sharded(parameter) or not isinstance(value, Tensor | StoredTensor):
        return False
    return value.shape == parameter.shape or (len(value.shape) > 1 and len(value.shape) == parameter.dim())
