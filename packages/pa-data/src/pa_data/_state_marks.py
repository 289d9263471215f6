"""Marks of values: a mark is kept instead of a value, and shows later whether the value has changed."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, cast
from weakref import ref

import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_data._torch import version_of

__all__ = [
    "PLAIN",
    "is_array",
    "is_container",
    "is_generator",
    "is_plain",
    "mark_of",
    "read_clocks",
    "set_state_of",
    "state_of",
    "was_read_since",
]

PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
"""The types of plain values. A subclass may hold more than a plain value."""

_INNER_CONTAINERS: Final = frozenset({list, tuple, set, dict, OrderedDict, Counter})
_CONTAINERS: Final = _INNER_CONTAINERS | {frozenset, deque, defaultdict}
"""The last containers have a separate place within others: a value within a place is written as it is."""
_MOST_PLAIN_ITEMS, _NUM_ENDS, _DEEPEST = 100_000, 8, 16
_WHOLE_NUMEL, _NUM_SAMPLED = 4_096, 64
_NOT_PLAIN: Final = object()


def is_container(value: object) -> bool:
    """Return whether a value is a container of Python itself, not of a subclass."""
    return type(value) in _CONTAINERS


def is_generator(value: object) -> bool:
    """Return whether a value is a random number generator of torch, NumPy or Python."""
    if isinstance(value, torch.Generator):
        return True
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    of_numpy: Any = sys.modules.get("numpy.random")
    return of_numpy is not None and isinstance(value, of_numpy.Generator | of_numpy.RandomState | of_numpy.BitGenerator)


def is_array(value: object) -> bool:
    """Return whether a value is a NumPy array or number; NumPy need not be installed."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def is_plain(value: object) -> bool:
    """Return whether a value is plain, or a container of a limited number of plain values.

    Example:
        >>> is_plain({"losses": [0.5, 0.25], "stage": None}), is_plain([object()])
        (True, False)
    """
    return _frozen(value) is not _NOT_PLAIN


def mark_of(value: object) -> object:
    """Return a mark that is equal for the same value, as long as the value has not changed.

    Args:
        value: A tensor, an array, a generator, an ``itertools.count``, a plain value or a container.

    Example:
        >>> losses = [0.5]
        >>> before = mark_of(losses)
        >>> losses.append(0.25)
        >>> mark_of(losses) == before
        False
    """
    if isinstance(value, Tensor):
        return _TensorMark(value)
    if is_generator(value):
        return repr(_with_lists(state_of(value)))
    if isinstance(value, itertools.count):
        return repr(cast("object", value))
    if is_array(value):
        return _mark_of_array(value)
    frozen = _frozen(value)
    return _mark_of_many(value) if frozen is _NOT_PLAIN else frozen


class _TensorMark:
    """The elements of a small tensor; the identity, the version and some elements of a large tensor.

    The version alone is not enough, since changes through ``tensor.data`` do not affect it.
    """

    def __init__(self, tensor: Tensor) -> None:
        elements = _some_elements(tensor)
        is_whole = elements is not None and tensor.numel() <= _WHOLE_NUMEL
        self.tensor: ref[Tensor] = ref(tensor)
        self.whole: object = (tensor.dtype, tensor.shape, elements) if is_whole else None
        self.part: object = (version_of(tensor), elements)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _TensorMark):
            return False
        if self.whole is not None:
            return self.whole == other.whole
        return self.tensor() is other.tensor() and self.part == other.part

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # nothing is looked up by it


