"""Tensors that are divided into pieces: which process writes which piece, the files of pieces, and reading them."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pa_checkpoint._errors import damage
from pa_checkpoint._files import DigestingReader
from pa_checkpoint._tensor_file import (
    DTYPE_NAMES,
    Header,
    TensorEntry,
    has_overlap,
    memory_of_values,
    read_header,
    read_tensor,
    with_strides,
)
from pa_checkpoint._torch import chunks_of, is_sharded, local_piece, local_shape_and_offset

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement


class PieceSource(Protocol):
    """The place where the values of a piece are stored."""

    def read_into(self, target: Tensor, offsets: Sequence[int]) -> None:
        """Fill a tensor with the part of the piece that begins at the offsets and has the shape of the tensor.

        Raises:
            CheckpointError: The values can no longer be read.
        """
        ...


class StoredPiece(NamedTuple):
    """A piece of a stored tensor.

    Attributes:
        offsets: The beginning of the piece in the whole tensor, in each dimension.
        shape: The shape of the piece.
        source: The place of its values.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    source: PieceSource


class StoredTensor:
    """A tensor of a checkpoint whose values stay on disk until they are read.

    ``load(path, lazy=True)`` returns it for each tensor of more than 16 KiB. Use it to load a model without a second
    copy in memory, or if a model does not fit in the memory of a process: each process then reads only its piece, even
    if the tensor was saved whole or in different pieces, for example on a different number of processes. The checkpoint
    must stay on the disk until the values are read. If another checkpoint has replaced it, reading raises an error.

    You rarely call the constructor: ``load`` makes stored tensors from files, and ``StoredTensor.of`` makes one from a
    tensor in memory. ``whole``, ``like`` and ``read_into`` read the values, and ``StoredTensor.resolve`` reads all
    stored tensors in a state dict.

    Args:
        shape: The shape of the whole tensor.
        dtype: The type of the elements.
        pieces: The saved pieces, which together cover the tensor once. Each is a named tuple of ``offsets`` (the
            beginning of the piece in each dimension), ``shape`` (the shape of the piece), and ``source`` (an object
            with a ``read_into(target, offsets)`` method, which fills a tensor from the part of the piece that begins at
            the offsets).

    Attributes:
        shape: The shape of the whole tensor, a ``torch.Size``.
        dtype: The type of the elements, for example ``torch.float32``.
        pieces: The saved pieces.

    Raises:
        ValueError: The pieces do not have as many elements as the tensor.

    Example:
        >>> import torch
        >>> from pa_checkpoint import StoredTensor
        >>> stored = StoredTensor.of(torch.arange(4.0))
        >>> target = torch.zeros(4)
        >>> stored.read_into(target)
        >>> stored.shape, target
        (torch.Size([4]), tensor([0., 1., 2., 3.]))
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, pieces: Sequence[StoredPiece]) -> None:
        self.shape: torch.Size = torch.Size(shape)
        self.dtype: torch.dtype = dtype
        self.pieces: Sequence[StoredPiece] = pieces
        covered = sum(math.prod(piece.shape) for piece in pieces)
        if covered != math.prod(self.shape):
            raise ValueError(f"pieces with {covered} elements that do not make a tensor of shape {tuple(self.shape)}")

    @classmethod
    def of(cls, tensor: Tensor | StoredTensor) -> StoredTensor:
        """Return a tensor in memory as a stored tensor of a single piece; return a stored tensor unchanged.

        You call it to treat both kinds of tensors in the same way, for example for a state dict from ``load(path,
        lazy=True)`` that holds stored tensors and tensors in memory.

        Args:
            tensor: A tensor in memory, or a stored tensor.

        Returns:
            A stored tensor that shares the memory of the tensor, so a later change to the tensor also changes the
            stored tensor.

        Example:
            >>> import torch
            >>> from pa_checkpoint import StoredTensor
            >>> StoredTensor.of(torch.ones(2, 3)).shape
            torch.Size([2, 3])
        """
        if isinstance(tensor, StoredTensor):
            return tensor
        whole = StoredPiece((0,) * tensor.dim(), tuple(tensor.shape), _InMemory(tensor))
        return cls(tensor.shape, tensor.dtype, [whole])

    @staticmethod
    def resolve(value: Any, like: object = None) -> Any:
        """Replace all stored tensors in a value by tensors in memory.

        You call it on a part of a checkpoint that was loaded with ``lazy=True``, before you pass the part to
        ``load_state_dict``. For a single stored tensor, use ``whole``, ``like`` or ``read_into``.

        Args:
            value: A part of a checkpoint, or an entry in it, for example a state dict. Its dictionaries are changed in
                place.
            like: The current state of the object that will load the value, for example ``model.state_dict()``. Where it
                has a ``DTensor`` at the same keys and positions and with the same shape, the tensor of the value is
                sharded in the same way, and this process reads only its piece. With the default, None, all tensors are
                whole, on the CPU.

        Returns:
            The value without stored tensors. A stored tensor that occurs twice is read once.

        Raises:
            CheckpointError: A file can no longer be read, for example because the checkpoint was removed.

        Example:
            >>> import torch
            >>> from pa_checkpoint import StoredTensor
            >>> StoredTensor.resolve({"weights": [StoredTensor.of(torch.ones(2))], "step": 3})
            {'weights': [tensor([1., 1.])], 'step': 3}
        """
        return _Resolving().resolve(value, like)

    def example(self) -> Tensor:
        """Return a tensor of the same shape and type that takes no memory, to compare shapes without reading values.

        You call it where a function needs a tensor but only looks at its shape and type, for example for a check
        whether a state dict fits a model. Nothing is read from the disk.

        Returns:
            A tensor of zeros on the CPU, with the saved shape and dtype. All its elements are the same memory, so
            writing values to it, for example with ``copy_``, raises a ``RuntimeError``.

        Example:
            >>> import torch
            >>> from pa_checkpoint import StoredTensor
            >>> example = StoredTensor.of(torch.ones(2, 3, dtype=torch.bfloat16)).example()
            >>> example.shape, example.dtype, example.untyped_storage().nbytes()
            (torch.Size([2, 3]), torch.bfloat16, 2)
        """
        return torch.zeros((), dtype=self.dtype, device="cpu").expand(self.shape)

    def whole(self) -> Tensor:
        """Read the whole tensor into the memory of the CPU.

        You call it, on any process, for a tensor that is small enough; ``like`` and ``read_into`` read only the piece
        of this process. The processes need not call it together.

        Returns:
            A new tensor on the CPU with the saved shape and type.

        Raises:
            CheckpointError: A file can no longer be read, for example because the checkpoint was removed.

        Example:
            >>> import torch
            >>> from pa_checkpoint import StoredTensor
            >>> StoredTensor.of(torch.arange(3)).whole()
            tensor([0, 1, 2])
        """
        tensor = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        self.read_into(tensor)
        return tensor

    def like(self, parameter: Tensor) -> Tensor:
        """Read the tensor sharded like a parameter, or whole on the device of a plain parameter.

        You call it to load optimizer state, whose tensors are split like their parameters. If you have the target
        tensor already, use ``read_into``. A tensor whose shape differs from the parameter's shape, for example a sum
        for each row, is split along the dimensions in which both have the same size.

        Args:
            parameter: A parameter, whose values are not used. If it is a ``DTensor``, this process reads only its
                piece.

        Returns:
            A new tensor of the saved shape and type: a ``DTensor`` on the mesh of the parameter, or a plain tensor.

        Raises:
            CheckpointError: A file can no longer be read, for example because the checkpoint was removed.

        Example:
            >>> import torch
            >>> from pa_checkpoint import StoredTensor
            >>> StoredTensor.of(torch.arange(3)).like(torch.nn.Parameter(torch.zeros(3)))
            tensor([0, 1, 2])
        """
        made = self._empty_like(parameter)
        self.read_into(made)
        return made

    def read_into(self, target: Tensor) -> None:
        """Fill a tensor of the same shape, of any type and on any device.

        You call it to load a weight in place, without a second tensor of its size. For a new tensor, use ``whole`` or
        ``like``. Gradients are not recorded.

        Args:
            target: The tensor to fill, which must have the shape ``shape``. If it is a ``DTensor``, this process reads
                only its piece. The values are converted to its type.

        Raises:
            ValueError: The tensor has a different shape. It is not changed then.
            CheckpointError: A file can no longer be read, for example because the checkpoint was removed.

        Example:
            >>> import torch
            >>> from pa_checkpoint import StoredTensor
            >>> weight = torch.nn.Parameter(torch.zeros(2))
            >>> StoredTensor.of(torch.ones(2)).read_into(weight)
            >>> weight.tolist()
            [1.0, 1.0]
        """
        if target.shape != self.shape:
            raise ValueError(
                f"The stored tensor has the shape {tuple(self.shape)}, and the tensor to fill has the shape "
                f"{tuple(target.shape)}. Pass a tensor of the stored shape, or read a new one with whole()."
            )
        with torch.no_grad():
            if is_sharded(target):
                self._read_piece_into(target)
                return
            for piece in self.pieces:
                piece.source.read_into(_region(target, piece.offsets, piece.shape), (0,) * len(piece.shape))

    def _read_piece_into(self, target: DTensor) -> None:
        """Fill the piece of this process."""
        from torch.distributed.checkpoint.metadata import (
            ChunkStorageMetadata,
            TensorProperties,
            TensorStorageMetadata,
        )
        from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

        saved = TensorStorageMetadata(
            TensorProperties(dtype=self.dtype),
            self.shape,
            [ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.shape)) for piece in self.pieces],
        )
        local, chunks = local_piece(target), chunks_of(target)
        for item in create_read_items_for_chunk_list("", saved, chunks):
            piece = self.pieces[item.storage_index.index or 0]
            piece.source.read_into(_region(local, item.dest_offsets, item.lengths), item.storage_offsets)

    def _empty_like(self, parameter: Tensor) -> Tensor:
        """Return an empty tensor that is sharded like a parameter."""
        if not is_sharded(parameter):
            return torch.empty(self.shape, dtype=self.dtype, device=parameter.device)
        if self.shape == parameter.shape:
            return torch.empty_like(parameter, dtype=self.dtype, requires_grad=False)
        from torch.distributed.tensor import empty  # pyright: ignore[reportUnknownVariableType]  # its sizes have no type

        placements = [self._placement(placement, parameter) for placement in parameter.placements]
        made = empty(*self.shape, dtype=self.dtype, device_mesh=parameter.device_mesh, placements=placements)
        return made.to(parameter.device)  # that of the mesh is another one where parameters are kept on the host

    def _placement(self, placement: Placement, parameter: Tensor) -> Placement:
        """Return the placement of this tensor for a placement of a parameter."""
        from torch.distributed.tensor import Replicate

        dimension: int | None = getattr(placement, "dim", None)  # of Shard
        is_split = dimension is not None and len(self.shape) == parameter.dim()
        is_shared = is_split and self.shape[dimension or 0] == parameter.shape[dimension or 0]
        return placement if is_shared else Replicate()


class StridedTensor(StoredTensor):
    """A stored tensor that had unusual strides when it was saved, and gets the same strides when it is read.

    Args:
        stored: The tensor.
        strides: The strides, counted in elements.

    Raises:
        ValueError: No tensor of its shape has these strides, or its elements would overlap.
    """

    def __init__(self, stored: StoredTensor, strides: Sequence[int]) -> None:
        super().__init__(stored.shape, stored.dtype, stored.pieces)
        self._strides = torch.Size(strides)
        if has_overlap(self.shape, self._strides):
            raise ValueError(f"the strides {strides} for a tensor of shape {tuple(self.shape)}")

    @override
    def whole(self) -> Tensor:
        """Read the whole tensor into the memory of the CPU, with its strides."""
        return with_strides(super().whole(), self._strides)


class _InMemory(NamedTuple):
    tensor: Tensor

    def read_into(self, target: Tensor, offsets: Sequence[int]) -> None:
        target.copy_(_region(self.tensor, offsets, target.shape))


def _region(tensor: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Return a block of a tensor."""
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dimension, offset, length)
    return tensor


