"""Tensors of a checkpoint that are read piece by piece: each process reads no more than it has of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from pa_checkpoint._torch import chunks_of, is_sharded, local_piece

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

__all__ = ["PieceSource", "StoredPiece", "StoredTensor"]


class PieceSource(Protocol):
    """Where the values of a piece are."""

    def read_into(self, target: Tensor, offsets: Sequence[int]) -> None:
        """Fill a tensor with the part of the piece that begins at the offsets and has the shape of the tensor.

        Raises:
            CheckpointError: The values are not there any more.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """One of the pieces of a stored tensor.

    Attributes:
        offsets: Where it begins in the whole tensor, in each dimension.
        shape: Its own shape.
        source: Where its values are.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    source: PieceSource


class StoredTensor:
    """A tensor of a checkpoint whose values stay on disk until they are requested.

    It may have been saved in other pieces than those in which it is read, or whole.

    Args:
        shape: The shape of the whole tensor.
        dtype: Its dtype.
        pieces: What was saved of it, which covers the whole tensor once.

    Raises:
        ValueError: The pieces do not.

    Example:
        >>> stored = StoredTensor.of(torch.arange(4.0))
        >>> target = torch.zeros(4)
        >>> stored.read_into(target)
        >>> target
        tensor([0., 1., 2., 3.])
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, pieces: Sequence[StoredPiece]) -> None:
        self.shape: torch.Size = torch.Size(shape)
        self.dtype: torch.dtype = dtype
        self.pieces: Sequence[StoredPiece] = pieces
        covered = sum(math.prod(piece.shape) for piece in pieces)
        if covered != math.prod(self.shape):
            message = f"pieces with {covered} elements that do not make a tensor of shape {tuple(self.shape)}"
            raise ValueError(message)

    @classmethod
    def of(cls, tensor: Tensor | StoredTensor) -> StoredTensor:
        """Return a tensor in memory as a stored one of a single piece, and a stored one as it is."""
        if isinstance(tensor, StoredTensor):
            return tensor
        whole = StoredPiece((0,) * tensor.dim(), tuple(tensor.shape), _InMemory(tensor))
        return cls(tensor.shape, tensor.dtype, [whole])

    @staticmethod
    def resolve(value: Any, like: object = None) -> Any:
        """Return a value that was read lazily, with tensors in the place of stored ones.

        Args:
            value: A part of a checkpoint, or something in it; its dictionaries are changed.
            like: The value that an object has now in its place. Where that has a tensor that is sharded, the saved one
                is sharded in the same way, be it stored or whole. All others are whole.

        Example:
            >>> StoredTensor.resolve({"weights": [StoredTensor.of(torch.ones(2))], "step": 3})
            {'weights': [tensor([1., 1.])], 'step': 3}
        """
        return _Resolving().resolve(value, like)

    def example(self) -> Tensor:
        """Return a tensor of the same shape and dtype that takes no memory, to be compared with others."""
        return torch.zeros((), dtype=self.dtype, device="cpu").expand(self.shape)

    def whole(self) -> Tensor:
        """Return all of it, on the CPU."""
        tensor = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        self.read_into(tensor)
        return tensor

    def like(self, parameter: Tensor) -> Tensor:
        """Return it split as a parameter is, or whole on the device of a plain parameter.

        A tensor of another shape, such as the sum of each row, is split along those dimensions that it shares with the
        parameter.

        Args:
            parameter: A ``DTensor``, of which only the piece of this process is read, or a plain one.
        """
        made = self._empty_like(parameter)
        self.read_into(made)
        return made

    def read_into(self, target: Tensor) -> None:
        """Fill a tensor of the same shape, of any dtype and on any device.

        Args:
            target: A ``DTensor``, of which only the piece of this process is read, or a plain one.

        Raises:
            CheckpointError: The file cannot be read any more.
        """
        with torch.no_grad():
            if is_sharded(target):
                self._read_piece_into(target)
                return
            for piece in self.pieces:
                piece.source.read_into(_region(target, piece.offsets, piece.shape), (0,) * len(piece.shape))

    def _read_piece_into(self, target: DTensor) -> None:
        from torch.distributed.checkpoint.metadata import (
            ChunkStorageMetadata,
            TensorProperties,
            TensorStorageMetadata,
        )
        from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

        saved = TensorStorageMetadata(
            TensorProperties(dtype=self.dtype),
            self.shape,
            [ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.shape)) for one in self.pieces],
        )
        local, chunks = local_piece(target), chunks_of(target)
        for item in create_read_items_for_chunk_list("", saved, chunks):
            piece = self.pieces[item.storage_index.index or 0]
            piece.source.read_into(_region(local, item.dest_offsets, item.lengths), item.storage_offsets)

    def _empty_like(self, parameter: Tensor) -> Tensor:
        if not is_sharded(parameter):
            return torch.empty(self.shape, dtype=self.dtype, device=parameter.device)
        if self.shape == parameter.shape:
            return torch.empty_like(parameter, dtype=self.dtype, requires_grad=False)
        from torch.distributed.tensor import empty  # pyright: ignore[reportUnknownVariableType]  # its sizes have no type

        placements = [self._placement(one, parameter) for one in parameter.placements]
        made = empty(*self.shape, dtype=self.dtype, device_mesh=parameter.device_mesh, placements=placements)
        return made.to(parameter.device)  # that of the mesh is another one where parameters are kept on the host

    def _placement(self, placement: Placement, parameter: Tensor) -> Placement:
        from torch.distributed.tensor import Replicate

        dimension: int | None = getattr(placement, "dim", None)  # of Shard
        is_split = dimension is not None and len(self.shape) == parameter.dim()
        is_shared = is_split and self.shape[dimension or 0] == parameter.shape[dimension or 0]
        return placement if is_shared else Replicate()


