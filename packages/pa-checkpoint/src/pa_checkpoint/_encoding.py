"""Values as JSON and tensors, which can be stored and restored exactly without unpickling anything."""

from __future__ import annotations

import base64
import collections
import math
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union, cast

import torch
from torch import Tensor, nn

from pa_checkpoint._errors import CheckpointError, written_out
from pa_checkpoint._sharded_tensor import (
    PieceFile,
    PieceLayout,
    ShardedPiece,
    StoredPiece,
    StoredTensor,
    StridedTensor,
    UnknownLayoutError,
)
from pa_checkpoint._tensor_file import (
    DTYPES,
    is_storable,
    memory_of,
    memory_of_piece,
    recorded_strides,
    with_strides,
)
from pa_checkpoint._torch import is_sharded, local_piece

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


JsonScalar: TypeAlias = bool | int | float | str | None
JsonValue: TypeAlias = Union[JsonScalar, "list[JsonValue]", "dict[str, JsonValue]"]

_MAX_DEPTH = 100
"""The deepest nesting of containers: JSON and pickle are recursive, and Python's stack is limited."""
_EXACT_IN_ANY_JSON = 2**53  # up to here, tools whose numbers are doubles read integers as they are


class Encoded(NamedTuple):
    """A value in two parts: a document for a JSON file, and the tensors that the document mentions by name.

    Attributes:
        document: The document. It shares no object with the value, so later changes to the value do not affect it.
        tensors: The tensors, detached and not copied. A name is the path to the first place where the tensor was found.
        pieces: The pieces of sharded tensors that this process holds, by names of the same form.

    Example:
        >>> encoded = encode({"weight": torch.ones(2), "step": (3, 0.5)}, "model")
        >>> encoded.document
        {'weight': {'$tensor': 'model/weight'}, 'step': {'$tuple': [3, 0.5]}}
        >>> encoded.tensors
        {'model/weight': tensor([1., 1.])}
    """

    document: JsonValue
    tensors: dict[str, Tensor]
    pieces: Mapping[str, ShardedPiece] = MappingProxyType({})

    def pieces_written_here(self) -> dict[str, Tensor]:
        """Return the pieces that this process writes, by name."""
        return {name: piece.tensor for name, piece in self.pieces.items() if piece.is_written_here}

    def all_tensors(self) -> dict[str, Tensor]:
        """Return the tensors and the pieces that this process writes, by name."""
        return {**self.tensors, **self.pieces_written_here()}

    def without_tensors(self) -> Encoded:
        """Return a copy without tensors, for the processes other than rank 0, which write only pieces."""
        return Encoded(self.document, {}, self.pieces)

    def with_copies(self, copies: Mapping[str, Tensor]) -> Encoded:
        """Return the same value with copies of the tensors that this process writes.

        Args:
            copies: A copy of each of ``all_tensors()``, by name.
        """
        pieces = {name: piece._replace(tensor=copies.get(name, piece.tensor)) for name, piece in self.pieces.items()}
        return Encoded(self.document, {name: copies[name] for name in self.tensors}, pieces)


def encode(value: object, where: str) -> Encoded:
    """Split a value into a JSON document and tensors, from which ``decode`` restores it exactly.

    Allowed are None, booleans, numbers, strings, bytes, torch sizes, dtypes and devices, tensors and parameters, NumPy
    arrays and numbers, and lists, tuples, sets and dictionaries (including ``OrderedDict`` and ``Counter``) of all
    these. A tensor keeps its values, dtype, shape and strides; a parameter, and a tensor that requires a gradient,
    become plain tensors. Tensors with the same memory and layout, such as tied weights, are stored once and restored as
    a single tensor. A NumPy number becomes a Python number. Elements that share memory, as after ``expand``, are stored
    separately.

    Of a sharded tensor, this process contributes its piece, and the document says which process has which piece. All
    processes must then encode the same values in the same order, but no process waits for another. A ``DTensor`` that
    each process holds completely is stored as a plain tensor.

    Args:
        value: The value.
        where: The name of the value: the first part of the names of tensors, and of the paths in messages.

    Raises:
        CheckpointError: An entry cannot be stored. The message names the first such entry.

    Example:
        >>> encode({"metrics": [0.5, len]}, "history")
        Traceback (most recent call last):
        ...
        pa_checkpoint.CheckpointError: This entry cannot be stored in a checkpoint.
          given:    history['metrics'][1]: builtin_function_or_method <built-in function len>
          ...
    """
    encoder = _Encoder(where)
    return Encoded(encoder.encode(value, _Place(where, where)), encoder.tensors, encoder.pieces)


