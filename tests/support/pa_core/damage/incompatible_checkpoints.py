"""Checkpoints of which one entry is missing or of another type or shape, with checksums that are right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

Place = tuple[str | int, ...]
"""Where an entry stands in a checkpoint, key by key."""

VALUES: dict[str, Any] = {
    "None": None,
    "a number": 3,
    "a complex number": 1j,
    "text": "ten",
    "a list of texts": ["a"],
    "a dictionary": {"a": "b"},
    "a tensor": torch.ones(2, 3, 5),
}

TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "with one dimension more": lambda one: one[..., None].expand(*one.shape, 2).clone(),
    "of one element": lambda one: torch.ones((1,) * max(1, one.dim()), dtype=one.dtype),
    "without elements": lambda one: torch.empty(0, dtype=one.dtype),
    "of another kind of number": lambda one: one.long() if one.is_floating_point() else one.float(),
    "without values": lambda one: one.to("meta"),
}


class Misfit(NamedTuple):
    """A checkpoint, and what was changed in it."""

    place: Place
    what: str
    content: dict[str, Any]

    @override
    def __repr__(self) -> str:
        return f"{'.'.join(map(str, self.place))}: {self.what}"


def misfits(content: dict[str, Any]) -> Iterator[Misfit]:
    """Each entry missing or of each type, and each tensor of other shapes and kinds."""
    for place, entry in entries(content):
        others = {name: value for name, value in VALUES.items() if type(value) is not type(entry)}
        if isinstance(entry, Tensor):
            changed = {name: change(entry) for name, change in TENSORS.items()}
            others |= {name: value for name, value in changed.items() if not is_alike(value, entry)}
        for name, value in others.items():
            yield Misfit(place, name, with_entry(content, place, value))
        yield Misfit(place, "missing", without_entry(content, place))


def is_alike(value: Tensor, entry: Tensor) -> bool:
    """Whether a change left a tensor as it was."""
    return (value.dtype, value.shape, value.device) == (entry.dtype, entry.shape, entry.device)


def foreign_entries(content: dict[str, Any], names: dict[Place, list[str | int]]) -> Iterator[Misfit]:
    """An entry more, by names that mean something to what loads it."""
    for place, more in names.items():
        for name in more:
            yield Misfit((*place, name), "a number", with_entry(content, (*place, name), 3))


def entries(content: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """All that is in a checkpoint, from the outside to the inside."""
    if place:
        yield place, content
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from entries(value, (*place, key))


def with_entry(content: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """A copy with another value at a place."""
    changed = copy.deepcopy(content)
    inside: Any = changed
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return changed


def without_entry(content: dict[str, Any], place: Place) -> dict[str, Any]:
    """A copy that lacks what is at a place."""
    changed = copy.deepcopy(content)
    inside: Any = changed
    for key in place[:-1]:
        inside = inside[key]
    del inside[place[-1]]
    return changed
