"""Gathering the states of sharded models and their optimizers, a tensor at a time."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from pa_core._tensors import is_sharded, whole_tensor


@contextmanager
def gathering(tensors: Iterable[Tensor]) -> Generator[Iterator[Tensor]]:
    """Yield an iterator over whole tensors, each gathered when it is requested; every process must enter the context.

    Tensors that a process does not request, because it needs none or failed, are gathered when it leaves the context,
    because the other processes would otherwise wait for it.

    Args:
        tensors: Sharded or plain tensors; the same on each process.
    """
    whole = (whole_tensor(tensor.detach()) for tensor in tensors)
    try:
        yield whole
    finally:
        for _ in whole:
            pass


def gather_state(state: dict[str, Any], *, keep: bool) -> dict[str, Any]:
    """Return a nested state with whole tensors on the host instead of shards; every process must call this.

    Args:
        state: A state, for example of ``state_dict()``, with the same structure on each process.
        keep: Whether this process needs the tensors. If not, empty tensors replace them, so that at most one of them
            takes memory.
    """
    made: dict[int, Tensor] = {}
    whole: dict[str, Any] = _gathered(state, made, keep=keep)
    return whole


def _gathered(value: Any, made: dict[int, Tensor], *, keep: bool) -> Any:
    if isinstance(value, dict):
        state = cast("dict[Any, Any]", value)  # type: ignore[redundant-cast]  # pyright infers a less precise type
        entries = copy.copy(state)  # with the attributes of a state dict
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
