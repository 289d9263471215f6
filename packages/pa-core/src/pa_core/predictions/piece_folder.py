"""The folder in which pieces of predictions survive a killed process, until all of them are there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from pa_checkpoint import CheckpointError, FolderLock, atomic_write
from pa_core.distributed import rank
from pa_core.errors import ConfigurationError

_IDENTITY: Final = "identity.json"
_PIECE: Final = re.compile(r"(\d{12,})-(\d{12,})\.\w+\.[0-9a-f]{64}")


class PieceFolder:
    """Keeps pieces, each of them complete or missing, and a record of the predictions that they belong to.

    The name of a piece ends with the digest of its content, of its samples and of this record, so a piece that was
    damaged, or copied from other predictions, is detected when it is read.

    Args:
        path: The folder, which all processes share; created if it is missing.
        suffix: The suffix of the file names.
    """

    def __init__(self, path: Path, suffix: str) -> None:
        self.path: Path = path.absolute()
        self._suffix = suffix
        self._identity = b""
        self._lock: FolderLock | None = None

    def open(self, identity: Mapping[str, str], report: Callable[[str], None], *, remove_others: bool) -> None:
        """Start reading and writing, on the first process before all others; call `close` at the end.

        Args:
            identity: The values that determine the predictions, by name.
            report: A function that prints the reason if this takes time.
            remove_others: Whether pieces of other predictions are removed.

        Raises:
            CheckpointError: There are pieces of other predictions, and they must not be removed; or the folder holds
                other files.
            FolderInUseError: Another run is writing to the folder.
            ConfigurationError: The processes do not share the folder.
        """
        self._identity = json.dumps(dict(identity), indent=1, sort_keys=True).encode()
        path = self.path / _IDENTITY
        if rank() > 0:
            if not path.is_file() or path.read_bytes() != self._identity:
                raise ConfigurationError(
                    f"The processes do not share {self.path}, the folder of the pieces of the predictions. Write to a "
                    "disk that they share, or iterate over predict() and write on the first process."
                )
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.path, report)
        if path.exists():
            before = _read_identity(path)
            if before == identity:
                return
            if not remove_others:
                names = [name for name in {**before, **identity} if before.get(name) != identity.get(name)]
                shown = (f"{name}: {_short(before, name)}, now {_short(identity, name)}" for name in names)
                raise CheckpointError(
                    f"{self.path} has pieces of other predictions, which were not completed: {'; '.join(shown)}. Call "
                    'predict() as before to complete them, or pass other_pieces="remove" to start again.'
                )
            self._remove_pieces()
        elif foreign := [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]:
            raise CheckpointError(
                f"{self.path} holds files that are not pieces of predictions, for example {foreign[0]}. Move it out of "
                "the way, or pass another folder as pieces."
            )
        atomic_write(path, lambda file: file.write(self._identity))

    def found(self) -> dict[range, Path]:
        """Return the path of each piece, by its samples, without reading it.

        Raises:
            CheckpointError: A path with the name of a piece is not a file.
        """
        names = ((path, _PIECE.fullmatch(path.name)) for path in self.path.iterdir())
        found = {path: range(int(name[1]), int(name[2])) for path, name in names if name}
        for path in found:
            if path.is_symlink() or not path.is_file():
                raise _not_as_written(path)
        return {piece: path for path, piece in found.items()}

    def write(self, piece: range, writer: Callable[[BinaryIO], object]) -> None:
        """Write a piece atomically.

        Args:
            piece: The samples of the piece.
            writer: A function that is called with a file that is open for writing.
        """
        name = self._name(piece)
        unfinished = self.path / f".{name}.tmp"
        atomic_write(unfinished, writer)
        with unfinished.open("rb") as file:
            digest = self._digest(name, file)
        unfinished.replace(self.path / f"{name}.{digest}")

    def read(self, piece: range, path: Path | None) -> BinaryIO:
        """Open a piece after comparing it with its digest.

        Args:
            piece: The samples of the piece.
            path: The file of the piece, or None if there is none.

        Raises:
            CheckpointError: The piece is damaged or missing.
        """
        name = self._name(piece)
        if path is not None:
            file = path.open("rb")
            if path.name == f"{name}.{self._digest(name, file)}":
                file.seek(0)
                return file
            file.close()
        raise _not_as_written(path or self.path / name)

    def _name(self, piece: range) -> str:
        return f"{piece.start:012d}-{piece.stop:012d}{self._suffix}"

    def _digest(self, name: str, file: Any) -> str:
        start = len(self._identity).to_bytes(8, "little") + self._identity + name.encode()
        return hashlib.file_digest(file, lambda: hashlib.sha256(start)).hexdigest()

    def remove(self) -> None:
        """Remove the pieces, and the folder unless it contains other files."""
        self._remove_pieces()
        (self.path / _IDENTITY).unlink()
        self.close()
        with suppress(OSError):  # the folder contains other files
            self.path.rmdir()

    def _remove_pieces(self) -> None:
        """Remove all pieces, and the remains of pieces that killed processes left behind."""
        for path in [*self.found().values(), *self.path.glob(".*.tmp")]:
            path.unlink()

    def close(self) -> None:
        """Let other runs write to the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _not_as_written(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}, a piece of the predictions, is damaged. Remove it, and call predict() as before: its "
        "samples are predicted again."
    )


def _read_identity(path: Path) -> dict[str, object]:
    """Read the record of the predictions that the pieces of a folder belong to."""
    try:
        identity: Any = json.loads(path.read_bytes() if path.is_file() else b"")
    except (ValueError, RecursionError):
        identity = None
    if not isinstance(identity, dict):
        raise CheckpointError(
            f"{path}, the record of the predictions that the pieces belong to, is damaged. Remove its "
            "folder, if the pieces in it are not needed, and call predict() as before."
        )
    return cast("dict[str, object]", identity)


def _short(identity: Mapping[str, object], name: str) -> str:
    return str(identity.get(name, "nothing"))[:16]
