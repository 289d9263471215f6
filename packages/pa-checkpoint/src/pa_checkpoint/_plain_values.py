"""The values that a file for ``torch.load(weights_only=True)`` may contain."""

from __future__ import annotations

import collections
import reprlib
from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from pa_checkpoint._errors import CheckpointError, written_out

# By exact type: a subclass would need its class unpickled.
_SINGLE_VALUES = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray}) | {
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
}
_TENSORS = frozenset({Tensor, nn.Parameter})
_CONTAINERS = frozenset({list, tuple, set, dict, collections.OrderedDict, collections.Counter})
_MAX_DEPTH = 100  # pickle goes down recursively, and Python's stack ends somewhere below a thousand


def ensure_plain(obj: object, where: str) -> None:
    """Raise an error for a value that ``torch.save`` writes but ``torch.load(weights_only=True)`` does not read.

    You call it before a long run that saves your users' objects with ``torch.save``. The error is then raised at the
    start of the run and names the entry, instead of at the end, when you need the file. For values that you pass to
    ``pa_checkpoint.save``, use ``Writer.check``, which also allows NumPy arrays.

    Allowed are tensors and parameters, None, booleans, numbers, strings, bytes, torch sizes, dtypes, devices and
    layouts, dictionaries (including ``OrderedDict`` and ``Counter``), lists, tuples and sets of all these, and types
    that were passed to ``torch.serialization.add_safe_globals``. Empty bytes and subclasses of these types are not
    allowed.

    Args:
        obj: The value that ``torch.save`` will write. It is not changed.
        where: The name of the value in your program. The error message begins the path of the entry with it.

    Raises:
        CheckpointError: ``torch.load(..., weights_only=True)`` would reject an entry, or ``torch.save`` could not write
            it. The message names the first such entry.

    Example:
        >>> import torch
        >>> from pa_checkpoint.torch_states import ensure_plain
        >>> ensure_plain({"metrics": [0.5, torch.ones(2)]}, "checkpoint_kwargs")
        >>> ensure_plain({"metrics": [0.5, len]}, "checkpoint_kwargs")
        Traceback (most recent call last):
        ...
        pa_checkpoint.CheckpointError: This entry could be saved, but not safely loaded again.
          given:    checkpoint_kwargs['metrics'][1]: builtin_function_or_method <built-in function len>
          ...
    """
    _PlainWalk().check(obj, where, depth=0)


class _PlainWalk:
    """A walk through an object and all values in it that checks each container once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._allowed_by_user: list[object] = list(
            torch.serialization.get_safe_globals()  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # torch leaves the callables in it untyped
        )

    def check(self, value: object, where: str, depth: int) -> None:
        """Raise an error for the first value that is not plain."""
        if _is_single(value) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        kind = type(value)
        if depth == _MAX_DEPTH:
            raise _refusal(where, f"something nested {depth} levels deep", "Store it less deeply nested.")
        if kind in _CONTAINERS and issubclass(kind, dict):
            self._check_mapping(cast("Mapping[object, object]", value), where, depth + 1)
        elif kind in _CONTAINERS:
            self._check_sequence(cast("Iterable[object]", value), where, depth + 1)
        elif kind not in _TENSORS:
            if kind not in self._allowed_by_user:
                raise _refusal(where, f"{kind.__qualname__} {written_out(value, reprlib.repr)}", _advice(kind))
            return
        for name, attribute in getattr(value, "__dict__", {}).items():
            self.check(attribute, f"{where}.{name}", depth + 1)

    def _check_mapping(self, mapping: Mapping[object, object], where: str, depth: int) -> None:
        for key, item in mapping.items():
            if not _is_single(key):
                self.check(key, f"{where}, a key of it", depth)
            if not _is_single(item):
                self.check(item, f"{where}[{written_out(key)}]", depth)

    def _check_sequence(self, items: Iterable[object], where: str, depth: int) -> None:
        for index, item in enumerate(items):
            if not _is_single(item):
                self.check(item, f"{where}[{index}]", depth)


def _is_single(value: object) -> bool:
    # empty bytes are pickled as a call of bytes(), which is refused when loaded
    return type(value) in _SINGLE_VALUES and (type(value) is not bytes or value != b"")


def _refusal(where: str, found: str, advice: str) -> CheckpointError:
    return CheckpointError(
        "This entry could be saved, but not safely loaded again.",
        given=f"{where}: {found}",
        expected="tensors, numbers, strings, and dictionaries, lists, tuples and sets of them",
        do=advice,
    )


def _advice(kind: type) -> str:
    if kind.__module__ == "numpy":  # which training states can hold
        return "Store .item() of a numpy number, and torch.from_numpy(...) of an array."
    if issubclass(kind, Tensor):
        return (
            f"Store a plain tensor made of the {kind.__qualname__}, such as .full_tensor() or .to_local() of a DTensor."
        )
    if issubclass(kind, dict | list | tuple | set | frozenset | str | int | float):
        return f"Convert the {kind.__qualname__} to one of these types."
    return "Store values to build it from: its state_dict(), its arguments or its name."