@dataclass(frozen=True, slots=True)
class _InMemory:
    tensor: Tensor

    def read_into(self, target: Tensor, offsets: Sequence[int]) -> None:
        target.copy_(_region(self.tensor, offsets, target.shape))


def _region(tensor: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dimension, offset, length)
    return tensor


_WITHOUT_PARTS = frozenset({bool, int, float, str, type(None)})  # long lists of numbers are common


class _Resolving:
    """One walk through a value."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, int], tuple[object, object, Tensor]] = {}

    def resolve(self, value: object, own: object) -> Any:
        if isinstance(value, StoredTensor | Tensor):
            return self._tensor(value, own)
        if isinstance(value, dict):
            self._mapping(cast("dict[object, Any]", value), own)
        elif type(value) is list:
            return self._items(cast("list[object]", value), own)
        elif type(value) is tuple:
            return tuple(self._items(cast("tuple[object, ...]", value), own))
        return cast("Any", value)

    def _mapping(self, mapping: dict[object, Any], own: object) -> None:
        counterparts = cast("Mapping[object, object]", own if isinstance(own, Mapping) else {})
        for key, item in mapping.items():
            mapping[key] = self.resolve(item, counterparts.get(key))
        for name, attribute in getattr(mapping, "__dict__", {}).items():  # of an OrderedDict
            setattr(mapping, name, self.resolve(attribute, None))

    def _items(self, items: Sequence[object], own: object) -> list[Any]:
        counterparts = cast("Sequence[object]", own) if isinstance(own, list | tuple) else ()
        is_alike = len(counterparts) == len(items)
        return [
            item if type(item) in _WITHOUT_PARTS else self.resolve(item, counterparts[index] if is_alike else None)
            for index, item in enumerate(items)
        ]

    def _tensor(self, value: Tensor | StoredTensor, own: object) -> Tensor:
        """What is mentioned several times comes back as one tensor."""
        parameter = own if is_sharded(own) and own.shape == value.shape else None
        if isinstance(value, Tensor) and parameter is None:
            return value
        key = id(value), id(parameter)
        if key not in self._tensors:
            stored = StoredTensor.of(value)
            made = stored.whole() if parameter is None else stored.like(parameter)
            self._tensors[key] = value, parameter, made  # no other object gets the number of one that is kept here
        return self._tensors[key][-1]
