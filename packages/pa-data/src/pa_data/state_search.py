"""A search for state: numbers, tensors and generators that the objects of a script hold, no matter where.

It reads attributes, items, closures, and the globals that functions of the script name. It runs no code of the script,
not even properties, and is limited: long lists are not searched.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import random
import sys
from argparse import Namespace
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from pa_data._loader_parts import loader_parts
from pa_data._state_marks import (
    PLAIN,
    is_array,
    is_container,
    is_generator,
    is_plain,
    mark_of,
    read_clocks,
    set_state_of,
    state_of,
    was_read_since,
)

__all__ = [
    "PLAIN",
    "Found",
    "Note",
    "Snapshot",
    "attributes_of",
    "find_state",
    "generators_of_loader",
    "is_array",
    "is_generator",
    "is_of_script",
    "is_plain",
    "mark_of",
    "names_in",
]

_STDLIB: Final = str(Path(inspect.__file__).parent)
_MOST_ITEMS, _MOST_OBJECTS = 1_000, 200_000

_OURS: Final = frozenset(
    f"pa_{name}"
    for name in (
        *("callbacks_extra", "checkpoint", "core", "data", "distributed", "finetuning", "predictions", "preflight"),
        *("schedulers", "trial"),
    )
) | {"pytorch_accelerated"}
_NOT_FOLLOWED: Final = (
    _OURS
    | {"accelerate", "numpy", "pandas", "polars", "pyarrow", "torch"}
    | (sys.stdlib_module_names - {"argparse", "types"})  # which have plain namespaces
)
_FOLLOWED_OF_THEM: Final = (
    *(nn.Module, Optimizer, lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau),
    *(Dataset, Sampler, DataLoader),
    *(SimpleNamespace, Namespace, UserDict, UserList),
)
_SAVED_OF_OPTIMIZERS: Final = frozenset({"state", "param_groups", "defaults"})
"""The attributes of an optimizer that are saved with it, if it is a root."""


class Found(NamedTuple):
    """A piece of state.

    Attributes:
        place: The place of the value, as a script would write it: ``"trainer.step"``, ``"teacher.weight"``,
            ``"train.RNG"``.
        owner: The holder of the value: an object, a class, a container, a cell of a closure, or the globals of a
            module.
        name: The attribute, key or index; for a cell, ``"cell_contents"``.
        value: A plain value, a container of plain values, a container that is too large to be searched, a tensor, an
            array, a generator, or an ``itertools.count``.
    """

    place: str
    owner: object
    name: Any
    value: object

    @property
    def generator_state(self) -> Any:
        """The state of the value, which is a generator."""
        return state_of(self.value)

    def set_generator_state(self, state: Any) -> None:
        """Restore the state of the value, which is a generator.

        Args:
            state: The ``generator_state`` of a generator of the same class.
        """
        set_state_of(self.value, state)


_Follows: TypeAlias = Callable[[str | None], bool]


def find_state(
    roots: Mapping[str, object], *, without: Iterable[object] = (), installed: bool = True, holders: bool = False
) -> Iterator[Found]:
    """Iterate over the state that objects hold, each piece once, beginning with the pieces nearest to the roots.

    The generators that everything in a process shares are left out, since they are saved in another way.

    Args:
        roots: The objects by name. An object that is a root has this name wherever it is found.
        without: Objects that are not searched.
        installed: Whether to search objects of installed packages. Modules, datasets, optimizers and schedulers are
            always searched.
        holders: Whether to yield the objects in ``roots``, too, each before its contents.

    Example:
        >>> from types import SimpleNamespace
        >>> roots = {"trainer": SimpleNamespace(step=3, losses=deque([0.5]), nested=SimpleNamespace(stage="warm-up"))}
        >>> [(found.place, found.value) for found in find_state(roots)]
        [('trainer.step', 3), ('trainer.losses', deque([0.5])), ('trainer.nested.stage', 'warm-up')]
    """
    waiting = deque(Found(name, roots, name, value) for name, value in roots.items())
    # With the objects: without them, their identities would be given to others.
    seen = {id(known): known for known in (*_shared_generators(), *without)}
    follows = _is_followed if installed else _is_of_script
    num_roots = len(waiting)
    while waiting and len(seen) < _MOST_OBJECTS:
        found, num_roots = waiting.popleft(), num_roots - 1
        value = found.value
        if type(value) in PLAIN or isinstance(value, Enum):
            yield found
        elif id(value) not in seen:
            seen[id(value)] = value
            if _is_leaf(value):
                yield found
                continue
            is_root = num_roots >= 0
            if holders and (is_root or _is_looked_into(value, follows)):
                yield found
            waiting.extend(_parts(found.place, value, follows, is_root=is_root))


class Note(NamedTuple):
    """The record of a piece of state in a snapshot.

    Attributes:
        owner: The identity of the holder of the value.
        kind_of_owner: The class of the holder.
        name: The attribute, key or index.
        mark: The mark of the value, which shows whether the value has changed.
    """

    owner: int
    kind_of_owner: type
    name: Any
    mark: object

    def differs(self, earlier: Note) -> bool:
        """Return whether the value differs from the value in an earlier note."""
        return type(self.mark) is not type(earlier.mark) or self.mark != earlier.mark


class Snapshot:
    """The state of objects at a moment, to compare it with a different moment.

    Only some elements of large tensors and arrays are read.

    Args:
        roots: The objects by name.
        without: Objects that are not searched.

    Attributes:
        notes: The records of the pieces of state, by place.

    Example:
        >>> from types import SimpleNamespace
        >>> script = SimpleNamespace(step=0, name="run")
        >>> before = Snapshot({"script": script})
        >>> script.step += 1
        >>> before.changed(Snapshot({"script": script}))
        ['script.step']
    """

    def __init__(self, roots: Mapping[str, object], *, without: Iterable[object] = ()) -> None:
        found = find_state(roots, without=without)
        self._clocks = read_clocks()
        self.notes: dict[str, Note] = {
            piece.place: Note(id(piece.owner), type(piece.owner), piece.name, mark_of(piece.value)) for piece in found
        }

    def changed(self, later: Snapshot, *, but_clocks: bool = False) -> list[str]:
        """Return the places whose state appeared, changed or disappeared.

        Args:
            later: A snapshot of a later moment, of the same roots.
            but_clocks: Whether to leave out numbers that a clock has shown between the two moments.
        """
        before, after = self.notes, later.notes
        differ = [place for place, note in after.items() if place in before and note.differs(before[place])]
        appeared = [place for place in after if place not in before]
        gone = [place for place in before if place not in after]
        left_out = _unchanged_elsewhere(before, gone, after, appeared)
        if but_clocks:
            left_out |= {place for place, note in after.items() if was_read_since(self._clocks, note.mark)}
        return [place for place in (*differ, *appeared, *gone) if place not in left_out]


def _unchanged_elsewhere(
    before: Mapping[str, Note], gone: Iterable[str], after: Mapping[str, Note], appeared: Iterable[str]
) -> set[str]:
    """Return the old and the new places of unchanged values that were found in different ways."""
    by_owner = {(before[place].owner, repr(before[place].name)): place for place in gone}
    moved = set[str]()
    for place in appeared:
        note = after[place]
        earlier = by_owner.get((note.owner, repr(note.name)))
        if earlier is not None and not note.differs(before[earlier]):
            moved |= {place, earlier}
    return moved


@functools.cache
def is_of_script(module: str) -> bool:
    """Return whether a module is part of the script, not of Python, of these packages or of an installed package.

    Args:
        module: The name of the module.

    Example:
        >>> is_of_script("__main__"), is_of_script("torch.nn"), is_of_script("random")
        (True, False, False)
    """
    if module.partition(".")[0] in _NOT_FOLLOWED:
        return False
    # A script may be started by an installed program, such as a debugger.
    path = "" if module == "__main__" else getattr(sys.modules.get(module), "__file__", None) or ""
    is_installed = "site-packages" in path or "dist-packages" in path
    return not (is_installed or path.startswith(_STDLIB))


def _is_followed(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _NOT_FOLLOWED


def _is_of_script(module: str | None) -> bool:
    return is_of_script(module or "")


def _is_leaf(value: object) -> bool:
    if isinstance(value, Tensor | itertools.count) or is_generator(value) or is_array(value):
        return True
    return is_container(value) and (len(cast("list[object]", value)) > _MOST_ITEMS or is_plain(value))


def _parts(place: str, value: Any, follows: _Follows, *, is_root: bool) -> Iterator[Found]:
    """Yield the parts of a value that may hold state."""
    if isinstance(value, FunctionType):
        yield from _parts_of_function(place, value, follows)
    elif isinstance(value, MethodType):
        yield Found(f"{place}.__self__", value, "__self__", value.__self__)
        yield Found(place, value, "__func__", value.__func__)
    elif isinstance(value, BuiltinMethodType):
        yield Found(f"{place}.__self__", value, "__self__", value.__self__)
    elif isinstance(value, functools.partial):
        yield Found(place, value, "func", value.func)
        yield from _items(place, value.args)
        yield from (
            Found(f"{place}.{name}", value.keywords, name, argument) for name, argument in value.keywords.items()
        )
    elif isinstance(value, dict | list | tuple | set | frozenset | deque):
        yield from _items(place, value)
    elif isinstance(value, type):
        yield from _parts_of_class(value) if is_of_script(value.__module__) else ()
    elif isinstance(value, ModuleType):
        yield from _parts_of_script(value) if is_of_script(value.__name__) else ()
    else:
        yield from _parts_of_object(place, value, follows, is_root=is_root)


def _items(place: str, container: Any) -> Iterator[Found]:
    is_dict = isinstance(container, dict)
    items: list[tuple[Any, Any]] = [*cast("Any", container).items()] if is_dict else [*enumerate([*container])]
    for index, (key, value) in enumerate(items):
        shown = repr(key) if type(key) in PLAIN else index  # what others write of themselves is code of theirs
        yield Found(f"{place}[{shown}]", container, key, value)


def _parts_of_function(place: str, function: FunctionType, follows: _Follows) -> Iterator[Found]:
    if not follows(function.__module__):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield from _content(f"{place}.{name}", cell)
    yield from _items(f"{place}.__defaults__", function.__defaults__ or ())
    yield from _items(f"{place}.__kwdefaults__", function.__kwdefaults__ or {})
    yield from (Found(f"{place}.{name}", function, name, attribute) for name, attribute in vars(function).items())
    if is_of_script(function.__module__ or ""):
        held = function.__globals__
        named = [name for name in names_in(function.__code__) if name in held]
        yield from (Found(f"{function.__module__}.{name}", held, name, held[name]) for name in named)


def _content(place: str, cell: CellType) -> Iterator[Found]:
    try:
        yield Found(place, cell, "cell_contents", cell.cell_contents)
    except ValueError:  # nothing was assigned yet
        return


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in the code of a function, including inner functions.

    Args:
        code: The code.
    """
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in names_in(constant)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def _is_looked_into(value: object, follows: _Follows) -> bool:
    kinds = (dict, list, tuple, set, frozenset, deque, FunctionType, *_FOLLOWED_OF_THEM)
    return isinstance(value, kinds) or follows(type(value).__module__)