def _some_elements(tensor: Tensor) -> object:
    is_dense = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout is torch.strided
    if not is_dense or tensor.is_meta or tensor.is_nested:
        return None
    flat = tensor.detach()
    if flat.numel() > _WHOLE_NUMEL:
        flat = _line_through(flat)
        flat = flat[:: max(1, flat.numel() // _NUM_SAMPLED)]
    flat = torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat
    return flat.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()  # in which NaN equals NaN


def _line_through(tensor: Tensor) -> Tensor:
    """Return the elements along the longest dimension; reshaping might copy the whole tensor."""
    while tensor.dim() > 1:
        shortest = min(range(tensor.dim()), key=tensor.size)
        tensor = tensor.select(shortest, tensor.size(shortest) // 2)
    return tensor


def state_of(generator: Any) -> Any:
    """Return the state of a generator.

    Args:
        generator: A generator that ``is_generator`` recognizes.
    """
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return random.Random.getstate(generator)
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def set_state_of(generator: Any, state: Any) -> None:
    """Restore the state of a generator.

    Args:
        generator: A generator of the same class.
        state: The result of ``state_of``.

    Example:
        >>> generator = random.Random(0)
        >>> state = state_of(generator)
        >>> first = generator.random()
        >>> set_state_of(generator, state)
        >>> generator.random() == first
        True
    """
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        random.Random.setstate(generator, state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state


def _with_lists(state: Any) -> Any:
    """Return a NumPy state with lists in place of arrays, whose ``repr`` is not complete."""
    if isinstance(state, dict):
        return {name: _with_lists(item) for name, item in cast("dict[str, Any]", state).items()}
    return state.tolist() if hasattr(state, "tolist") else state


def _mark_of_array(array: Any) -> object:
    """Return the mark of an array; a memory map, which may be very large, and an array of objects are not read."""
    numpy: Any = sys.modules["numpy"]
    if isinstance(array, numpy.memmap) or array.dtype.hasobject:
        return id(array)
    some = array.flat[:: max(1, array.size // _NUM_SAMPLED)] if array.size > _WHOLE_NUMEL else array
    return (str(array.dtype), array.shape, some.tobytes())


def _mark_of_many(container: Any) -> object:
    """Return the mark of a container that is too large or not plain: its length and its ends."""
    if not isinstance(container, list | tuple | deque):
        return (id(container), len(container))
    items = cast("list[object]", container)
    ends = (*itertools.islice(items, _NUM_ENDS), *itertools.islice(reversed(items), _NUM_ENDS))
    return (id(items), len(items), *(item if type(item) in PLAIN else id(item) for item in ends))


def _frozen(value: Any, depth: int = 0) -> object:
    """Return a copy of a plain value that does not change with it, or ``_NOT_PLAIN`` for any other value."""
    kind = cast("type[object]", type(value))
    if kind in PLAIN:
        return value if value == value else "nan"  # noqa: PLR0124  # NaN equals nothing, not even itself
    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{value.name}"
    is_known = kind in (_INNER_CONTAINERS if depth > 0 else _CONTAINERS)
    if not is_known or depth > _DEEPEST or len(value) > _MOST_PLAIN_ITEMS:  # one may even hold itself
        return _NOT_PLAIN
    if isinstance(value, dict):
        keys, values = [*cast("Any", value)], [*cast("Any", value).values()]
        return _all_frozen(kind, [_frozen(keys, depth + 1), _frozen(values, depth + 1)])
    items: list[Any] = [*value]
    kinds = {*map(type, items)}
    if float in kinds or not kinds <= PLAIN:
        items = [_frozen(item, depth + 1) for item in items]
    return _all_frozen(kind, {*items} if isinstance(value, set | frozenset) else items)


def _all_frozen(kind: type, items: list[object] | set[object]) -> object:
    if any(item is _NOT_PLAIN for item in items):
        return _NOT_PLAIN
    return (kind, frozenset(items) if isinstance(items, set) else tuple(items))


def read_clocks() -> tuple[float, ...]:
    """Return the current times of the clocks of this process."""
    return time.time(), time.monotonic(), time.perf_counter(), time.process_time()


def was_read_since(clocks: Iterable[float], value: object) -> bool:
    """Return whether a value is a time that a clock has shown between an earlier moment and now.

    Args:
        clocks: The times of the clocks at that moment.
        value: Any value.

    Example:
        >>> clocks = read_clocks()
        >>> was_read_since(clocks, time.time()), was_read_since(clocks, 0.5)
        (True, False)
    """
    return isinstance(value, float) and any(
        since <= value <= now for since, now in zip(clocks, read_clocks(), strict=True)
    )
