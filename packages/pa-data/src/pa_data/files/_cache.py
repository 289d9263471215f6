"""What was read or decoded last, kept until it takes too many bytes; each process has its own."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar, cast

from typing_extensions import override

from pa_data._warnings import warn_user

__all__ = ["KeptPieces", "Piece"]

_MANY, _OF = 20, 200


class Piece(Protocol):
    """Something whose size is known, such as a table of pyarrow or an array."""

    @property
    def nbytes(self) -> int:
        """The number of bytes that it takes."""
        ...


_PieceT = TypeVar("_PieceT", bound=Piece)


class KeptPieces:
    """Pieces of files, of which those that were used last are kept; one is kept no matter how large it is.

    Args:
        max_bytes: How many bytes all of them may take.

    Example:
        >>> pieces = KeptPieces(max_bytes=3)
        >>> pieces.get("a", lambda: memoryview(b"xx")) is pieces.get("a", lambda: memoryview(b"yy"))
        True
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes: int = max_bytes
        self._has_warned = False
        self._forget()

    def _forget(self) -> None:
        """Start again, as a process does that was forked from one that has read."""
        self._process = os.getpid()
        self._pieces: OrderedDict[Hashable, Piece] = OrderedDict()
        self._num_bytes = self._num_asked = self._num_made_again = 0
        self._dropped: set[Hashable] = set()

    def get(self, key: Hashable, make: Callable[[], _PieceT]) -> _PieceT:
        """Return a piece, made if it is not there.

        Args:
            key: What the piece is known by.
            make: Makes it.
        """
        if self._process != os.getpid():
            self._forget()
        self._num_asked = (self._num_asked + 1) % _OF
        if self._num_asked == 0:
            self._dropped, self._num_made_again = set(), 0
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = make()
            self._num_bytes += piece.nbytes
            self._num_made_again += key in self._dropped
            self._warn_of_waste()
            while self._num_bytes > self.max_bytes and len(self._pieces) > 1:
                oldest, dropped = self._pieces.popitem(last=False)
                self._num_bytes -= dropped.nbytes
                self._dropped.add(oldest)
        self._pieces.move_to_end(key)
        return cast("_PieceT", piece)

    def _warn_of_waste(self) -> None:
        """Warn once if a tenth of what is requested had been thrown away a moment before."""
        if self._num_made_again == _MANY and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"The same parts of files are read again and again, as cache_bytes={self.max_bytes} does not hold "
                "what a window reaches over. Pass a larger cache_bytes to ShardedFiles, or a smaller window.",
            )

    @override
    def __reduce__(self) -> tuple[type[KeptPieces], tuple[int]]:
        """Pickle no pieces: another process reads its own."""
        return KeptPieces, (self.max_bytes,)