_WITHOUT_PARTS = frozenset({bool, int, float, str, type(None)})  # long lists of numbers are common


class _Resolving:
    """A walk through a value that replaces stored tensors."""

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
        """Return the tensor in memory, the same tensor for each mention of a stored tensor."""
        parameter = own if is_sharded(own) and own.shape == value.shape else None
        if isinstance(value, Tensor) and parameter is None:
            return value
        key = id(value), id(parameter)
        if key not in self._tensors:
            stored = StoredTensor.of(value)
            made = stored.whole() if parameter is None else stored.like(parameter)
            self._tensors[key] = value, parameter, made  # no other object gets the number of one that is kept here
        return self._tensors[key][-1]


if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class ShardedPiece(NamedTuple):
    """The piece of a sharded tensor that this process holds, and the places of the other pieces.

    Attributes:
        tensor: The piece of this process, detached and not copied; without elements if the process has none.
        is_written_here: Whether this process writes its piece. If several processes hold the same piece, one of them
            does.
        description: The description of the whole tensor in the document of a checkpoint, without its name. It is the
            same on all processes, and its pieces are not empty and make up the whole tensor.
    """

    tensor: Tensor
    is_written_here: bool
    description: dict[str, Any]


class UnknownLayoutError(ValueError):
    """The pieces of a tensor are not blocks of the whole; the message gives the reason in a few words."""


