"""What training steps leave on a trainer and no training state has, such as a hidden state: a kill would lose it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor, nn

from pa_core._torch import version_of
from pa_core.beside_model import items_of
from pa_core.module_tensors import buffers_of_module, parameters_of_module
from pa_core.sharded_tensors import is_sharded
from pa_core.subclasses import own_attributes
from pa_core.user_warnings import warn_user

__all__ = ["UnsavedAttributes"]


class UnsavedAttributes:
    """Compares the tensors and modules among the attributes of a run at its start with those at a save.

    Steps pay nothing for it.

    Args:
        run: The run, before its first step.
    """

    def __init__(self, run: object) -> None:
        self._before = {id(one): (ref(one), _version(one)) for _, one in _tensors_of(run)}
        self._has_warned = False

    def warn(self, run: object, parts: Mapping[str, Any]) -> None:
        """Warn, once in a run, of attributes that have appeared or changed and are in no training state.

        Args:
            run: The run.
            parts: What the state holds that is being saved.
        """
        if self._has_warned:
            return
        changed = [(name, one) for name, one in _tensors_of(run) if not self._is_as_before(one)]
        if not changed:
            return
        saved = {one.untyped_storage().data_ptr() for one in _tensors_in(parts)}
        copies = [*_tensors_in(parts["callbacks"]), *_tensors_in(parts["objects"])]
        names = [
            name
            for name, one in changed
            if one.untyped_storage().data_ptr() not in saved and not any(_is_copy(copy, one) for copy in copies)
        ]
        if names:
            self._has_warned = True
            warn_user(
                f"Training steps have left tensors in {', '.join(dict.fromkeys(names))}, which training states do not "
                "have: a resumed run begins without them. If later steps need them, pass what holds them, with "
                "state_dict() and load_state_dict(), to trainer.register_for_checkpointing(...)."
            )

    def _is_as_before(self, tensor: Tensor) -> bool:
        before, version = self._before.get(id(tensor), (lambda: None, None))
        return before() is tensor and version == _version(tensor)


def _tensors_of(run: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors in attributes of a script's own, as ``trainer.NAME``; modules have parameters and buffers."""
    for place, item in items_of(own_attributes(run)):
        tensors = (*parameters_of_module(item), *buffers_of_module(item)) if isinstance(item, nn.Module) else item
        yield from ((f"trainer.{place.partition('[')[0]}", one) for one in _tensors_in(tensors))


def _tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested containers, without those that are split over processes or have no values in memory.

    Of mappings, only dictionaries are looked into: others may read from a file.
    """
    left, seen = [value], set[int]()
    while left:
        item = left.pop()
        if isinstance(item, Tensor):
            if item.layout is torch.strided and not (is_sharded(item) or item.is_meta):
                yield item
        elif id(item) not in seen:
            seen.add(id(item))
            left += reversed(_items_in(item))


def _items_in(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*cast("dict[object, object]", value).values()]
    return [*cast("Iterable[object]", value)] if isinstance(value, list | tuple) else []


def _version(tensor: Tensor) -> int | None:
    """Counts the changes in place; changes of inference tensors are not counted."""
    return None if tensor.is_inference() else version_of(tensor)


def _is_copy(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