def _parts_of_object(place: str, value: object, follows: _Follows, *, is_root: bool) -> Iterator[Found]:
    kind: type[Any] = type(value)
    if not (is_root or _is_looked_into(value, follows)):
        return
    if isinstance(value, nn.Module):
        yield from _parts_of_module(place, value)
    left_out: frozenset[str] = _left_out(cast("Any", kind))
    if is_root and isinstance(value, Optimizer):
        left_out |= _SAVED_OF_OPTIMIZERS
    are_private_internal = kind.__module__.partition(".")[0] == "torch"
    for name, attribute in attributes_of(value).items():
        if name not in left_out and not (are_private_internal and name.startswith("_")):
            yield Found(f"{place}.{name}", value, name, attribute)
    for base in kind.__mro__:
        if is_of_script(base.__module__):
            yield from _parts_of_class(base)


def _parts_of_module(place: str, module: nn.Module) -> Iterator[Found]:
    """Yield parameters, buffers and child modules under the names that a script knows, and hooks."""
    tensors = (*nn.Module.named_parameters(module, recurse=False), *nn.Module.named_buffers(module, recurse=False))
    for name, part in (*tensors, *nn.Module.named_children(module)):
        yield Found(f"{place}.{name}", module, name, part)
    for name in _of_bare_module():
        hooks: object = vars(module).get(name)
        items = [*cast("dict[object, object]", hooks).items()] if isinstance(hooks, dict) else []
        for index, (key, hook) in enumerate(items):  # their keys are others in another process
            if callable(hook) and not isinstance(hook, nn.Module):
                yield Found(f"{place}.{name}[{index}]", hooks, key, hook)