def file_of_pieces(part: str, process: int, *, constant: bool = False) -> str:
    """Return the name of the file in which a process writes its pieces of a part of a checkpoint.

    Args:
        part: The name of the part.
        process: The rank of the process.
        constant: Whether the file holds the pieces that are unchanged since the previous checkpoint.
    """
    return f"{part}.{'constant.' if constant else ''}{process}-of-{dist.get_world_size()}.safetensors"


class PieceLayout:
    """Decides which process writes which piece of several tensors, so that all processes write about as much.

    All processes reach the same decision without communication, since it depends only on the meshes and the placements.

    Args:
        part: The name of the part of the checkpoint.
    """

    def __init__(self, part: str) -> None:
        self._part = part
        self._bytes_to_write: dict[int, int] = {}

    def plan(self, tensor: DTensor) -> ShardedPiece:
        """Decide about the next tensor; all processes must pass the tensors in the same order.

        Raises:
            UnknownLayoutError: The pieces are partial sums, or do not make up the whole tensor.
        """
        mesh: Any = tensor.device_mesh  # torch annotates it only in part
        shape = tuple(tensor.shape)
        blocks = _blocks(shape, tuple(mesh.shape), tuple(mesh.mesh.flatten().tolist()), tuple(tensor.placements))
        pieces: list[dict[str, Any]] = []
        is_written_here = False
        for block in blocks:
            size = math.prod(block.shape) * tensor.element_size()
            writer = min(block.holders, key=lambda rank: (self._bytes_to_write.get(rank, 0), rank))
            self._bytes_to_write[writer] = self._bytes_to_write.get(writer, 0) + size
            is_written_here |= writer == dist.get_rank()
            file = file_of_pieces(self._part, writer)
            pieces.append({"file": file, "offsets": list(block.offsets), "shape": list(block.shape)})
        description = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(shape), "pieces": pieces}
        return ShardedPiece(local_piece(tensor.detach()), is_written_here, description)