class _Place(NamedTuple):
    """The place of an entry in a value."""

    shown: str
    """As Python would reach it, for messages."""
    name: str
    """As a path, for the names of tensors."""

    def item(self, key: object) -> _Place:
        try:
            shown = repr(key)
        except ValueError:
            shown = written_out(key)
        return _Place(f"{self.shown}[{shown}]", f"{self.name}/{key if isinstance(key, str) else shown}")

    def attribute(self, name: str) -> _Place:
        return _Place(f"{self.shown}.{name}", f"{self.name}.{name}")

    def key(self) -> _Place:
        return _Place(f"{self.shown}, a key of it", self.name)

    def refusal(self, found: str, do: str) -> CheckpointError:
        return CheckpointError(
            "This entry cannot be stored in a checkpoint.",
            given=f"{self.shown}: {found}",
            expected="tensors, arrays, numbers, strings, and dictionaries, lists, tuples and sets of them",
            do=do,
        )


class _Encoder:
    """A walk through a value that collects its tensors."""

    def __init__(self, part: str) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.pieces: dict[str, ShardedPiece] = {}
        self._layout = PieceLayout(part)
        self._names: dict[Hashable, str] = {}
        self._open: set[int] = set()

    def encode(self, value: object, place: _Place) -> JsonValue:
        kind = type(value)
        if kind in _SINGLE_VALUES:
            return _SINGLE_VALUES[kind](value)
        if kind in _TENSORS:
            return self._tensor("$tensor", cast("Tensor", value), place)
        if is_sharded(value):
            return self._sharded(value, place)
        if kind.__module__ == "numpy":
            return self._numpy(value, kind, place)
        if kind not in _CONTAINERS:
            raise _refusal_of_type(kind, value, place)
        if id(value) in self._open:
            raise place.refusal(f"a {kind.__qualname__} that contains itself", "Store it without the cycle.")
        if len(self._open) == _MAX_DEPTH:
            raise place.refusal(f"something nested {_MAX_DEPTH} levels deep", "Store it less deeply nested.")
        self._open.add(id(value))
        document = self._container(kind, value, place)
        self._open.remove(id(value))
        return document

    def _container(self, kind: type, value: object, place: _Place) -> JsonValue:
        if kind is list:
            return self._items(cast("list[object]", value), place)
        if kind is tuple:
            return {"$tuple": self._items(cast("tuple[object, ...]", value), place)}
        if kind is set:
            return {"$set": [self._key(item, place) for item in cast("set[object]", value)]}
        mapping = cast("Mapping[object, object]", value)
        if kind is dict and all(type(key) is str and _is_plain_key(key) for key in mapping):
            return {cast("str", key): self._item(key, item, place) for key, item in mapping.items()}
        pairs: list[JsonValue] = [
            [self._key(key, place), self._item(key, item, place)] for key, item in mapping.items()
        ]
        document: dict[str, JsonValue] = {_CONTAINERS[kind]: pairs}
        attributes = {
            name: self.encode(attribute, place.attribute(name))
            for name, attribute in getattr(value, "__dict__", {}).items()
            if name != "__orig_class__"  # what OrderedDict[str, int]() leaves behind
        }
        if attributes and all(map(_is_plain_key, attributes)):
            document["attributes"] = attributes
        elif attributes:
            document["attributes"] = {"$dict": [[_str(name), attribute] for name, attribute in attributes.items()]}
        return document

    def _items(self, items: Iterable[object], place: _Place) -> list[JsonValue]:
        return [self._item(index, item, place) for index, item in enumerate(items)]

    def _item(self, key: object, item: object, place: _Place) -> JsonValue:
        kind = type(item)  # single values need no place: long lists of numbers are common
        return _SINGLE_VALUES[kind](item) if kind in _SINGLE_VALUES else self.encode(item, place.item(key))

    def _key(self, key: object, place: _Place) -> JsonValue:
        if isinstance(key, Tensor):
            raise place.key().refusal("a tensor", "Use numbers or strings as keys, and a list instead of a set.")
        return self.encode(key, place.key())

    def _tensor(self, tag: str, tensor: Tensor, place: _Place) -> JsonValue:
        _require_storable(tensor, place)
        memory = memory_of(tensor)
        if memory not in self._names:
            self._names[memory] = self._free_name(place)
            stored = tensor.detach().resolve_conj().resolve_neg()
            self.tensors[self._names[memory]] = torch.view_as_real(stored) if stored.is_complex() else stored
        document: dict[str, JsonValue] = {tag: self._names[memory]}
        if tensor.is_complex():
            document["complex"] = True
        strides = recorded_strides(tensor)
        if strides is not None:
            document["strides"] = list(strides)
        return document

    def _sharded(self, tensor: DTensor, place: _Place) -> JsonValue:
        if all(placement.is_replicate() for placement in tensor.placements):
            return self._tensor("$tensor", local_piece(tensor.detach()), place)
        local = local_piece(tensor.detach())
        _require_storable(local, place)
        if local.is_complex():
            raise place.refusal("a sharded complex tensor", "Store its torch.view_as_real(), which can be sharded.")
        memory = memory_of_piece(local, tensor.shape)
        if memory not in self._names:
            try:
                piece = self._layout.plan(tensor)
            except UnknownLayoutError as error:
                found = f"a DTensor with the placements {tuple(tensor.placements)}: {error}"
                raise place.refusal(found, "Store its .full_tensor(), which every process must call.") from error
            self._names[memory] = self._free_name(place)
            self.pieces[self._names[memory]] = piece
        name = self._names[memory]
        return {"$sharded": name, **self.pieces[name].description}

    def _free_name(self, place: _Place) -> str:
        name = wanted = place.name.encode("utf-8", "backslashreplace").decode()
        while name in self.tensors or name in self.pieces or name == "__metadata__":  # a reserved name
            name = f"{wanted}#{len(self.tensors) + len(self.pieces)}"
        return name

    def _numpy(self, value: Any, kind: type, place: _Place) -> JsonValue:
        import numpy as np

        if kind is np.ndarray:
            # an array that is read-only, or has strides that tensors cannot have, is copied
            fits = value.flags.writeable and value.flags.forc and min(value.strides, default=0) >= 0
            array = value if fits else value.copy()
            try:
                tensor: Tensor = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate its argument
            except (TypeError, ValueError) as error:  # of dtypes and byte orders that torch does not have
                raise place.refusal(f"an array of {value.dtype}", "Convert it with .astype or .tolist().") from error
            return self._tensor("$ndarray", tensor, place)
        number: object = value.item() if np.generic in kind.__mro__ else value
        # moments become integers, or None, where Python has none of their unit
        if type(number) not in _SINGLE_VALUES or kind.__name__ in _ADVICE_OF_MOMENTS:
            raise _refusal_of_type(kind, value, place)
        return _SINGLE_VALUES[type(number)](number)