def _parts_of_class(kind: type[Any]) -> Iterator[Found]:
    """Yield the attributes and methods of a class of the script."""
    for name, member in [*vars(kind).items()]:
        held: object = member
        if isinstance(member, staticmethod | classmethod):
            held = cast("Any", member).__func__
        elif isinstance(member, property):
            held = member.fget
        if isinstance(held, FunctionType) or not name.startswith("__"):
            yield Found(f"{kind.__qualname__}.{name}", kind, name, held)


def _parts_of_script(module: ModuleType) -> Iterator[Found]:
    """Yield the globals of a module of the script, without imports and definitions."""
    held = vars(module)
    for name, item in [*held.items()]:
        if not (name.startswith("__") or isinstance(item, type | ModuleType | FunctionType)):
            yield Found(f"{module.__name__}.{name}", held, name, item)


def attributes_of(value: object) -> dict[str, object]:
    """Return the attributes of an object, without properties.

    Args:
        value: The object.
    """
    try:
        found = dict(cast("dict[str, object]", object.__getattribute__(value, "__dict__")))
    except AttributeError:
        found = {}
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items() if _is_followed(kind.__module__) else ():
            if isinstance(slot, MemberDescriptorType) and not name.startswith("__"):
                with suppress(AttributeError):  # nothing was assigned yet
                    found[name] = slot.__get__(value, type(value))
    return found


