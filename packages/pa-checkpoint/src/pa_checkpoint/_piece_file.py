"""Files of the pieces of tensors, of which no more is read than is requested."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pa_checkpoint._errors import damage
from pa_checkpoint._files import DigestingReader
from pa_checkpoint._tensor_file import Header, TensorEntry, read_header

__all__ = ["FilePiece", "PieceFile", "is_piece_file"]

_NAME = re.compile(r".+\.[0-9]+-of-[0-9]+\.safetensors")
_BLOCK = 1 << 22  # bytes that are read at a time: the memory that reading takes


def is_piece_file(name: str) -> bool:
    """Whether a file of a checkpoint holds the pieces of a process, by its name."""
    return _NAME.fullmatch(name) is not None


class PieceFile:
    """A file of pieces, each of which has the name of its tensor.

    It is opened for each reading: there may be more files than a process may have open.

    Args:
        path: The file.
        size: The bytes that it has.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path: Path = path
        self._size = size
        self._header: Header | None = None
        self._expected: dict[str, tuple[torch.dtype, Sequence[int]]] = {}

    def piece(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> FilePiece:
        """Return a piece, of which ``check`` and ``read_into`` see whether the file has it.

        Args:
            name: The name of its tensor.
            dtype: Its dtype.
            shape: Its shape.
        """
        self._expected[name] = dtype, shape
        return FilePiece(self, name)

    def check(self) -> None:
        """See that the file has all the requested pieces.

        Raises:
            CheckpointError: It cannot be read, or one of them is missing or has another dtype or shape.
        """
        for name in self._expected:
            self._entry(name)

    def read_into(self, name: str, target: Tensor, offsets: Sequence[int]) -> None:
        """Fill a tensor with the part of a piece that begins at the offsets and has the shape of the tensor.

        Raises:
            CheckpointError: The file cannot be read, or does not have the piece.
        """
        begin, entry = self._read_header().data_begin, self._entry(name)
        if target.numel() == 0:
            return
        try:
            with self.path.open("rb", buffering=0) as file:
                _Reading(file, begin, entry).fill(target, offsets)
        except OSError as error:
            raise damage(self.path, str(error)) from error

    def _entry(self, name: str) -> TensorEntry:
        entry, (dtype, shape) = self._read_header().entries.get(name), self._expected[name]
        if entry is None or entry.dtype != dtype or entry.shape != list(shape):
            found = "nothing" if entry is None else f"{entry.dtype} of shape {tuple(entry.shape)}"
            raise damage(self.path, f"{found} as the piece of {name}", f"{dtype} of shape {tuple(shape)}")
        return entry

    def _read_header(self) -> Header:
        if self._header is None:
            try:
                with self.path.open("rb") as file:
                    self._header = read_header(DigestingReader(file, verify=False), self._size)
            except (OSError, ValueError) as error:
                raise damage(self.path, str(error)) from error
        return self._header


class FilePiece(NamedTuple):
    """A piece in a file."""

    file: PieceFile
    name: str

    def read_into(self, target: Tensor, offsets: Sequence[int]) -> None:
        """Fill a tensor with the part of the piece that begins at the offsets and has the shape of the tensor."""
        self.file.read_into(self.name, target, offsets)


class _Reading:
    """One piece in an open file, whose elements lie row by row."""

    def __init__(self, file: FileIO, data_begin: int, entry: TensorEntry) -> None:
        self._file = file
        self._begin = data_begin + entry.begin
        self._dtype = entry.dtype
        self._strides = torch.empty(entry.shape, device="meta").stride()

    def fill(self, target: Tensor, offsets: Sequence[int]) -> None:
        """Read what lies between the first and the last wanted element, in halves where that is too much at a time."""
        first, last = self._element(offsets), self._element([size - 1 for size in target.shape])
        if target.numel() == 1 or (last + 1) * self._dtype.itemsize <= _BLOCK:
            target.copy_(self._read(first, last + 1).as_strided(target.shape, self._strides))
            return
        dimension = next(index for index, size in enumerate(target.shape) if size > 1)
        half = target.shape[dimension] // 2
        further = [offset + half * (index == dimension) for index, offset in enumerate(offsets)]
        self.fill(target.narrow(dimension, 0, half), offsets)
        self.fill(target.narrow(dimension, half, target.shape[dimension] - half), further)

    def _element(self, index: Sequence[int]) -> int:
        return sum(place * stride for place, stride in zip(index, self._strides, strict=True))

    def _read(self, first: int, count: int) -> Tensor:
        elements = torch.empty(count, dtype=self._dtype, device="cpu")
        wanted = memoryview(cast("Any", elements.view(torch.uint8).numpy()))
        self._file.seek(self._begin + first * self._dtype.itemsize)
        while wanted:
            read = self._file.readinto(wanted)
            if not read:
                raise OSError("an end within a piece")
            wanted = wanted[read:]
        return elements
