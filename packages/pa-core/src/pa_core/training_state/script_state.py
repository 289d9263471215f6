"""What a script keeps next to the parts of a run: stored by its place where that is safe, or named in a warning."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pa_core import distributed
from pa_core._tensors import buffers_of_module, is_sharded, parameters_of_module, supports_state_dict
from pa_core.data.custom_loader import innermost, is_keyed
from pa_core.training_state.snapshotable import ResumableRun, modules_of
from pa_core.training_state.stored_values import StoredValue, place_of_owner
from pa_core.user_warnings import warn_user
from pa_data import loader_parts
from pa_data.drawn_state import DrawnState
from pa_data.state_search import Found, find_state, generators_of_loader

_MOST_SHOWN = 8
_HOW_TO_SEED = "torch.randint(2**63 - 1, ()).item()"


class _Before(NamedTuple):
    """A piece of state as it was when the run began."""

    value_type: type
    mark: object


class ScriptState:
    """Compares what the objects of a script hold when a run has begun with what they hold at a save.

    What steps have changed is stored by its place, and put back when the run is resumed: numbers, strings, containers
    of these, small arrays and generators, of what was there when the run began. What is not stored is named in one
    warning. Steps pay nothing for it.

    Args:
        run: The run, once all hooks and callbacks of its start were called.
        registered: Objects that are part of each state.
    """

    def __init__(self, run: ResumableRun, registered: Sequence[object]) -> None:
        self._clocks = read_clocks()
        self._before = dict[str, _Before]()
        self._by_identity = dict[int, _Before]()
        self._owners = {name: type(one) for name, one in _roots(run).items()}
        self._built = dict[int, set[str]]()
        for one in find_script_state(run, registered):
            before = _Before(type(one.value), one.mark)
            self._before[one.place] = before
            if not one.is_single:
                self._by_identity[id(one.value)] = before
            self._owners[place_of_owner(one)] = type(one.owner)
            if one.value is False:
                self._built[id(one.owner)] = {*_with_value(one)}
        self._drawn = DrawnState(_data_roots(run), [*_roots(run).values(), *_saved_with_loader(run)])
        self._has_warned = False

    def capture(self, run: ResumableRun, parts: Mapping[str, Any], registered: Sequence[object]) -> dict[str, Any]:
        """Return what this process stores, by place, and warn about what is not stored, once in a run.

        Args:
            run: The run.
            parts: What else the state holds.
            registered: As at the start.
        """
        names = {*_names_in(parts["schedulers"]), *_names_in(parts["optimizers"])}
        stored, lost = dict[str, Any](), list[Found]()
        for one in find_script_state(run, registered):
            before = self._before.get(one.place)
            if self._is_as_before(one, before) or self._begins_anew(one):
                continue
            if one.place.startswith(("scheduler", "optimizer")) and one.name in names:
                continue
            entry = StoredValue.of(one) if self._has_place(one, before) else None
            if entry is not None:
                stored[one.place] = entry._asdict()
            elif self._is_lost(one, before):
                lost.append(one)
        if not self._has_warned and distributed.rank() == 0:
            self._warn([one.place for one in _not_in(parts, lost)], self._drawn_places(run))
        return stored

    def _is_as_before(self, found: Found, before: _Before | None) -> bool:
        """Whether a value has not changed, though something else may lead to it now."""
        if before is None and not found.is_single:
            before = self._by_identity.get(id(found.value))
        return before is not None and before.mark == found.mark

    def _has_place(self, found: Found, before: _Before | None) -> bool:
        """Whether another process has what holds it. What all runs of a process share belongs to none of them.

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

    def _is_lost(self, found: Found, before: _Before | None) -> bool:
        """Whether later steps may need what is not stored. What a model or callback leaves behind they rarely do."""
        value, of_run = found.value, found.place.startswith(("trainer.", "run."))
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or is_sharded(value) or value.is_meta:
                return False
            is_item = isinstance(found.owner, dict | list) and place_of_owner(found) in self._owners
            return _was_tensor(before) or ((of_run or is_item) and not self._is_within_module(found))
        if _is_shared(found):
            is_kept = type(value) in (int, float) or found.is_generator
            return before is not None and (is_kept or (found.is_plain and self._are_counts(before.mark, found.mark)))
        return of_run or (before is not None and before.value_type is type(value))

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

    def _drawn_places(self, run: ResumableRun) -> list[str]:
        """What fetching samples has moved on, in this process or in workers, and no state of a loader has."""
        loader = innermost(run.train_dataloader)
        in_workers = loader.moved_in_workers if is_keyed(loader) else []
        return [*dict.fromkeys([*self._drawn.moved(), *in_workers])]

    def _warn(self, lost: Sequence[str], drawn: Sequence[str]) -> None:
        sentences = list[str]()
        if lost:
            sentences.append(
                f"Training steps have left state in {shown_places(lost)}, which training states do not have: a resumed "
                "run begins without it. If later steps need it, pass what holds it, with state_dict() and "
                "load_state_dict(), to trainer.register_for_checkpointing(...)."
            )
        if drawn:
            sentences.append(
                f"Samples depend on {shown_places(drawn)}, which training states do not have: a resumed run draws "
                f"others. Draw from torch's generator instead, or seed yours for each sample with {_HOW_TO_SEED}."
            )
        if sentences:
            self._has_warned = True
            warn_user(" ".join(sentences))