def _require_storable(tensor: Tensor, place: _Place) -> None:
    if not is_storable(tensor):
        found = f"a tensor of dtype {tensor.dtype}, layout {tensor.layout} on {tensor.device}"
        raise place.refusal(found, "Store it as dense tensors of the usual dtypes, with .view(torch.uint8) say.")


def _int(value: int) -> JsonValue:
    return value if abs(value) <= _EXACT_IN_ANY_JSON else {"$int": hex(value)}


def _float(value: float) -> JsonValue:
    return value if math.isfinite(value) else {"$float": str(value)}


def _str(value: str) -> JsonValue:
    if _is_plain_text(value):
        return value
    return {"$str": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}


_SINGLE_VALUES: Mapping[type, Callable[[Any], JsonValue]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _int,
    float: _float,
    complex: lambda value: {"$complex": [_float(value.real), _float(value.imag)]},
    str: _str,
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
    torch.Size: lambda value: {"$size": list(value)},
    torch.dtype: lambda value: {"$dtype": str(value).removeprefix("torch.")},
    torch.device: lambda value: {"$device": str(value)},
}
"""By exact type, the function that writes a value: additions of a subclass would be lost."""

_TENSORS = frozenset({Tensor, nn.Parameter})
"""The exact types whose values are stored as tensors."""

_CONTAINERS: Mapping[type, str] = {
    list: "",
    tuple: "$tuple",
    set: "$set",
    dict: "$dict",
    collections.OrderedDict: "$ordered_dict",
    collections.Counter: "$counter",
}
"""By exact type, the name of a container in a document."""


def _is_plain_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8, unlike halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain_key(key: str) -> bool:
    return not key.startswith("$") and _is_plain_text(key)


def _refusal_of_type(kind: type, value: object, place: _Place) -> CheckpointError:
    do = f"Convert the {kind.__qualname__}, or store values to build it from: its state_dict(), arguments or name."
    return place.refusal(
        f"{kind.__qualname__} {written_out(value, reprlib.repr)}", _ADVICE_OF_MOMENTS.get(kind.__name__, do)
    )


_ADVICE_OF_MOMENTS = {
    "datetime64": "Store str() of it, from which numpy.datetime64 makes it again.",
    "timedelta64": "Store .astype(int) of it, and its unit, numpy.datetime_data(...).",
}


