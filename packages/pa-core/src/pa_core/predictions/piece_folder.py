"""The folder in which pieces of predictions survive a killed process, until all of them are there."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal, cast

from pa_checkpoint import FolderLock, atomic_write
from pa_core.distributed.collectives import gather_objects, rank
from pa_core.errors import CheckpointError, ConfigurationError, ExplainedError, FolderInUseError
from pa_core.predictions.pieces import Pieces

__all__ = ["PieceFolder"]

_IDENTITY: Final = "identity.json"
_PIECE: Final = re.compile(r"(\d{12,}-\d{12,}\.\w+)\.([0-9a-f]{64})")
_PIECE_WITHOUT_DIGEST: Final = re.compile(r"\d{12,}-\d{12,}\.\w+")


class PieceFolder:
    """Keeps pieces, each of them whole or not there, and what they are predictions of.

    The name of a piece ends with the digest of its content, its samples and what they are predictions of: a piece that
    was damaged or exchanged, even for one of other predictions, is found when it is read.

    Args:
        folder: The folder, which all processes share; made if it is missing.
        pieces: All pieces.
        suffix: What the names of its files end in.
    """

    def __init__(self, folder: Path, pieces: Pieces, suffix: str) -> None:
        self.folder: Path = folder
        self._pieces = pieces
        self._suffix = suffix
        self._identity = b""
        self._lock: FolderLock | None = None

    def open(
        self, identity: Mapping[str, str], others: Literal["error", "remove"], say: Callable[[str], object]
    ) -> set[int]:
        """Return the numbers of the pieces that are there; every process must call this, and `close` at the end.

        Args:
            identity: What decides the predictions, by name.
            others: What to do with pieces that are predictions of something else.
            say: Told why it takes time, where it does.

        Raises:
            CheckpointError: There are such pieces, and they must not be removed; or the folder holds other files.
            FolderInUseError: Another run is writing to the folder.
            ConfigurationError: The processes do not share the folder.
        """
        self._identity = json.dumps(dict(identity), indent=1, sort_keys=True).encode()
        found: set[int] = set()
        error: Exception | None = None
        if rank() == 0:
            try:
                found = self._open(identity, others, say)
            except (ExplainedError, CheckpointError, OSError) as problem:
                error = problem
        found, error = gather_objects((found, error))[0]
        if error is not None:
            raise error
        if not all(gather_objects((self.folder / _IDENTITY).exists())):
            raise ConfigurationError(
                "The processes do not share the folder in which they put the pieces of the predictions.",
                given=f"{self.folder}, which some of them do not see",
                do="Write to such a disk, or iterate over predict() and write on the first process.",
            )
        return found

    def _open(
        self, identity: Mapping[str, str], others: Literal["error", "remove"], say: Callable[[str], object]
    ) -> set[int]:
        path = self.folder / _IDENTITY
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._acquire(say)
        before = _read_identity(path)
        if before is None and any(not name.startswith(".") for name in self._names()):
            raise CheckpointError(
                "The folder for the pieces of the predictions holds something else.",
                given=f"{self.folder}, with {len(self._names())} files that are not pieces",
                expected="no such folder, or one that an earlier call of predict() has left",
                do="Move it out of the way, or pass another folder as pieces.",
            )
        if any(map(_PIECE_WITHOUT_DIGEST.fullmatch, self._names())):
            raise _of_earlier_version(self.folder)
        found = self._found()
        if before is not None and before != dict(identity):
            if others != "remove":
                raise _of_something_else(self.folder, before, identity)
            self._remove_pieces()
            before, found = None, {}
        self._remove_unfinished()
        if before is None:
            atomic_write(path, lambda file: file.write(self._identity))
        return {number for number in range(len(self._pieces)) if self._name(number) in found}

    def _found(self) -> dict[str, Path]:
        """Return which pieces there are, by the names that they have without their digests."""
        found: dict[str, Path] = {}
        for path in self.folder.iterdir():
            if piece := _PIECE.fullmatch(path.name):
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise _not_as_written(path, "no file")
                found[piece[1]] = path
        return found

    def _names(self) -> list[str]:
        return [entry.name for entry in self.folder.iterdir()]

    def _acquire(self, say: Callable[[str], object]) -> FolderLock:
        try:
            return FolderLock(self.folder, say)
        except FolderInUseError as error:
            raise FolderInUseError(
                "Another run is writing these predictions.",
                given=error.given,
                expected="a file that one run at a time writes",
                do="Wait for the other run to end, end it, or write to another file.",
            ) from None

    def _remove_unfinished(self) -> None:
        for entry in self.folder.glob(".*.tmp"):
            entry.unlink()

    def _remove_pieces(self) -> None:
        """Remove what they are predictions of at the end: after a kill in the middle, the others are known by it."""
        for name in filter(_PIECE.fullmatch, self._names()):
            (self.folder / name).unlink()
        (self.folder / _IDENTITY).unlink()

    def _name(self, number: int) -> str:
        positions = self._pieces.positions(number)
        return f"{positions.start:012d}-{positions.stop:012d}{self._suffix}"

    def _digest(self, name: str, path: Path) -> str:
        start = len(self._identity).to_bytes(8, "little") + self._identity + name.encode()
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.sha256(start)).hexdigest()

    def write(self, number: int, writer: Callable[[BinaryIO], object]) -> None:
        """Write a piece, which is there once it is whole and has reached the disk.

        Args:
            number: Its number.
            writer: Called with a file that is open for writing.
        """
        name = self._name(number)
        unfinished = self.folder / f".{name}.tmp"
        atomic_write(unfinished, writer)
        unfinished.replace(self.folder / f"{name}.{self._digest(name, unfinished)}")

    def verified_paths(self) -> list[Path]:
        """Return where all pieces are, in order.

        Raises:
            CheckpointError: One of them is not as it was written.
        """
        found = self._found()
        paths: list[Path] = []
        for name in map(self._name, range(len(self._pieces))):
            path = found.get(name, self.folder / name)
            try:
                digest = self._digest(name, path)
            except OSError as error:
                raise _not_as_written(path, str(error)) from error
            if path.suffix != f".{digest}":
                raise _not_as_written(path, f"of {path.stat().st_size} bytes, with the digest {digest}")
            paths.append(path)
        return paths

    def remove(self) -> None:
        """Remove the pieces, and the folder unless something else is in it."""
        self._remove_pieces()
        self.close()
        with suppress(OSError):  # something else is in it
            self.folder.rmdir()

    def close(self) -> None:
        """Let other runs write to the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _not_as_written(piece: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "A piece of the predictions is damaged, or was exchanged for something else.",
        given=f"{piece}, {found}",
        expected="the whole piece, as it was written",
        do="Remove it, and call predict() as before: its samples are predicted again.",
    )


