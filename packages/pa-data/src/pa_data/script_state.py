"""The state that a script changes: saved by its place, and restored in a new process.

A script keeps more state than its ``state_dict`` objects, for example a counter, the last losses or a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pa_data._keyed_loader import KeyedDataLoader
from pa_data._loader_parts import loader_parts
from pa_data._state_marks import PLAIN, is_generator, is_plain, mark_of, read_clocks, was_read_since
from pa_data._stored_values import StoredValue, place_of_owner
from pa_data.drawn_state import DrawnState
from pa_data.state_search import Found, attributes_of, find_state, generators_of_loader

__all__ = ["ScriptChanges", "ScriptState"]


class ScriptChanges(NamedTuple):
    """The state that a script changed, as ``ScriptState.changes`` returns it.

    A named tuple of two dictionaries, which you unpack as ``stored, lost = state.changes(...)``. A place is the path of
    a value as a script would write it, for example ``"script.step"``, and begins with the name of a searched object.

    Attributes:
        stored: An entry for each changed value that can be restored, by its place: for numbers, strings, containers,
            generators, small tensors and small arrays. Each entry is a dictionary with ``"owner"``, ``"name"``,
            ``"kind"`` and ``"value"``. Save it with ``torch.save``, for example, and pass it to
            ``ScriptState.restore``.
        lost: The other changed values by place, if later steps may need them. They cannot be saved here, so warn about
            them, or save them yourself.

    Example:
        >>> from types import SimpleNamespace
        >>> from pa_data.script_state import ScriptState
        >>> script = SimpleNamespace(step=0)
        >>> state = ScriptState({"script": script})
        >>> script.step = 3
        >>> changes = state.changes({"script": script})
        >>> list(changes.stored), changes.lost
        (['script.step'], {})
    """

    stored: dict[str, dict[str, Any]]
    lost: dict[str, object]


class _Before(NamedTuple):
    """The type and the mark that a value had at first."""

    value_type: type
    mark: object


class ScriptState:
    """Finds the state that a script changes, so that it can be saved and restored in a new process.

    A training script keeps state besides its model and its optimizer, for example a counter, the last losses or a
    generator. Use this class in a training loop or a library that should resume such scripts without knowing their
    variables. If you know them, save them yourself, which is simpler. Create a ``ScriptState`` when the script is
    ready, call ``changes`` for each checkpoint, and call ``restore`` in the restarted script before it continues. The
    class searches attributes, items, closures and hooks, without running code of the script. If the class of an object
    comes from Python's library or an installed package, the object is searched only if it is in ``roots``, or is a
    container, a plain namespace (``types.SimpleNamespace`` or ``argparse.Namespace``), a module, an optimizer, a
    scheduler, a dataset or a loader.

    Only changed values are stored, so that a script may be restarted with other settings. These are numbers, strings,
    containers of them, small arrays, generators, and small tensors that a module has had from the start; small means at
    most 65,536 elements. Some changes are left out, because they have no meaning in another process: readings of
    clocks, and flags that became true when their owner got an object. Values in classes and global variables belong to
    the whole process, and objects that were created later do not exist in the new process yet. Such values are not
    stored either.

    Args:
        roots: The objects to search, by name; places begin with these names. Every change in the first object counts.
            In the other objects, only changes to values that were present at the start count.
        loader: The training loader, or None, the default. It is not searched for state to store, because loaders save
            their own, but ``drawn`` reports about it.
        without: Objects that are not searched, because they are saved in another way, for example parameters and
            buffers. By default there are none.

    Example:
        >>> from collections import deque
        >>> from types import SimpleNamespace
        >>> from pa_data.script_state import ScriptState
        >>> script = SimpleNamespace(folder="first", step=0, losses=deque(maxlen=2))
        >>> state = ScriptState({"script": script})
        >>> script.step += 1
        >>> script.losses.append(0.5)
        >>> stored, lost = state.changes({"script": script})
        >>> resumed = SimpleNamespace(folder="second", step=0, losses=deque(maxlen=2))
        >>> ScriptState.restore(stored, {"script": resumed})
        []
        >>> resumed.folder, resumed.step, resumed.losses
        ('second', 1, deque([0.5], maxlen=2))
    """

    def __init__(self, roots: Mapping[str, object], loader: object = None, without: Iterable[object] = ()) -> None:
        without = [*without]
        self._clocks = read_clocks()
        self._before: dict[str, _Before] = {}
        self._by_identity: dict[int, _Before] = {}
        self._owners: dict[str, type] = {name: type(root) for name, root in roots.items()}
        self._built: dict[int, set[str]] = {}
        for found in _find(roots, loader, without):
            before = _Before(type(found.value), mark_of(found.value))
            self._before[found.place] = before
            if type(found.value) not in PLAIN:
                self._by_identity[id(found.value)] = before
            self._owners[place_of_owner(found)] = type(found.owner)
            if found.value is False:
                self._built[id(found.owner)] = {*_with_value(found)}
        self._loader = loader
        self._drawn = DrawnState(_fetching(loader), [*roots.values(), *_saved_with_loader(loader)])

    def changes(
        self,
        roots: Mapping[str, object],
        loader: object = None,
        without: Iterable[object] = (),
        *,
        saved: Mapping[str, object] = MappingProxyType({}),
        accepts: Callable[[dict[str, Any]], bool] | None = None,
    ) -> ScriptChanges:
        """Return the state that has changed since this object was created, to be saved in a checkpoint.

        You call it when you save a checkpoint, on each process, as often as you like. Changes are always counted from
        the creation of this object. The values are copied, so later changes do not affect the result.

        Args:
            roots: The objects to search, by the names under which they were passed to the constructor of
                ``ScriptState``.
            loader: The training loader, as it was passed to the constructor. None by default.
            without: Objects that are not searched, as they were passed to the constructor. By default there are none.
            saved: The states that some of these objects returned from ``state_dict``, by the names of the
                objects. Attributes are left out if their names are in the state, since they are saved with it. By
                default there are no states.
            accepts: A function that is called with the entry of a value, and returns whether your file format can hold
                it; a value that it rejects is in ``lost``. By default, all entries are stored.

        Returns:
            A ``ScriptChanges``: the entries to save as ``stored``, and the values that cannot be saved as ``lost``,
            both by place.

        Example:
            >>> from types import SimpleNamespace
            >>> from pa_data.script_state import ScriptState
            >>> script = SimpleNamespace(step=0, name="first")
            >>> state = ScriptState({"script": script})
            >>> script.step = 3
            >>> list(state.changes({"script": script}).stored)
            ['script.step']
        """
        stored, lost = dict[str, dict[str, Any]](), dict[str, object]()
        names = {root: {*_names_in(state)} for root, state in saved.items()}
        first = next(iter(roots), "")
        for found in _find(roots, loader, without):
            before = self._before.get(found.place)
            if self._is_as_before(found, before) or self._begins_anew(found):
                continue
            if any(found.place.startswith(f"{root}.") and found.name in named for root, named in names.items()):
                continue
            entry = StoredValue.of(found) if self._has_place(found, before) else None
            if entry is not None and (accepts is None or accepts(entry._asdict())):
                stored[found.place] = entry._asdict()
            elif self._is_lost(found, before, is_of_first=found.place.startswith(f"{first}.")):
                lost[found.place] = found.value
        return ScriptChanges(stored, lost)

    def drawn(self) -> list[str]:
        """Return the places of generators and counters that reading samples has changed, in this process or in workers.

        You call it after some batches, for example at the end of an epoch, to warn that a resumed run will draw
        different random numbers for its samples. These values are not stored, because they may belong to a batch that
        was read ahead. Objects with ``state_dict`` and ``load_state_dict`` are not included, nor are the generators of
        a plain loader, of its samplers and of its dataset. Save these yourself.

        Returns:
            The places, beginning with the part of the loader, for example ``"dataset.noise"``; an empty list if nothing
            has changed, or without a loader.

        Example:
            >>> import random
            >>> from torch.utils.data import Dataset
            >>> from pa_data import KeyedDataLoader
            >>> from pa_data.script_state import ScriptState
            >>> class Noisy(Dataset[float]):
            ...     def __len__(self) -> int:
            ...         return 4
            ...     def __getitem__(self, index: int) -> float:
            ...         return self.noise.random()
            >>> data = Noisy()
            >>> data.noise = random.Random(0)
            >>> loader = KeyedDataLoader(data)
            >>> state = ScriptState({}, loader)
            >>> batches = list(loader)
            >>> state.drawn()
            ['dataset.noise']
        """
        in_workers: list[str] = getattr(self._loader, "moved_in_workers", [])  # of a requested loader
        return [*dict.fromkeys([*self._drawn.moved(), *in_workers])]

    @staticmethod
    def restore(
        stored: Mapping[str, Mapping[str, Any]],
        roots: Mapping[str, object],
        loader: object = None,
        without: Iterable[object] = (),
    ) -> list[str]:
        """Restore the saved entries in a script that has been started again.

        You call it on each process when the script has created its objects, and before it continues. It needs no
        ``ScriptState``. Values are set without running code of the script, and containers keep their identity. Create
        the ``ScriptState`` for later checkpoints before this call, so that restored values count as changes.

        Args:
            stored: The ``stored`` entries of ``ScriptChanges``, by place.
            roots: The objects to search in this process, by the names under which they were passed to the
                constructor of ``ScriptState``.
            loader: The training loader, as it was passed to the constructor. None by default.
            without: Objects that are not searched, as they were passed to the constructor. By default there are none.

        Returns:
            The places of entries that could not be restored, although the object that they begin with is in ``roots``,
            for example because an attribute on their path is gone. Places that begin with a different name are ignored.

        Raises:
            TypeError: An entry is not an entry of ``ScriptChanges``.

        Example:
            >>> from types import SimpleNamespace
            >>> from pa_data.script_state import ScriptState
            >>> script = SimpleNamespace(step=0)
            >>> state = ScriptState({"script": script})
            >>> script.step = 3
            >>> stored = state.changes({"script": script}).stored
            >>> resumed = SimpleNamespace(step=0)
            >>> ScriptState.restore(stored, {"script": resumed}), resumed.step
            ([], 3)
        """
        if not stored:
            return []
        by_place = {found.place: found for found in _find(roots, loader, without)}
        owners = {**roots, **{place_of_owner(found): found.owner for found in by_place.values()}}
        missing = list[str]()
        for place, entry in stored.items():
            value, present = StoredValue(**entry), by_place.get(place)
            owner = owners.get(value.owner)
            if owner is None or not value.put_back(owner, present):
                missing.append(place)
        return [place for place in missing if any(place.startswith((f"{root}.", f"{root}[")) for root in roots)]

    @staticmethod
    def same_on_all(stored: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
        """Return the entries that are equal on all processes, for a new run with a different number of processes.

        You call it before ``restore`` in such a run, because a value that belongs to a single process, for example its
        rank, is wrong on any other process. With the same number of processes, each process restores its own entries
        instead.

        Args:
            stored: The ``stored`` entries of each process, at least one. Arrays and tensors are compared by their
                elements.

        Returns:
            The common entries by place, for ``restore`` on every process.

        Raises:
            ValueError: ``stored`` is empty.

        Example:
            >>> from pa_data.script_state import ScriptState
            >>> first = {"script.step": {"value": 3}, "script.rank": {"value": 0}}
            >>> second = {"script.step": {"value": 3}, "script.rank": {"value": 1}}
            >>> ScriptState.same_on_all([first, second])
            {'script.step': {'value': 3}}
        """
        first, *others = stored
        return {
            place: entry for place, entry in first.items() if all(_is_same(entry, other.get(place)) for other in others)
        }

    def _is_as_before(self, found: Found, before: _Before | None) -> bool:
        """Return whether a value is unchanged, even if another object holds it now."""
        if before is None and type(found.value) not in PLAIN:
            before = self._by_identity.get(id(found.value))
        return before is not None and before.mark == mark_of(found.value)

    def _has_place(self, found: Found, before: _Before | None) -> bool:
        """Return whether the owner of a value exists in another process, and belongs only to this script.

        A tensor has such an owner only in a module that keeps it from the start, such as a metric.
        """
        if isinstance(found.value, Tensor) and not (isinstance(found.owner, torch.nn.Module) and _was_tensor(before)):
            return False
        is_new = self._owners.get(place_of_owner(found)) is not type(found.owner)
        return not (is_new or _is_shared(found) or _is_weight(found))

    def _begins_anew(self, found: Found) -> bool:
        """Return whether a value has no meaning in another process: the reading of a clock, or a flag for an object."""
        value = found.value
        if type(value) is float:
            return was_read_since(self._clocks, value)
        if type(value) is tuple:
            parts = cast("tuple[object, ...]", value)
            return any(self._begins_anew(found._replace(value=part)) for part in parts if type(part) is float)
        return value is True and bool(_with_value(found) - self._built.get(id(found.owner), {*()}))

    def _is_lost(self, found: Found, before: _Before | None, *, is_of_first: bool) -> bool:
        """Return whether later steps may need a value that is not stored; new values in a model are rarely needed."""
        value = found.value
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or hasattr(value, "placements") or value.is_meta:
                return False
            is_item = isinstance(found.owner, dict | list) and place_of_owner(found) in self._owners
            return _was_tensor(before) or ((is_of_first or is_item) and not self._is_within_module(found))
        if _is_shared(found):
            is_kept = type(value) in (int, float) or is_generator(value)
            return before is not None and (
                is_kept or (is_plain(value) and self._are_counts(before.mark, mark_of(value)))
            )
        return is_of_first or (before is not None and before.value_type is type(value))

    def _are_counts(self, before: Any, now: Any) -> bool:
        """Return whether numbers changed at their places in a container; a container that grows is mostly a log."""
        if type(now) in (int, float):
            return type(before) in (int, float) and before != now and not was_read_since(self._clocks, now)
        if {type(before), type(now)} != {tuple}:
            return False
        if now and isinstance(now[0], type):
            if before[:1] != now[:1]:
                return False
            if issubclass(now[0], dict) and before[1][0] != now[1][0]:  # other keys
                return False
        return len(before) == len(now) and any(map(self._are_counts, before, now))

    def _is_within_module(self, found: Found) -> bool:
        """Return whether a value is within a module: a new value there may belong to a single forward pass."""
        place = found.place
        while place := place[: max(place.rfind("."), place.rfind("["), 0)]:
            if issubclass(self._owners.get(place, object), torch.nn.Module):
                return True
        return False


def _find(roots: Mapping[str, object], loader: object, without: Iterable[object]) -> Iterator[Found]:
    of_loader = [*loader_parts(loader).values(), *_saved_with_loader(loader), *_fetching(loader).values()]
    return find_state(roots, without=[*without, *of_loader], installed=False)


def _fetching(loader: object) -> dict[str, object]:
    """Return the objects that fetch samples, without objects that have a state themselves."""
    parts = {path.rpartition(".")[2]: part for path, part in loader_parts(loader).items()}
    collate_fn: object = getattr(loader, "collate_fn", None)
    if isinstance(loader, KeyedDataLoader):
        parts["order"] = loader.given_order
        del parts["loader"]
    elif any(map(_has_state, parts.values())):
        return {}
    roots = {**parts, "collate_fn": collate_fn}
    return {name: part for name, part in roots.items() if part is not None and not _has_state(part)}


def _saved_with_loader(loader: object) -> list[object]:
    """Return the generators of a loader without its own order, of its samplers and of its dataset."""
    return [] if isinstance(loader, KeyedDataLoader) else [found.value for found in generators_of_loader(loader)]


def _names_in(states: object) -> Iterator[object]:
    """Iterate over the keys of nested states."""
    if isinstance(states, Mapping):
        for name, state in cast("Mapping[object, object]", states).items():
            yield name
            yield from _names_in(state)
    elif isinstance(states, list | tuple):
        for state in cast("Iterable[object]", states):
            yield from _names_in(state)


def _has_state(part: object) -> bool:
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))


def _was_tensor(before: _Before | None) -> bool:
    return before is not None and issubclass(before.value_type, Tensor)


def _is_weight(found: Found) -> bool:
    """Return whether a value is a parameter or a buffer, which is only saved with its module."""
    return isinstance(found.owner, torch.nn.Module) and found.name not in attributes_of(found.owner)


def _is_shared(found: Found) -> bool:
    """Return whether a value belongs to the whole process, as in a class or the global variables of a module."""
    owner: Any = found.owner
    kind = cast("type[object]", type(owner))
    return issubclass(kind, type) or (kind is dict and "__builtins__" in owner)


def _with_value(found: Found) -> set[str]:
    """Return the names of the attributes of the owner that are not plain values."""
    attributes = {} if isinstance(found.owner, type) else attributes_of(found.owner)
    return {name for name, value in attributes.items() if not isinstance(value, bool | int | float | str | None)}


def _is_same(entry: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and all(_listed(value) == _listed(other[name]) for name, value in entry.items())


def _listed(value: Any) -> object:
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in cast("dict[object, object]", value).items()}
    return value.tolist() if hasattr(value, "tolist") else value
