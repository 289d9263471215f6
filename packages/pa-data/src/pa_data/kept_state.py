"""Keeps the state of the objects of a script, and restores it in place, since other objects refer to the same objects.

It covers the state that ``find_state`` finds, and its holders. Only numbers and elements are copied, and only changed
values are written.
"""

from __future__ import annotations

import array
import ast
import gc
import io
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, GeneratorType, MemberDescriptorType
from typing import Any, Final

from torch import Tensor, nn

from pa_data._kept_tensors import KeptTensors
from pa_data._state_marks import PLAIN, is_array, is_generator, set_state_of, state_of
from pa_data._torch import BUFFERS
from pa_data.state_search import find_state, is_of_script, names_in

__all__ = ["KeptState"]

_MOST_OBJECTS: Final = 300_000
_MISSING: Final[Any] = object()
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque, bytearray, array.array)
_ITERATORS: Final = tuple(map(type, (iter([0]), iter((0,)), iter(range(1)), reversed([0]))))
"""Iterators that tell their position, and can be set back."""
_MOVING: Final = (*_CONTAINERS, *_ITERATORS, io.IOBase, itertools.count)


class KeptState:
    """The state of objects at a moment.

    Args:
        roots: The objects by name.
        most_bytes: The largest number of bytes of tensors and arrays to copy.

    Attributes:
        running: The places of generators and other iterators that cannot be rewound.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> script = SimpleNamespace(losses=[0.5], weights=torch.zeros(2))
        >>> kept = KeptState({"script": script}, most_bytes=1 << 20)
        >>> script.losses.append(0.25)
        >>> script.weights += 1
        >>> script.step = 1
        >>> kept.restore()
        []
        >>> script
        namespace(losses=[0.5], weights=tensor([0., 0.]))
    """

    def __init__(self, roots: Mapping[str, object], *, most_bytes: int) -> None:
        self.running: list[str] = []
        self._tensors = KeptTensors(most_bytes)
        self._restores: list[Callable[[], None]] = []
        # With the objects: without them, their identities would be given to others.
        self._kept: dict[int, object] = {}
        self._counts: dict[int, tuple[str, itertools.count[Any]]] = {}
        self._keepers: list[tuple[Any, Callable[[str, Any], None]]] = [
            (dict, self._keep_dict),
            ((list, deque), self._keep_list),
            (Tensor, self._tensors.keep),
            ((tuple, frozenset), self._keep_each),
            (set, self._keep_set),
            ((bytearray, array.array), self._keep_bytes),
            (FunctionType, self._keep_function),
            (CellType, self._keep_cell),
            (type, self._keep_class),
            (itertools.count, self._keep_count),
            (_ITERATORS, self._keep_position),
            (io.IOBase, self._keep_file),
        ]
        with _without_garbage_collection():
            for found in find_state(roots, holders=True):
                if type(found.value) not in PLAIN:
                    self._keep(found.place, found.value)

    def restore(self) -> list[str]:
        """Restore everything, once.

        Returns:
            The places of values that have changed and were too large to be kept.
        """
        self._tensors.restore()
        for restore in self._restores:
            restore()
        lost = self._tensors.lost()
        vars(self).clear()  # at once, and not when cycles of references are looked for
        return lost

    def _keep(self, place: str, value: Any) -> None:
        if id(value) in self._kept or len(self._kept) > _MOST_OBJECTS:
            return
        self._kept[id(value)] = value
        for kinds, keep in self._keepers:
            if isinstance(value, kinds):
                keep(place, value)
                return
        if is_array(value):
            self._tensors.keep_array(place, value)
        elif is_generator(value):
            self._restores.append(partial(set_state_of, value, state_of(value)))
        elif _is_running(value):
            self.running.append(place)
        else:
            self._keep_object(place, value)

    def _keep_each(self, place: str, values: Iterable[Any]) -> None:
        """Keep the values in containers and private attributes, which are not searched."""
        for value in values:
            if type(value) not in PLAIN and _is_kept_where_it_is_held(value):
                self._keep(place, value)

    def _keep_dict(self, place: str, value: dict[Any, Any]) -> None:
        copy = dict(value)
        self._restores.append(partial(self._restore_dict, value, copy))
        self._keep_each(place, copy.values())
        self._keep_attributes_of_container(place, value)

    def _keep_list(self, place: str, value: Any) -> None:
        held = [*value]
        self._restores.append(partial(self._restore_list, value, held))
        self._keep_each(place, held)
        self._keep_attributes_of_container(place, value)

    def _keep_attributes_of_container(self, place: str, value: Any) -> None:
        if type(value).__module__ != "builtins":
            self._keep_object(place, value)

    def _keep_count(self, _place: str, value: itertools.count[Any]) -> None:
        self._counts[id(value)] = repr(value), _again(value)

    def _keep_set(self, _place: str, value: set[Any]) -> None:
        self._restores.append(partial(_restore_set, value, set(value)))

    def _keep_bytes(self, _place: str, value: Any) -> None:
        self._restores.append(partial(_restore_items, value, value[:]))

    def _keep_cell(self, place: str, value: CellType) -> None:
        self._restores.append(partial(_restore_cell, value, _content_of(value)))
        self._keep_each(place, [_content_of(value)])

    def _keep_position(self, _place: str, iterator: Any) -> None:
        state = iterator.__reduce__()
        self._restores.extend(partial(iterator.__setstate__, position) for position in state[2:])

    def _keep_file(self, _place: str, file: Any) -> None:
        if not file.closed and file.seekable() and file.readable():
            self._restores.append(partial(_restore_position, file, file.tell()))

    def _keep_function(self, place: str, function: FunctionType) -> None:
        self._restores.append(partial(self._restore_dict, vars(function), dict(vars(function))))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self._keep(f"{place}.{name}", cell)
        if is_of_script(function.__module__ or ""):
            held = function.__globals__
            named = {name: held.get(name, _MISSING) for name in names_in(function.__code__)}
            self._restores.append(partial(self._restore_names, held, named))
            self._keep_each(function.__module__, named.values())

    def _keep_class(self, _place: str, kind: type[Any]) -> None:
        if is_of_script(kind.__module__):
            held = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
            self._restores.append(partial(_restore_class, kind, held))
            self._keep_each(kind.__qualname__, held.values())

    def _keep_object(self, place: str, value: object) -> None:
        of_value = type(value)
        for kind in of_value.__mro__:
            if id(kind) not in self._kept:
                self._keep(place, kind)
        if isinstance(value, nn.Module):
            self._keep_buffers(place, vars(value)[BUFFERS])
        held = _attributes_of(value)
        if held is not None:
            copy = dict(held)
            self._restores.append(partial(self._restore_attributes, value, of_value, held, copy))
            self._keep_each(place, copy.values())
        for slot in _slots_of(of_value):
            self._restores.append(partial(_restore_slot, value, slot, _read(slot, value)))
            self._keep_each(place, [_read(slot, value)])

    def _keep_buffers(self, place: str, buffers: dict[str, Tensor | None]) -> None:
        self._kept[id(buffers)] = buffers
        self._restores.append(partial(_restore_buffers, buffers, dict(buffers)))
        self._keep_each(place, buffers.values())

    # To restore

    def _as_kept(self, value: Any) -> Any:
        """Return a value as it was kept: the same object, or a count that begins at the kept number."""
        shown, again = self._counts.get(id(value), ("", None))
        return again if again is not None and repr(value) != shown else value

    def _restore_dict(self, now: dict[Any, Any], before: dict[Any, Any]) -> None:
        if self._counts:
            before = {key: self._as_kept(value) for key, value in before.items()}
        if [*now] != [*before]:
            now.clear()
            now.update(before)
            return
        for key, value in before.items():
            if now[key] is not value:
                now[key] = value

    def _restore_attributes(self, owner: Any, kind: type, now: dict[str, Any], before: dict[str, Any]) -> None:
        if type(owner) is not kind:  # as lazy layers do
            owner.__class__ = kind
        self._restore_dict(now, before)

    def _restore_names(self, now: dict[str, Any], before: dict[str, Any]) -> None:
        for name, value in before.items():
            if value is _MISSING:
                now.pop(name, None)
            elif now.get(name, _MISSING) is not self._as_kept(value):
                now[name] = self._as_kept(value)

    def _restore_list(self, now: Any, before: list[Any]) -> None:
        before = [self._as_kept(value) for value in before] if self._counts else before
        if len(now) != len(before) or any(item is not kept for item, kept in zip(now, before, strict=True)):
            now.clear()
            now.extend(before)


