"""State that changes when samples are read: generators and counters of a dataset or of its collate function."""

from __future__ import annotations

import dis
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final, NamedTuple, Self, cast

import torch
from torch import Tensor

from pa_data._state_marks import is_generator, mark_of, state_of
from pa_data.state_search import Found, find_state, is_of_script

__all__ = ["DrawnState", "StateInWorkers"]

_TWISTER_SIZE: Final = 624
_MOST_TWISTS: Final = 2_000
"""The number of blocks of draws that are tried, which takes some milliseconds."""

_BYTES_OF_NOTES: Final = 1_024
_LOOKS_AFTER: Final = 2
_SET_FROM_OUTSIDE: Final = ("__init__", "set_")


class _Seen(NamedTuple):
    """A piece of state at an earlier moment."""

    value: object
    mark: object
    stream: object

    @classmethod
    def of(cls, found: Found) -> Self:
        """Return a record of the current state."""
        return cls(found.value, mark_of(found.value), _stream_of(found.value))


class DrawnState:
    """Compares at several moments the state that reading samples may change.

    A generator that is seeded for each sample is not state, nor is a number that is set from outside. A generator that
    the first sample creates is compared from the next moment on.

    Args:
        roots: The objects that read samples, by name.
        without: Objects that are not searched.
    """

    def __init__(self, roots: Mapping[str, object], without: Iterable[object] = ()) -> None:
        self._roots, self._without = roots, [*without]
        self._before = {found.place: _Seen.of(found) for found in self._found()}

    def moved(self) -> list[str]:
        """Return the places whose state has changed since they were first seen."""
        moved = list[str]()
        for found in self._found():
            if found.place in self._before:
                if self._has_moved(found):
                    moved.append(found.place)
            elif is_generator(found.value):
                self._before[found.place] = _Seen.of(found)
        return moved

    def _found(self) -> Iterator[Found]:
        return filter(_is_drawn, find_state(self._roots, without=self._without))

    def _has_moved(self, found: Found) -> bool:
        seen = self._before[found.place]
        if mark_of(found.value) == seen.mark:
            return False
        return not is_generator(seen.value) or (seen.value is found.value and _continues(seen.stream, found.value))


def _is_drawn(found: Found) -> bool:
    """Return whether a piece of state is a generator, or a number that an object of the script counts."""
    if is_generator(found.value) or isinstance(found.value, itertools.count):
        return True
    return type(found.value) in (int, float) and found.name in _counted_by(cast("Any", type(found.owner)))


@functools.cache
def _counted_by(kind: type[Any]) -> frozenset[str]:
    """Return the attributes that the methods of a class set and read, not those that they only increase."""
    ours = [base for base in kind.__mro__ if is_of_script(base.__module__)]
    methods = [item for base in ours for item in vars(base).items() if isinstance(item[1], FunctionType)]
    counting = [method for name, method in methods if not name.startswith(_SET_FROM_OUTSIDE)]
    instructions = [instruction for method in counting for instruction in dis.get_instructions(method)]
    read = Counter(str(instruction.argval) for instruction in instructions if instruction.opname == "LOAD_ATTR")
    stored = Counter(str(instruction.argval) for instruction in instructions if instruction.opname == "STORE_ATTR")
    return frozenset(name for name, times in stored.items() if read[name] > times)


def _stream_of(generator: Any) -> object:
    """Return a value that stays the same until a generator gets a new seed, or None for other values."""
    if isinstance(generator, torch.Generator):
        return generator.initial_seed()
    if not is_generator(generator):
        return None
    return _twister_of(generator) or _constants_of(state_of(generator))


def _constants_of(state: Any) -> object:
    values: Any = cast("dict[str, Any]", state).get("state") if isinstance(state, dict) else None
    if not isinstance(values, dict):
        return None
    values = cast("dict[str, Any]", values)
    return repr(values.get("inc", values.get("key")))  # of PCG64 and Philox


def _twister_of(generator: Any) -> tuple[int, ...] | None:
    """Return the current block of a Mersenne twister, or None for other generators."""
    state = state_of(generator)
    if isinstance(generator, random.Random):
        return tuple(state[1][:-1])
    if state.get("bit_generator") == "MT19937":
        return tuple(int(word) for word in state["state"]["key"])
    return None


def _continues(stream: object, generator: Any) -> bool:
    now = _stream_of(generator)
    if not isinstance(now, tuple) or now == stream:
        return now == stream
    drawing = random.Random()  # to find out what the generator has drawn
    drawing.setstate((3, (*cast("tuple[int, ...]", stream), _TWISTER_SIZE), None))
    for _ in range(_MOST_TWISTS):
        drawing.getrandbits(32 * _TWISTER_SIZE)
        if drawing.getstate()[1][:-1] == now:
            return True
    return False


class StateInWorkers:
    """Tells the main process about state that changes in a worker, whose copies it cannot see.

    A worker compares the state before its first batch and after its first few batches, but not later.

    Args:
        roots: The objects that read samples, by name.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._roots = roots
        self._notes: Tensor = torch.zeros(_BYTES_OF_NOTES, dtype=torch.uint8)
        self._notes.share_memory_()  # type: ignore[no-untyped-call]  # not annotated by torch
        self._looks = 0
        self._state: DrawnState | None = None

    def fetch(self, fetch: Callable[[], Any]) -> Any:
        """Call a function that reads a batch, in a worker."""
        if self._looks > _LOOKS_AFTER:
            return fetch()
        if self._state is None:
            self._state = DrawnState(self._roots)
        batch = fetch()
        self._looks += 1
        if moved := self._state.moved():
            self._note(moved)
        self._state = None if moved or self._looks > _LOOKS_AFTER else DrawnState(self._roots)
        return batch

    def _note(self, moved: Iterable[str]) -> None:
        self._looks = _LOOKS_AFTER + 1
        text = "\n".join(moved).encode()[:_BYTES_OF_NOTES]
        self._notes[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def noted(self) -> list[str]:
        """Return the places that workers have reported."""
        text = bytes(self._notes.numpy()).rstrip(b"\0").decode(errors="ignore")
        return text.split("\n") if text else []