def restore_script_state(run: ResumableRun, registered: Sequence[object], stored: Mapping[str, Any]) -> list[str]:
    """Put back what ``ScriptState.capture`` returned.

    Args:
        run: The run, once all hooks and callbacks of its start were called.
        registered: Objects that are part of each state.
        stored: What was stored, by place.

    Returns:
        The places that this run does not have, though it has the object in which they were.
    """
    if not stored:
        return []
    found = {one.place: one for one in find_script_state(run, registered)}
    roots = _roots(run)
    owners = roots | {place_of_owner(one): one.owner for one in found.values()}
    missing = list[str]()
    for place, one in stored.items():
        value, present = StoredValue(**one), found.get(place)
        owner = owners.get(value.owner)
        if owner is None or not value.put_back(owner, present):
            missing.append(place)
    return [place for place in missing if any(place.startswith((f"{root}.", f"{root}[")) for root in roots)]


def find_script_state(run: ResumableRun, registered: Sequence[object]) -> Iterator[Found]:
    """Iterate over what the objects of a script hold that are not part of a training state by themselves.

    Args:
        run: The run.
        registered: Objects that are part of each state.
    """
    stateful = filter(supports_state_dict, run.callback_handler.callbacks)
    of_loader = [*loader_parts(innermost(run.train_dataloader)).values(), *_saved_with_loader(run)]
    without = [*stateful, *registered, run.run_history, *of_loader, *_data_roots(run).values()]
    modules = modules_of(run).values()
    tensors = {id(one) for module in modules for one in (*parameters_of_module(module), *buffers_of_module(module))}
    for found in find_state(_roots(run), without=without, installed=False):
        if id(found.value) not in tensors:
            yield found


def _roots(run: ResumableRun) -> dict[str, object]:
    """What is searched, by the names that a script knows."""
    is_trainer = hasattr(type(run), "calculate_train_batch_loss")
    roots: dict[str, object] = {"trainer" if is_trainer else "run": run, "loss_func": run.loss_func, **modules_of(run)}
    for kind, named in (("scheduler", run.named_schedulers()), ("optimizer", run.named_optimizers())):
        roots |= {kind if name == kind else f"{kind}s.{name}": one for name, one in named.items()}
    numbers = Counter[str]()
    for one in run.callback_handler.callbacks:
        if not supports_state_dict(one):
            name = f"callbacks.{type(one).__name__}"
            numbers[name] += 1
            roots[name if numbers[name] == 1 else f"{name}#{numbers[name]}"] = one
    return roots


def _data_roots(run: ResumableRun) -> dict[str, object]:
    """What samples are fetched with, unless it has a state itself."""
    loader: Any = innermost(run.train_dataloader)
    parts = {path.rpartition(".")[2]: part for path, part in loader_parts(loader).items()}
    if is_keyed(loader):
        parts["order"] = loader.given_order
        del parts["loader"]
    elif any(map(supports_state_dict, parts.values())):
        return {}
    roots = {**parts, "collate_fn": getattr(loader, "collate_fn", None)}
    return {name: one for name, one in roots.items() if one is not None and not supports_state_dict(one)}


