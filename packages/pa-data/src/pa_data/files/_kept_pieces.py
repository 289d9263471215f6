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
        self._process = os.getpid()
        self._pieces: OrderedDict[Hashable, Piece] = OrderedDict()
        self._num_bytes = 0
        self._dropped: OrderedDict[Hashable, int] = OrderedDict()
        self._made_bytes = 0
        self._num_asked = 0
        self._num_made_again = 0
        self._has_warned = False

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
            self._num_made_again = 0
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = make()
            self._note_made(key, piece.nbytes)
            while self._num_bytes > self.max_bytes and len(self._pieces) > 1:
                self._drop_oldest()
        self._pieces.move_to_end(key)
        return cast("_PieceT", piece)

    def _note_made(self, key: Hashable, num_bytes: int) -> None:
        """Count a new piece; warn once if a tenth of what is requested had been thrown away a moment before."""
        dropped_at = self._dropped.pop(key, None)
        if dropped_at is not None and self._made_bytes - dropped_at < self.max_bytes:
            self._num_made_again += 1
            if self._num_made_again == _MANY and not self._has_warned:
                self._has_warned = True
                warn_user(
                    f"The same parts of files are read again and again, as cache_bytes={self.max_bytes} does not hold "
                    "what a window reaches over. Pass a larger cache_bytes to ShardedFiles, or a smaller window.",
                )
        self._num_bytes += num_bytes
        self._made_bytes += num_bytes

    def _drop_oldest(self) -> None:
        key, piece = self._pieces.popitem(last=False)
        self._num_bytes -= piece.nbytes
        self._dropped[key] = self._made_bytes
        while self._made_bytes - next(iter(self._dropped.values())) > self.max_bytes + piece.nbytes:
            self._dropped.popitem(last=False)

    def _forget(self) -> None:
        """Start again, as a process does that was forked from one that has read."""
        self._process = os.getpid()
        self._pieces.clear()
        self._dropped.clear()
        self._num_bytes = self._made_bytes = self._num_asked = self._num_made_again = 0

    @override
    def __reduce__(self) -> tuple[type[KeptPieces], tuple[int]]:
        """Pickle no pieces: another process reads its own."""
        return KeptPieces, (self.max_bytes,)
