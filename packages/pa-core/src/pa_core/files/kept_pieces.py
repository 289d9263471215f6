"""What was read or decoded last, kept until it takes too many bytes; each process has its own."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar, cast

from typing_extensions import override

__all__ = ["KeptPieces", "Piece"]


class Piece(Protocol):
    """Something whose size is known, such as a table of pyarrow or an array."""

    @property
    def nbytes(self) -> int:
        """The number of bytes that it takes."""
        ...


_PieceT = TypeVar("_PieceT", bound=Piece)


class KeptPieces:
    """Pieces of files, of which those that were used last are kept; one is kept however large it is.

    Args:
        max_bytes: How many bytes all of them may take.

    Example:
        >>> pieces = KeptPieces(max_bytes=3)
        >>> pieces.get("a", lambda: memoryview(b"xx")) is pieces.get("a", lambda: memoryview(b"yy"))
        True
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes: int = max_bytes
        self._forget()

    def get(self, key: Hashable, make: Callable[[], _PieceT]) -> _PieceT:
        """Return a piece, made if it is not there.

        Args:
            key: What the piece is known by.
            make: Makes it.
        """
        if self._process != os.getpid():
            self._forget()
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = make()
            self._num_bytes += piece.nbytes
            while self._num_bytes > self.max_bytes and len(self._pieces) > 1:
                self._num_bytes -= self._pieces.popitem(last=False)[1].nbytes
        self._pieces.move_to_end(key)
        return cast("_PieceT", piece)

    def _forget(self) -> None:
        self._process = os.getpid()
        self._pieces: OrderedDict[Hashable, Piece] = OrderedDict()
        self._num_bytes = 0

    @override
    def __reduce__(self) -> tuple[type[KeptPieces], tuple[int]]:
        """Pickle no pieces: another process reads its own."""
        return KeptPieces, (self.max_bytes,)
