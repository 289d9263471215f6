"""Batches on their device: moving, pinning, and prefetching to CUDA."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

__all__ = ["can_pin_memory", "move_to_device", "pin_memory", "prefetched", "rebuilt_mapping", "rebuilt_sequence"]

_BatchT = TypeVar("_BatchT")


def move_to_device(batch: _BatchT, device: torch.device | str | int, non_blocking: bool = False) -> _BatchT:
    """Move every tensor of a batch to a device.

    Tensors are found in lists, tuples, named tuples, mappings and dataclasses, at any depth. Any other object
    that has a ``to`` method, such as a packed sequence or a graph, is moved by it. Everything else stays.

    Args:
        batch: A batch as a loader yields it.
        device: Where the tensors shall be.
        non_blocking: Lets the copy run while the program continues; the source must be in pinned memory.

    Returns:
        A batch of the same structure. Containers in which something moved are new ones and what was given is
        left unchanged; where nothing moves, the very same object comes back.

    Example:
        >>> batch = {"image": torch.zeros(2, 3), "name": ["a", "b"]}
        >>> moved = move_to_device(batch, "meta")
        >>> moved["image"].device, moved["name"]
        (device(type='meta'), ['a', 'b'])
        >>> move_to_device(batch, "cpu") is batch
        True
    """
    target = device if isinstance(device, torch.device) else torch.device(device)
    if batch.__class__ is list or batch.__class__ is tuple:  # told without taking it apart, as each step does so
        for part in cast("Any", batch):
            if part.__class__ is not Tensor or part.device != target:
                break
        else:
            return batch

    def move(leaf: Any) -> Any:
        try:
            return leaf.to(target, non_blocking=True) if non_blocking else leaf.to(target)
        except TypeError:  # many objects of users' libraries take the device alone
            return leaf.to(target)

    return cast("_BatchT", _map_leaves(batch, move, "to"))


def can_pin_memory() -> bool:
    """Tell whether there is an accelerator that torch pins memory for."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type != "mps"


def pin_memory(batch: _BatchT) -> _BatchT:
    """Copy every tensor of a batch on the CPU into pinned memory, from where it moves without blocking.

    Follows the structure of the batch as `move_to_device` does; for other objects, ``pin_memory()`` is called.

    Args:
        batch: A batch as a loader yields it.

    Returns:
        A batch of the same structure.

    Raises:
        RuntimeError: From torch, if there is no accelerator to pin memory for.
    """

    def pin(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.device.type != "cpu":
            return leaf
        return leaf.pin_memory()

    return cast("_BatchT", _map_leaves(batch, pin, "pin_memory"))


def _map_leaves(value: Any, function: Callable[[Any], Any], method: str) -> Any:
    """Apply a function to the tensors and to the objects that have a method; keep what does not change."""
    kind: type[Any] = value.__class__
    if issubclass(kind, Tensor) or callable(getattr(kind, method, None)):
        return function(value)
    if issubclass(kind, (list, tuple)):
        return rebuilt_sequence(value, lambda one: _map_leaves(one, function, method))
    if issubclass(kind, Mapping):
        return rebuilt_mapping(value, lambda one: _map_leaves(one, function, method))
    return _map_dataclass(value, function, method) if dataclasses.is_dataclass(kind) else value


def rebuilt_sequence(values: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """Return a list or tuple of the same class with changed items, or itself if none of them changes.

    Args:
        values: The list or tuple, perhaps a named one.
        change: Called with each item.
    """
    changed = [change(value) for value in values]
    if all(new is old for new, old in zip(changed, values, strict=True)):
        return values
    if isinstance(values, list):
        clone = copy.copy(values)
        clone[:] = changed
        return clone
    constructor: Any = type(values)
    return constructor(*changed) if hasattr(values, "_fields") else constructor(changed)


def rebuilt_mapping(values: Mapping[Any, Any], change: Callable[[Any], Any]) -> Any:
    """Return a mapping of the same class with changed values, or itself if none of them changes.

    Args:
        values: The mapping.
        change: Called with each value.
    """
    changed = {key: change(value) for key, value in values.items()}
    if all(changed[key] is value for key, value in values.items()):
        return values
    if isinstance(values, MutableMapping):
        clone = copy.copy(values)
        clone.update(changed)
        return clone
    constructor = cast("Callable[[dict[Any, Any]], Any]", type(values))
    return constructor(changed)


def _map_dataclass(value: Any, function: Callable[[Any], Any], method: str) -> Any:
    values = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    moved = {name: _map_leaves(old, function, method) for name, old in values.items()}
    if all(moved[name] is old for name, old in values.items()):
        return value
    clone = copy.copy(value)
    for name, new in moved.items():
        object.__setattr__(clone, name, new)  # reaches the fields of frozen dataclasses too
    return clone


def prefetched(batches: Iterable[_BatchT], device: torch.device) -> Iterator[_BatchT]:
    """Yield batches on the device, each copied there while the device computes with the one before it.

    Copies are made on their own stream, one batch ahead. What is trained on is counted where the weights change, so
    that a batch that was fetched and not used is fetched again by a resumed run.

    Args:
        batches: Batches in pinned memory.
        device: A CUDA device.
    """
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves its streams unannotated
    under_way: list[tuple[_BatchT, torch.Event]] = []
    for batch in batches:
        # Memory of an earlier batch may be given to this one: not before everything that was asked of it is computed.
        copies.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(copies):
            moved = move_to_device(batch, device, non_blocking=True)
        copied = copies.record_event()
        if under_way:
            yield _once_arrived(*under_way.pop(), device)
        under_way.append((moved, copied))
    if under_way:
        yield _once_arrived(*under_way.pop(), device)


def _once_arrived(batch: _BatchT, copied: torch.Event, device: torch.device) -> _BatchT:
    torch.cuda.current_stream(device).wait_event(copied)
    return batch
