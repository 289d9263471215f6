"""A cache of decoded parts of files, limited in bytes; each process has its own."""

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
    """An object of known size, for example a pyarrow table or an array."""

    @property
    def nbytes(self) -> int:
        """The number of bytes in memory."""
        ...


_PieceT = TypeVar("_PieceT", bound=Piece)


class KeptPieces:
    """Parts of files that were used last; a single part is kept even if it is larger than the limit.

    Args:
        max_bytes: The largest number of bytes of all parts together.

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
        """Start empty, as in a process that was forked from a process with parts."""
        self._process = os.getpid()
        self._pieces: OrderedDict[Hashable, Piece] = OrderedDict()
        self._num_bytes = self._num_asked = self._num_made_again = 0
        self._dropped: set[Hashable] = set()

    def get(self, key: Hashable, make: Callable[[], _PieceT]) -> _PieceT:
        """Return a part, and create it if it is missing.

        Args:
            key: The key of the part.
            make: A function that creates the part.
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
        """Warn once if a tenth of the requested parts had been dropped shortly before."""
        if self._num_made_again == _MANY and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"The same parts of files are read again and again, as cache_bytes={self.max_bytes} does not hold "
                "what a window reaches over. Pass a larger cache_bytes to ShardedFiles, or a smaller window.",
            )

    @override
    def __reduce__(self) -> tuple[type[KeptPieces], tuple[int]]:
        """Pickle no parts: a different process reads its own."""
        return KeptPieces, (self.max_bytes,)