class _Block(NamedTuple):
    """A block of a tensor, and the processes that hold it."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    holders: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def _blocks(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], ranks: tuple[int, ...], placements: tuple[Any, ...]
) -> tuple[_Block, ...]:
    """Return the blocks with elements, in the order of the processes of a mesh.

    Args:
        shape: The shape of the whole tensor.
        mesh_shape: The shape of the mesh.
        ranks: The processes of the mesh, row by row.
        placements: How each dimension of the mesh splits the tensor.

    Raises:
        UnknownLayoutError: The pieces are partial sums, or do not make up the whole tensor.
    """
    if any(placement.is_partial() for placement in placements):
        raise UnknownLayoutError("each process has a part of a sum")
    holders: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for rank, coordinate in zip(ranks, itertools.product(*map(range, mesh_shape)), strict=True):
        of_rank, offsets = local_shape_and_offset(shape, mesh_shape, coordinate, placements)
        if math.prod(of_rank):
            holders.setdefault((offsets, of_rank), []).append(rank)
    blocks = tuple(_Block(offsets, of_rank, tuple(held)) for (offsets, of_rank), held in holders.items())
    _require_whole(shape, blocks)
    return blocks


def _require_whole(shape: Sequence[int], blocks: Sequence[_Block]) -> None:
    """Raise an error unless the blocks cover the tensor without overlap."""
    covered = sum(math.prod(block.shape) for block in blocks)
    if covered != math.prod(shape) or any(itertools.starmap(_overlap, itertools.combinations(blocks, 2))):
        raise UnknownLayoutError(f"pieces of a tensor of shape {tuple(shape)} that are not blocks side by side")


def _overlap(first: _Block, second: _Block) -> bool:
    """Return whether two blocks have a common element."""
    return all(
        begin < second_begin + second_size and second_begin < begin + size
        for begin, size, second_begin, second_size in zip(
            first.offsets, first.shape, second.offsets, second.shape, strict=True
        )
    )


_NAME = re.compile(r".+\.[0-9]+-of-[0-9]+\.safetensors")
_BLOCK = 1 << 22  # bytes that are read at a time: the memory that reading takes
_SMALL = 1 << 14  # bytes: to read a smaller tensor takes longer than to keep it


def is_piece_file(name: str) -> bool:
    """Return whether a file of a checkpoint holds the pieces of a process, according to its name."""
    return _NAME.fullmatch(name) is not None


class PieceFile:
    """A file of whole tensors, or of pieces that are stored under the names of their tensors.

    It is opened for each read, since there may be more files than a process may have open.

    Args:
        path: The file.
        size: The number of its bytes.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path: Path = path
        self._size = size
        self._header: Header | None = None
        self._seen: tuple[int, int] | None = None
        self._expected: dict[str, tuple[torch.dtype, Sequence[int]]] = {}

    def leave(self, file: DigestingReader, size: int) -> dict[str, Tensor | StoredTensor]:
        """Return the whole tensors of the file as stored tensors; small tensors are read.

        Args:
            file: This file, which is open for reading, at its beginning.
            size: The number of its bytes.

        Raises:
            MalformedFileError: It is not a tensor file.
        """
        self._require_same(file.file)
        self._header = read_header(file, size)
        tensors: dict[str, Tensor | StoredTensor] = {}
        for name, entry in self._header.entries.items():
            if entry.size <= _SMALL:
                tensors[name] = read_tensor(file, entry)
                continue
            file.skip(entry.size)
            shape, beginning = tuple(entry.shape), (0,) * len(entry.shape)
            piece = StoredPiece(beginning, shape, self.piece(name, entry.dtype, entry.shape))
            tensors[name] = StoredTensor(shape, entry.dtype, [piece])
        return tensors

    def piece(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> FilePiece:
        """Return a piece; ``check`` and ``read_into`` verify that the file contains it.

        Args:
            name: The name of its tensor.
            dtype: The type of its elements.
            shape: The shape of the piece.
        """
        self._expected[name] = dtype, shape
        return FilePiece(self, name)

    def check(self) -> None:
        """Check that the file contains all requested pieces.

        Raises:
            CheckpointError: The file cannot be read, or a piece is missing or has a different type or shape.
        """
        for name in self._expected:
            self._entry(name)

    def read_into(self, name: str, target: Tensor, offsets: Sequence[int]) -> None:
        """Fill a tensor with the part of a piece that begins at the offsets and has the shape of the tensor.

        Raises:
            CheckpointError: The file cannot be read, or does not contain the piece.
        """
        begin, entry = self._read_header().data_begin, self._entry(name)
        if target.numel() == 0:
            return
        try:
            with self.path.open("rb", buffering=0) as file:
                self._require_same(file)
                _Reading(file, begin, entry).fill(target, offsets)
        except OSError as error:
            raise damage(self.path, str(error)) from error

    def _entry(self, name: str) -> TensorEntry:
        """Return the checked description of a piece."""
        entry, (dtype, shape) = self._read_header().entries.get(name), self._expected[name]
        if entry is None or entry.dtype != dtype or entry.shape != list(shape):
            found = "nothing" if entry is None else f"{entry.dtype} of shape {tuple(entry.shape)}"
            raise damage(self.path, f"{found} as the piece of {name}", f"{dtype} of shape {tuple(shape)}")
        return entry

    def _read_header(self) -> Header:
        """Return the header of the file, which is read once."""
        if self._header is None:
            try:
                with self.path.open("rb") as file:
                    self._require_same(file)
                    self._header = read_header(DigestingReader(file), self._size)
            except (OSError, ValueError) as error:
                raise damage(self.path, str(error)) from error
        return self._header

    def _require_same(self, file: BufferedReader | FileIO) -> None:
        """Raise an error if the file has been replaced since it was first opened, so that states are never mixed."""
        status = os.fstat(file.fileno())
        found = status.st_size, status.st_mtime_ns
        if self._seen not in (None, found):
            raise damage(self.path, "another file, which has replaced it", "the file that was verified")
        self._seen = found


class FilePiece(NamedTuple):
    """A piece in a file."""

    file: PieceFile
    name: str

    def read_into(self, target: Tensor, offsets: Sequence[int]) -> None:
        """Fill a tensor with the part of the piece that begins at the offsets and has the shape of the tensor."""
        self.file.read_into(self.name, target, offsets)


class _Reading:
    """Reads a piece from an open file, in which its elements lie row by row."""

    def __init__(self, file: FileIO, data_begin: int, entry: TensorEntry) -> None:
        self._file = file
        self._begin = data_begin + entry.begin
        self._dtype = entry.dtype
        self._strides = torch.empty(entry.shape, device="meta").stride()

    def fill(self, target: Tensor, offsets: Sequence[int]) -> None:
        """Read into the memory of the target if it has the bytes of the file, or else in small blocks."""
        first, last = self._element(offsets), self._element([size - 1 for size in target.shape])
        if last + 1 == target.numel() and self._has_bytes_of_file(target):
            self._read_into(memory_of_values(target.detach()), first)
            if not target.is_inference():
                torch.autograd.graph.increment_version(target)
            return
        if target.numel() == 1 or (last + 1) * self._dtype.itemsize <= _BLOCK:
            target.copy_(self._read(first, last + 1).as_strided(target.shape, self._strides))
            return
        dimension = next(index for index, size in enumerate(target.shape) if size > 1)
        half = target.shape[dimension] // 2
        further = [offset + half * (index == dimension) for index, offset in enumerate(offsets)]
        self.fill(target.narrow(dimension, 0, half), offsets)
        self.fill(target.narrow(dimension, half, target.shape[dimension] - half), further)

    def _has_bytes_of_file(self, target: Tensor) -> bool:
        """Return whether the values have the same bytes in the file as in the target."""
        is_plain = target.device.type == "cpu" and type(target.detach()) is Tensor and not target.is_neg()
        return is_plain and target.dtype == self._dtype and target.is_contiguous()

    def _element(self, index: Sequence[int]) -> int:
        """Return the offset of an element."""
        return sum(place * stride for place, stride in zip(index, self._strides, strict=True))

    def _read(self, first: int, count: int) -> Tensor:
        """Read some elements."""
        elements = torch.empty(count, dtype=self._dtype, device="cpu")
        self._read_into(memory_of_values(elements), first)
        return elements

    def _read_into(self, wanted: memoryview, first: int) -> None:
        """Fill some memory with elements."""
        self._file.seek(self._begin + first * self._dtype.itemsize)
        while wanted:
            read = self._file.readinto(wanted)
            if not read:
                raise OSError("an end within a piece")
            wanted = wanted[read:]