@contextmanager
def _without_garbage_collection() -> Generator[None]:
    """Switch off garbage collection within the block, since nothing becomes garbage and the search would take long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_kept_where_it_is_held(value: Any) -> bool:
    """Return whether a value is restored although it is not searched: containers, and values that move."""
    if isinstance(value, _MOVING):
        return True
    if isinstance(value, type):
        return is_of_script(value.__module__)
    return is_generator(value) or is_array(value) or isinstance(value, Tensor) or _is_running(value)


def _is_running(value: object) -> bool:
    """Return whether a value is an iterator that cannot be rewound."""
    if isinstance(value, GeneratorType):
        return True
    kind = type(value)
    moves = hasattr(kind, "__next__") and not isinstance(value, _MOVING)
    return moves and not is_of_script(kind.__module__)


def _again(count: itertools.count[Any]) -> itertools.count[Any]:
    return itertools.count(*ast.literal_eval(f"{repr(count)[6:-1]},"))


def _attributes_of(value: object) -> dict[str, Any] | None:
    try:
        held: Any = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if isinstance(held, dict) else None  # pyright: ignore[reportUnknownVariableType]  # any names


def _slots_of(kind: type[Any]) -> list[Any]:
    return [
        slot
        for base in kind.__mro__
        if is_of_script(base.__module__)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType) and not name.startswith("__")
    ]


def _read(slot: Any, value: object) -> Any:
    try:
        return slot.__get__(value, type(value))
    except AttributeError:
        return _MISSING


def _restore_slot(value: object, slot: Any, before: Any) -> None:
    now = _read(slot, value)
    if now is before:
        return
    if before is _MISSING:
        slot.__delete__(value)
    else:
        slot.__set__(value, before)


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _restore_cell(cell: CellType, before: Any) -> None:
    if _content_of(cell) is before:
        return
    if before is _MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = before


def _restore_class(kind: type[Any], before: Mapping[str, Any]) -> None:
    now = {name for name in vars(kind) if not name.startswith("__")}
    for name in now - before.keys():
        type.__delattr__(kind, name)
    for name, value in before.items():
        if vars(kind).get(name, _MISSING) is not value:
            type.__setattr__(kind, name, value)


def _restore_set(now: set[Any], before: set[Any]) -> None:
    if now != before:
        now.clear()
        now.update(before)


def _restore_items(now: Any, before: Any) -> None:
    if now != before:
        now[:] = before


def _restore_position(file: Any, position: int) -> None:
    if not file.closed and file.tell() != position:
        file.seek(position)


def _restore_buffers(now: dict[str, Tensor | None], before: dict[str, Tensor | None]) -> None:
    """Restore the buffers of a module; buffers that have moved with it to a different device stay there."""
    for name in now.keys() - before.keys():
        del now[name]
    for name, tensor in before.items():
        there = now.get(name)
        has_moved = tensor is not None and there is not None and there.device != tensor.device
        now[name] = tensor.to(there.device) if has_moved and tensor is not None and there is not None else tensor
