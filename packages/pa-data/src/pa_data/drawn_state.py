"""State that fetching samples moves on: generators that a dataset or its collation owns, and what they count."""

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
"""So many blocks of draws are tried, which takes some milliseconds."""

_BYTES_OF_NOTES: Final = 1_024
_LOOKS_AFTER: Final = 2
_SET_FROM_OUTSIDE: Final = ("__init__", "set_")


class _Seen(NamedTuple):
    """A piece of state as it was at an earlier moment."""

    value: object
    mark: object
    stream: object

    @classmethod
    def of(cls, found: Found) -> Self:
        """Note what there is."""
        return cls(found.value, mark_of(found.value), _stream_of(found.value))


class DrawnState:
    """Compares what fetching samples may move on at several moments.

    A generator that is seeded for each sample is not state, nor is a number that something else has set. One that the
    first sample makes is compared from the next moment on.

    Args:
        roots: What fetches samples, by name.
        without: What is not looked into.
    """

    def __init__(self, roots: Mapping[str, object], without: Iterable[object] = ()) -> None:
        self._roots, self._without = roots, [*without]
        self._before = {one.place: _Seen.of(one) for one in self._found()}

    def moved(self) -> list[str]:
        """Return the places whose state has moved on since they were first seen."""
        moved = list[str]()
        for one in self._found():
            if one.place in self._before:
                if self._has_moved(one):
                    moved.append(one.place)
            elif is_generator(one.value):
                self._before[one.place] = _Seen.of(one)
        return moved

    def _found(self) -> Iterator[Found]:
        return filter(_is_drawn, find_state(self._roots, without=self._without))

    def _has_moved(self, found: Found) -> bool:
        seen = self._before[found.place]
        if mark_of(found.value) == seen.mark:
            return False
        return not is_generator(seen.value) or (seen.value is found.value and _continues(seen.stream, found.value))


def _is_drawn(found: Found) -> bool:
    """Whether a piece of state is a generator, or a number that an object of the script counts itself."""
    if is_generator(found.value) or isinstance(found.value, itertools.count):
        return True
    return type(found.value) in (int, float) and found.name in _counted_by(cast("Any", type(found.owner)))


@functools.cache
def _counted_by(kind: type[Any]) -> frozenset[str]:
    """The attributes that the methods of a class set and read: what they only add to decides nothing."""
    ours = [one for one in kind.__mro__ if is_of_script(one.__module__)]
    methods = [item for one in ours for item in vars(one).items() if isinstance(item[1], FunctionType)]
    counting = [method for name, method in methods if not name.startswith(_SET_FROM_OUTSIDE)]
    instructions = [one for method in counting for one in dis.get_instructions(method)]
    read = Counter(str(one.argval) for one in instructions if one.opname == "LOAD_ATTR")
    stored = Counter(str(one.argval) for one in instructions if one.opname == "STORE_ATTR")
    return frozenset(name for name, times in stored.items() if read[name] > times)


def _stream_of(generator: Any) -> object:
    """What stays the same until a generator gets another seed; None for other values."""
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
    """The current block of a Mersenne twister; None for generators of other kinds."""
    state = state_of(generator)
    if isinstance(generator, random.Random):
        return tuple(state[1][:-1])
    if state.get("bit_generator") == "MT19937":
        return tuple(int(one) for one in state["state"]["key"])
    return None


def _continues(stream: object, generator: Any) -> bool:
    now = _stream_of(generator)
    if not isinstance(now, tuple) or now == stream:
        return now == stream
    drawing = random.Random()  # it finds out what another one has drawn
    drawing.setstate((3, (*cast("tuple[int, ...]", stream), _TWISTER_SIZE), None))
    for _ in range(_MOST_TWISTS):
        drawing.getrandbits(32 * _TWISTER_SIZE)
        if drawing.getstate()[1][:-1] == now:
            return True
    return False


class StateInWorkers:
    """Tells the main process what moves on in a worker, whose copies it does not see.

    A worker looks before its first batch and after the first ones; then nothing more is done.

    Args:
        roots: What fetches samples, by name.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._roots = roots
        self._notes: Tensor = torch.zeros(_BYTES_OF_NOTES, dtype=torch.uint8)
        self._notes.share_memory_()  # type: ignore[no-untyped-call]  # not annotated by torch
        self._looks = 0
        self._state: DrawnState | None = None

    def fetch(self, fetch: Callable[[], Any]) -> Any:
        """Call what fetches a batch, in a worker."""
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
        """Return the places that workers have told of."""
        text = bytes(self._notes.numpy()).rstrip(b"\0").decode(errors="ignore")
        return text.split("\n") if text else []