def generators_of_loader(loader: object) -> list[Found]:
    """Return the generators that a loader, its samplers and its dataset have as attributes.

    Args:
        loader: Any iterable.

    Example:
        >>> [found.place for found in generators_of_loader(DataLoader(range(8), generator=torch.Generator()))]
        ['loader.generator']
    """
    return [
        Found(f"{path}.{name}", part, name, value)
        for path, part in loader_parts(loader).items()
        for name, value in attributes_of(part).items()
        if is_generator(value)
    ]


@functools.cache
def _of_bare_module() -> frozenset[str]:
    """Return the attributes of each module that torch sets, such as hooks and the training mode."""
    return frozenset(vars(nn.Module()))


@functools.cache
def _left_out(kind: type[Any]) -> frozenset[str]:
    """Return the attributes of an object that the script has not set."""
    names = set(_of_bare_module() if issubclass(kind, nn.Module) else ())
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in _OURS:
            names |= inspect.get_annotations(base).keys() | _set_by(base)
    return frozenset(names)


def _set_by(kind: type[Any]) -> set[str]:
    """Return the attributes that the methods of a class set."""
    functions = [function for function in vars(kind).values() if isinstance(function, FunctionType)]
    instructions = (instruction for function in functions for instruction in dis.get_instructions(function))
    return {str(instruction.argval) for instruction in instructions if instruction.opname == "STORE_ATTR"}


def _shared_generators() -> list[object]:
    of_python: Any = random.random
    found: list[object] = [torch.default_generator, of_python.__self__]
    of_numpy: Any = sys.modules.get("numpy.random")
    if of_numpy is not None:
        found += [of_numpy.rand.__self__, of_numpy.get_bit_generator()]
    return found