def decode(
    document: JsonValue,
    tensors: Mapping[str, Tensor | StoredTensor],
    files: Mapping[str, PieceFile] = MappingProxyType({}),
) -> Any:
    """Restore a value from the results of ``encode``.

    The restored value takes memory in proportion to the document and the tensors, even if the document is forged.

    Args:
        document: The document.
        tensors: The tensors of the document by name. The value contains them without a copy, unless the original had
            different strides. Complex tensors and arrays that are on disk are read.
        files: The files of pieces by name. Their content stays on disk: the value has a ``StoredTensor`` for each
            tensor that was saved in pieces.

    Raises:
        Exception: An exception of any kind, if the document was not made by ``encode``, or mentions a missing tensor.

    Example:
        >>> decode({"$tuple": [3, {"$tensor": "model/weight"}]}, {"model/weight": torch.ones(2)})
        (3, tensor([1., 1.]))
    """
    return _Decoder(tensors, files).decode(document)


_WITHOUT_PARTS = frozenset({bool, int, float, str, type(None)})


class _Decoder:
    """A walk through a document."""

    def __init__(self, tensors: Mapping[str, Tensor | StoredTensor], files: Mapping[str, PieceFile]) -> None:
        self._tensors = tensors
        self._files = files
        self._built: dict[str, Tensor | StoredTensor] = {}
        self._stored: dict[str, StoredTensor] = {}

    def decode(self, document: JsonValue) -> Any:
        if isinstance(document, list):
            return self._items(document)
        if not isinstance(document, dict):
            return document
        tag = next(iter(document), "")
        if not tag.startswith("$"):
            return dict(zip(document, self._items(document.values()), strict=True))
        content: Any = document[tag]
        if tag == "$sharded":
            return self._sharded(content, document)
        if tag in _FROM_TENSOR:
            return _FROM_TENSOR[tag](self._tensor(content, document))
        if tag in _FROM_ITEMS:
            value = _FROM_ITEMS[tag](self._items(content))
            if "attributes" in document:
                value.__dict__.update(self.decode(document["attributes"]))
        else:
            value = _FROM_TEXT[tag](content)
        return value

    def _items(self, items: Iterable[JsonValue]) -> list[Any]:
        # long lists of numbers are common
        return [item if type(item) in _WITHOUT_PARTS else self.decode(item) for item in items]

    def _tensor(self, name: str, document: Mapping[str, JsonValue]) -> Tensor | StoredTensor:
        """Return the tensor with a name, which is the same object each time."""
        if name not in self._built:
            tensor = self._tensors[name]
            if document.get("complex"):
                tensor = torch.view_as_complex(_in_memory(tensor))
            if "strides" in document:
                restore = StridedTensor if isinstance(tensor, StoredTensor) else with_strides
                tensor = restore(cast("Any", tensor), cast("list[int]", document["strides"]))
            self._built[name] = tensor
        return self._built[name]

    def _sharded(self, name: str, document: Mapping[str, Any]) -> StoredTensor:
        """Return the tensor with a name, which is the same object each time; its values stay in the files."""
        if name not in self._stored:
            dtype = DTYPES[document["dtype"]]
            pieces: list[StoredPiece] = []
            for described in document["pieces"]:
                offsets, shape = torch.Size(described["offsets"]), torch.Size(described["shape"])
                pieces.append(StoredPiece(offsets, shape, self._files[described["file"]].piece(name, dtype, shape)))
            self._stored[name] = StoredTensor(document["shape"], dtype, pieces)
        return self._stored[name]


def _in_memory(tensor: Tensor | StoredTensor) -> Tensor:
    return tensor.whole() if isinstance(tensor, StoredTensor) else tensor


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _dtype(name: str) -> torch.dtype:
    dtype: object = vars(torch)[name]  # getattr would import modules that have the name
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is not a dtype")
    return dtype


_FROM_TENSOR: dict[str, Callable[[Tensor | StoredTensor], Any]] = {
    "$tensor": lambda tensor: tensor,
    "$ndarray": lambda tensor: _in_memory(tensor).numpy(),
}

_FROM_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$size": torch.Size,
    "$complex": lambda parts: complex(*parts),
    "$dict": dict,
    "$ordered_dict": collections.OrderedDict,
    "$counter": lambda pairs: collections.Counter(dict(pairs)),
}

_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$str": lambda text: _bytes(text).decode("utf-8", "surrogatepass"),
    "$bytes": _bytes,
    "$dtype": _dtype,
    "$device": torch.device,
}
