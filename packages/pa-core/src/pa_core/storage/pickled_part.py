"""What the pickled part of a file that torch.save wrote would build: told without building or calling any of it."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Sized

# That of C, which has the public name, sets memory aside for any number by which an object is kept.
from pickle import _Unpickler as Unpickler  # pyright: ignore[reportPrivateUsage]
from typing import Any, ClassVar, NamedTuple

import torch
from typing_extensions import override

__all__ = ["MisfitInFileError", "StorageInFile", "check_pickled_part"]

_BYTES = {
    **dict.fromkeys(("BoolStorage", "ByteStorage", "CharStorage", "QInt8Storage", "QUInt8Storage"), 1),
    **dict.fromkeys(("QUInt2x4Storage", "QUInt4x2Storage", "TypedStorage", "UntypedStorage"), 1),
    **dict.fromkeys(("BFloat16Storage", "HalfStorage", "ShortStorage"), 2),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("ComplexFloatStorage", "DoubleStorage", "LongStorage"), 8),
    "ComplexDoubleStorage": 16,
}
_ELEMENTS_IN_A_BYTE = {"QUInt2x4Storage": 4, "QUInt4x2Storage": 2}

_VIEWS = tuple(f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
_COPIES = tuple(f"torch._utils._rebuild_device_tensor_from_{source}" for source in ("cpu_tensor", "numpy"))
_DTYPE_OF_V3 = 2


class MisfitInFileError(Exception):
    """The pickled part does not fit the rest of its file."""


class StorageInFile(NamedTuple):
    """The memory of one or more tensors, as the pickled part describes it.

    Attributes:
        key: The name of its bytes in the file.
        nbytes: How many they are.
        elements: How many elements they hold.
    """

    key: str
    nbytes: int
    elements: int


def check_pickled_part(pickled: io.BytesIO, check_storage: Callable[[StorageInFile], None] = lambda _: None) -> Any:
    """Return the outline of a pickle; raise an error if it would take more memory than its file has bytes.

    Tensors must lie within their storages, which some releases of torch would enlarge. Nothing may be made from a
    number of bytes or elements, or copied again and again. Functions and classes that are not torch's own are skipped;
    torch.load raises an error for them.

    Args:
        pickled: The pickle, from where it is read. It is left after the pickle's end.
        check_storage: Called with each storage that is mentioned.

    Returns:
        The object, with stand-ins for anything that is not of a plain type.

    Raises:
        MisfitInFileError: It takes too much memory.
    """
    return _Outline(pickled, check_storage).load()


class _StorageType(NamedTuple):
    itemsize: int
    elements_in_item: int


class _View(NamedTuple):
    """A tensor of so many elements, in a storage of as many or more, or fewer if elements are repeated."""

    elements: int
    storage: StorageInFile


class _Anything:
    """An object of a class or the result of a function that is not called; it accepts what a pickle does to objects."""

    def __new__(cls, *_: object) -> _Anything:
        return super().__new__(cls)

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    def append(self, value: object) -> None: ...

    def extend(self, values: object) -> None: ...


class _Uncallable:
    """A type that makes memory of any size, which a pickle only has to name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object) -> None:
        raise MisfitInFileError(f"{self._name} is called in it")


class _Outline(Unpickler):
    # Without those that set aside memory of a length that they name, or take what other code has registered.
    dispatch: ClassVar = {
        code: load
        for code, load in Unpickler.dispatch.items()
        if bytes([code]) not in {pickle.BYTEARRAY8, pickle.EXT1, pickle.EXT2, pickle.EXT4}
    }

    def __init__(self, pickled: io.BytesIO, check_storage: Callable[[StorageInFile], None]) -> None:
        super().__init__(pickled, encoding="utf-8")
        self._check_storage = check_storage
        self._functions: dict[str, Callable[..., Any]] = {
            "torch.Size": tuple,
            "torch._tensor._rebuild_from_type_v2": _without_type,
            **dict.fromkeys(_VIEWS, self._view),
            **dict.fromkeys(_COPIES, _require_no_repetition),
            "torch._utils._rebuild_qtensor": lambda *arguments: _require_no_repetition(self._view(*arguments)),
            **dict.fromkeys(("_codecs.encode", "builtins.bytearray"), self._bytes),
            **dict.fromkeys(("builtins.set", "collections.Counter", "collections.OrderedDict"), self._container),
        }
        self._copied_at_most = 2 * pickled.getbuffer().nbytes  # text becomes bytes, and these a bytearray

    @override
    def persistent_load(self, pid: Any) -> StorageInFile:
        _, kind, key, _, elements, *_ = pid
        if not (isinstance(kind, _StorageType) and _is_length(elements)):
            raise MisfitInFileError(f"storage {key} has {elements!r} elements of {kind!r}")
        storage = StorageInFile(str(key), elements * kind.itemsize, elements * kind.elements_in_item)
        self._check_storage(storage)
        return storage

    @override
    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module
        if module.partition(".")[0] == "torch" and name in _BYTES:
            return _StorageType(_BYTES[name], _ELEMENTS_IN_A_BYTE.get(name, 1))
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        if module == "torch" and name.endswith("Tensor"):
            return _Uncallable(f"torch.{name}")
        return self._functions.get(f"{module}.{name}", _Anything)

    def _view(self, storage: StorageInFile, offset: int, size: Any, stride: Any, *others: Any) -> _View:
        elements = storage.elements
        is_of_dtype = len(others) > _DTYPE_OF_V3 and isinstance(others[_DTYPE_OF_V3], torch.dtype)
        if is_of_dtype:
            elements = storage.nbytes // others[_DTYPE_OF_V3].itemsize
        if len(size) != len(stride) or not all(map(_is_length, (offset, *size, *stride))):
            raise MisfitInFileError(f"a tensor has size {size!r}, stride {stride!r} and offset {offset!r}")
        needed = 1 + offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if math.prod(size) and needed > elements:
            raise MisfitInFileError(f"a tensor of size {size!r} needs {needed} elements, its storage has {elements}")
        return _View(math.prod(size), storage._replace(elements=elements))

    def _bytes(self, content: Any = "", *_: object) -> Any:
        if not isinstance(content, str | bytes):
            raise MisfitInFileError("bytes are made from something other than text")
        self._copy(content)
        return content

    def _container(self, content: Any = (), *_: object) -> _Anything:
        return self._copy(content)

    def _copy(self, content: Any) -> _Anything:
        if isinstance(content, Sized):
            self._copied_at_most -= len(content)
        if self._copied_at_most < 0:
            raise MisfitInFileError("the same content is copied again and again")
        return _Anything()


def _without_type(function: Callable[..., Any], _: object, arguments: Any, *_state: object) -> Any:
    return function(*arguments)


def _require_no_repetition(view: Any, *_: object) -> Any:
    if isinstance(view, _View) and view.elements > view.storage.elements:
        raise MisfitInFileError(f"a tensor of {view.elements} elements is made from {view.storage.elements}")
    return view


def _is_length(number: object) -> bool:
    return type(number) is int and number >= 0