def _saved_with_loader(run: ResumableRun) -> list[object]:
    """The generators of a custom loader, of its samplers and of its dataset, which are part of a state."""
    loader = innermost(run.train_dataloader)
    if is_keyed(loader):
        return []
    return [found.value for found in generators_of_loader(loader)]


def _was_tensor(before: _Before | None) -> bool:
    return before is not None and issubclass(before.value_type, Tensor)


def _is_weight(found: Found) -> bool:
    """Whether it is a parameter or a buffer, which is saved with its module or not at all."""
    return isinstance(found.owner, torch.nn.Module) and found.name not in found.attributes_of_owner()


def _is_shared(found: Found) -> bool:
    """Whether all runs in a process share it: what a class or the globals of a module hold."""
    owner: Any = found.owner
    kind = cast("type[object]", type(owner))
    return issubclass(kind, type) or (kind is dict and "__builtins__" in owner)


def _with_value(found: Found) -> set[str]:
    """The names of the attributes of what holds a value that are something else than a plain value."""
    attributes = {} if isinstance(found.owner, type) else found.attributes_of_owner()
    return {name for name, value in attributes.items() if not isinstance(value, bool | int | float | str | None)}


def read_clocks() -> tuple[float, ...]:
    """Return what the clocks of this process say."""
    return time.time(), time.monotonic(), time.perf_counter(), time.process_time()


def was_read_since(clocks: Iterable[float], value: object) -> bool:
    """Return whether a value is what a clock has said between an earlier moment and now.

    Args:
        clocks: What the clocks said at that moment.
        value: Any value.

    Example:
        >>> clocks = read_clocks()
        >>> was_read_since(clocks, time.time()), was_read_since(clocks, 0.5)
        (True, False)
    """
    return isinstance(value, float) and any(
        since <= value <= now for since, now in zip(clocks, read_clocks(), strict=True)
    )


def _names_in(states: object) -> Iterator[str]:
    """The keys of nested states."""
    if isinstance(states, Mapping):
        for name, one in cast("Mapping[object, object]", states).items():
            yield str(name)
            yield from _names_in(one)
    elif isinstance(states, list | tuple):
        for one in cast("Iterable[object]", states):
            yield from _names_in(one)


def _not_in(parts: Mapping[str, Any], lost: Sequence[Found]) -> list[Found]:
    """Leave out tensors that are part of the state all the same, some as a copy."""
    if not any(isinstance(one.value, Tensor) for one in lost):
        return [*lost]
    saved = {one.untyped_storage().data_ptr() for one in _tensors_in(parts)}
    copies = [*_tensors_in(parts["callbacks"]), *_tensors_in(parts["objects"])]
    return [one for one in lost if not (isinstance(one.value, Tensor) and _is_saved(one.value, saved, copies))]


def _is_saved(tensor: Tensor, saved: set[int], copies: Sequence[Tensor]) -> bool:
    return tensor.untyped_storage().data_ptr() in saved or any(
        one.shape == tensor.shape and one.dtype == tensor.dtype and torch.equal(one.cpu(), tensor.cpu())
        for one in copies
    )


def _tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested containers that have values in the memory of this process."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not (is_sharded(value) or value.is_meta):
            yield value
    elif isinstance(value, dict):
        for one in cast("dict[object, object]", value).values():
            yield from _tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in cast("Iterable[object]", value):
            yield from _tensors_in(one)


def shown_places(places: Sequence[str]) -> str:
    """Return places as a message names them: of several in an object, the object.

    Args:
        places: The places.
    """
    by_object = Counter(map(_object_of, places))
    shown = [*dict.fromkeys(_object_of(one) if by_object[_object_of(one)] > 1 else one for one in places)]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return ", ".join(shown[:_MOST_SHOWN]) + more


def _object_of(place: str) -> str:
    """The attribute of a root that leads to a place."""
    root, _, rest = place.partition(".")
    if root == "callbacks":
        kind, _, rest = rest.partition(".")
        root = f"{root}.{kind}"
    name = rest.partition(".")[0].partition("[")[0]
    return f"{root}.{name}" if name else root
