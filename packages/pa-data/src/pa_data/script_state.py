"""What the objects of a script hold that has changed: stored by its place and put back in another process, or named.

A script keeps more than the objects whose ``state_dict`` it saves: a counter, the last losses, a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pa_data._keyed_loader import KeyedDataLoader
from pa_data._loader_parts import loader_parts
from pa_data._state_marks import read_clocks, was_read_since
from pa_data._stored_values import StoredValue, place_of_owner
from pa_data.drawn_state import DrawnState
from pa_data.state_search import Found, find_state, generators_of_loader

__all__ = ["ScriptChanges", "ScriptState"]


class ScriptChanges(NamedTuple):
    """What objects hold that has changed since a moment.

    Attributes:
        stored: What `ScriptState.restore` puts back, by place: plain values, small tensors and small arrays.
        lost: The values by place that are not stored, though what comes later may need them.
    """

    stored: dict[str, dict[str, Any]]
    lost: dict[str, object]


class _Before(NamedTuple):
    """A piece of state as it was at first."""

    value_type: type
    mark: object


class ScriptState:
    """Compares what the objects of a script hold at first with what they hold later.

    What has changed is stored by its place: numbers, strings, containers of these, small arrays and generators, and
    small tensors that a module has from the start. Whoever runs the same script in another process puts it back there.
    What was the same all the time is not stored, so that a script may be started with other settings. Attributes,
    items, closures and hooks are searched, of objects of installed packages only in modules, optimizers, schedulers,
    datasets and loaders; no code of the script runs.

    Neither are stored: readings of clocks; a flag that became true when its owner gained an object, which is to be made
    again; what classes and modules of the script hold, which everything in a process shares; and objects that were made
    later, which the other process does not have yet.

    Args:
        roots: The objects by the names that places begin with. In the first root every change counts, in the others
            changes of what was there at first.
        loader: The data loader of the script. What it draws its batches from is not searched, but see `drawn`.
        without: Objects that are saved in another way, such as the parameters and buffers of a model.

    Example:
        >>> from collections import deque
        >>> class Script:
        ...     def __init__(self, folder: str) -> None:
        ...         self.folder, self.step, self.losses = folder, 0, deque(maxlen=2)
        >>> script = Script("first")
        >>> state = ScriptState({"script": script})
        >>> script.step += 1
        >>> script.losses.append(0.5)
        >>> stored, lost = state.changes({"script": script})
        >>> resumed = Script("second")
        >>> ScriptState.restore({"script": resumed}, stored=stored)
        []
        >>> resumed.folder, resumed.step, resumed.losses
        ('second', 1, deque([0.5], maxlen=2))
    """

    def __init__(self, roots: Mapping[str, object], loader: object = None, without: Iterable[object] = ()) -> None:
        without = [*without]
        self._clocks = read_clocks()
        self._before: dict[str, _Before] = {}
        self._by_identity: dict[int, _Before] = {}
        self._owners: dict[str, type] = {name: type(one) for name, one in roots.items()}
        self._built: dict[int, set[str]] = {}
        for one in _find(roots, loader, without):
            before = _Before(type(one.value), one.mark)
            self._before[one.place] = before
            if not one.is_single:
                self._by_identity[id(one.value)] = before
            self._owners[place_of_owner(one)] = type(one.owner)
            if one.value is False:
                self._built[id(one.owner)] = {*_with_value(one)}
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
        """Return what has changed since the beginning.

        Args:
            roots: As at the beginning.
            loader: As at the beginning.
            without: As at the beginning.
            saved: What the ``state_dict`` of some of the roots, by name, has returned: what it names is left out.
            accepts: Called with what is to be stored of a value, returns whether it can be written to where it goes;
                None if everything can.
        """
        stored, lost = dict[str, dict[str, Any]](), dict[str, object]()
        names = {root: {*_names_in(state)} for root, state in saved.items()}
        first = next(iter(roots), "")
        for one in _find(roots, loader, without):
            before = self._before.get(one.place)
            if self._is_as_before(one, before) or self._begins_anew(one):
                continue
            if any(one.place.startswith(f"{root}.") and one.name in named for root, named in names.items()):
                continue
            entry = StoredValue.of(one) if self._has_place(one, before) else None
            if entry is not None and (accepts is None or accepts(entry._asdict())):
                stored[one.place] = entry._asdict()
            elif self._is_lost(one, before, is_of_first=one.place.startswith(f"{first}.")):
                lost[one.place] = one.value
        return ScriptChanges(stored, lost)

    def drawn(self) -> list[str]:
        """Return the places of generators and counters that fetching samples has moved on, here or in workers.

        They are not stored: they may belong to a batch that was fetched ahead. What has a ``state_dict``, and
        the generators of a plain loader, its samplers and its dataset, are to be saved with the loader.
        """
        in_workers: list[str] = getattr(self._loader, "moved_in_workers", [])  # of a requested loader
        return [*dict.fromkeys([*self._drawn.moved(), *in_workers])]

    @staticmethod
    def restore(
        roots: Mapping[str, object],
        loader: object = None,
        without: Iterable[object] = (),
        *,
        stored: Mapping[str, Mapping[str, Any]],
    ) -> list[str]:
        """Put back what `changes` returned, in a script that has been started again.

        Args:
            roots: As at the beginning.
            loader: As at the beginning.
            without: As at the beginning.
            stored: What was stored.

        Returns:
            The places that are not there, though the root is in which they were.
        """
        if not stored:
            return []
        found = {one.place: one for one in _find(roots, loader, without)}
        owners = {**roots, **{place_of_owner(one): one.owner for one in found.values()}}
        missing = list[str]()
        for place, one in stored.items():
            value, present = StoredValue(**one), found.get(place)
            owner = owners.get(value.owner)
            if owner is None or not value.put_back(owner, present):
                missing.append(place)
        return [place for place in missing if any(place.startswith((f"{root}.", f"{root}[")) for root in roots)]

    @staticmethod
    def same_on_all(stored: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
        """Return what several processes have all stored; of arrays and tensors, the values count.

        Args:
            stored: What each has stored.
        """
        first, *others = stored
        return {place: one for place, one in first.items() if all(_is_same(one, other.get(place)) for other in others)}

    def _is_as_before(self, found: Found, before: _Before | None) -> bool:
        """Whether a value has not changed, though something else may lead to it now."""
        if before is None and not found.is_single:
            before = self._by_identity.get(id(found.value))
        return before is not None and before.mark == found.mark

    def _has_place(self, found: Found, before: _Before | None) -> bool:
        """Whether another process has what holds it. What everything in a process shares belongs to no script.

        Of tensors, those have one that a module keeps from the start, such as the state of a metric.
        """
        if isinstance(found.value, Tensor) and not (isinstance(found.owner, torch.nn.Module) and _was_tensor(before)):
            return False
        is_new = self._owners.get(place_of_owner(found)) is not type(found.owner)
        return not (is_new or _is_shared(found) or _is_weight(found))

    def _begins_anew(self, found: Found) -> bool:
        """Whether a value means nothing in another process: a reading of a clock, or that something was made."""
        value = found.value
        if type(value) is float:
            return was_read_since(self._clocks, value)
        if type(value) is tuple:
            parts = cast("tuple[object, ...]", value)
            return any(self._begins_anew(found._replace(value=one)) for one in parts if type(one) is float)
        return value is True and bool(_with_value(found) - self._built.get(id(found.owner), {*()}))

    def _is_lost(self, found: Found, before: _Before | None, *, is_of_first: bool) -> bool:
        """Whether later steps may need what is not stored. What a model or callback leaves behind they rarely do."""
        value = found.value
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or hasattr(value, "placements") or value.is_meta:
                return False
            is_item = isinstance(found.owner, dict | list) and place_of_owner(found) in self._owners
            return _was_tensor(before) or ((is_of_first or is_item) and not self._is_within_module(found))
        if _is_shared(found):
            is_kept = type(value) in (int, float) or found.is_generator
            return before is not None and (is_kept or (found.is_plain and self._are_counts(before.mark, found.mark)))
        return is_of_first or (before is not None and before.value_type is type(value))

    def _are_counts(self, before: Any, now: Any) -> bool:
        """Whether numbers have changed in their places within a container; what grows is mostly a cache or a log."""
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
        """Whether a module leads to a value: what it has made within steps may belong to one pass alone."""
        place = found.place
        while place := place[: max(place.rfind("."), place.rfind("["), 0)]:
            if issubclass(self._owners.get(place, object), torch.nn.Module):
                return True
        return False


def _find(roots: Mapping[str, object], loader: object, without: Iterable[object]) -> Iterator[Found]:
    of_loader = [*loader_parts(loader).values(), *_saved_with_loader(loader), *_fetching(loader).values()]
    return find_state(roots, without=[*without, *of_loader], installed=False)


def _fetching(loader: object) -> dict[str, object]:
    """What samples are fetched with, unless it has a state itself."""
    parts = {path.rpartition(".")[2]: part for path, part in loader_parts(loader).items()}
    collate_fn: object = getattr(loader, "collate_fn", None)
    if isinstance(loader, KeyedDataLoader):
        parts["order"] = loader.given_order
        del parts["loader"]
    elif any(map(_has_state, parts.values())):
        return {}
    roots = {**parts, "collate_fn": collate_fn}
    return {name: one for name, one in roots.items() if one is not None and not _has_state(one)}


def _saved_with_loader(loader: object) -> list[object]:
    """The generators of a loader without its own order, of its samplers and of its dataset."""
    return [] if isinstance(loader, KeyedDataLoader) else [found.value for found in generators_of_loader(loader)]


def _names_in(states: object) -> Iterator[object]:
    """The keys of nested states."""
    if isinstance(states, Mapping):
        for name, one in cast("Mapping[object, object]", states).items():
            yield name
            yield from _names_in(one)
    elif isinstance(states, list | tuple):
        for one in cast("Iterable[object]", states):
            yield from _names_in(one)


def _has_state(one: object) -> bool:
    return all(callable(getattr(one, name, None)) for name in ("state_dict", "load_state_dict"))


def _was_tensor(before: _Before | None) -> bool:
    return before is not None and issubclass(before.value_type, Tensor)


def _is_weight(found: Found) -> bool:
    """Whether it is a parameter or a buffer, which is saved with its module or not at all."""
    return isinstance(found.owner, torch.nn.Module) and found.name not in found.attributes_of_owner()


def _is_shared(found: Found) -> bool:
    """Whether everything in a process shares it: what a class or the globals of a module hold."""
    owner: Any = found.owner
    kind = cast("type[object]", type(owner))
    return issubclass(kind, type) or (kind is dict and "__builtins__" in owner)


def _with_value(found: Found) -> set[str]:
    """The names of the attributes of what holds a value that are something else than a plain value."""
    attributes = {} if isinstance(found.owner, type) else found.attributes_of_owner()
    return {name for name, value in attributes.items() if not isinstance(value, bool | int | float | str | None)}


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and all(_listed(value) == _listed(other[name]) for name, value in one.items())


def _listed(value: Any) -> object:
    if isinstance(value, dict):
        return {name: _listed(one) for name, one in cast("dict[object, object]", value).items()}
    return value.tolist() if hasattr(value, "tolist") else value