def _read_identity(path: Path) -> dict[str, str] | None:
    """What the pieces of a folder are predictions of; None where nothing says so."""
    if not path.exists():
        return None
    if not path.is_file():
        raise _no_identity(path, "not a regular file")
    try:
        identity: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _no_identity(path, f"{type(error).__name__}: {error}") from error
    shown = reprlib.repr(identity)
    values = cast("dict[str, object]", identity) if isinstance(identity, dict) else {"": None}
    if not all(isinstance(value, str) for value in values.values()):
        raise _no_identity(path, f"with {shown}")
    return cast("dict[str, str]", values)


def _no_identity(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "The file that says what the pieces are predictions of is damaged, or is something else.",
        given=f"{path}, {found}",
        expected="a JSON object of strings, as predict() writes it",
        do="Remove its folder, if the pieces in it are not needed, and call predict() as before.",
    )


def _of_something_else(folder: Path, before: Mapping[str, str], now: Mapping[str, str]) -> CheckpointError:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    shown = "; ".join(f"{name}: {_short(before.get(name))}, now {_short(now.get(name))}" for name in names)
    return CheckpointError(
        "There are pieces of other predictions, which were not completed.",
        given=f"{folder}, in which {shown}",
        expected="pieces by the same model, of as many samples, with the same arguments",
        do='Call predict() as before to complete them, or pass other_pieces="remove" to start again.',
    )


def _of_earlier_version(folder: Path) -> CheckpointError:
    return CheckpointError(
        "An earlier version of pa-core has written the pieces of the predictions.",
        given=f"{folder}, with pieces whose names have no digest to compare them with",
        expected="pieces of this version",
        do="Remove the folder, and call predict() as before: all samples are predicted again.",
    )


_SHOWN = 16


def _short(value: str | None) -> str:
    return "nothing" if value is None else value[:_SHOWN]
