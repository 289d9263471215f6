"""The folder in which pieces of predictions survive a killed process, until all of them are there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal, cast

from pa_checkpoint import FolderLock, atomic_write
from pa_core.distributed.collectives import gather_objects, rank
from pa_core.distributed.rank_messages import do_while_others_wait
from pa_core.errors import CheckpointError, ConfigurationError
from pa_core.predictions.job import Pieces

_IDENTITY: Final = "identity.json"
_PIECE: Final = re.compile(r"(\d{12,}-\d{12,}\.\w+)\.([0-9a-f]{64})")


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
        do_while_others_wait(partial(self._open, identity, others, say) if rank() == 0 else None)
        if not all(gather_objects((self.folder / _IDENTITY).exists())):
            raise ConfigurationError(
                f"The processes do not share {self.folder}, the folder of the pieces of the predictions. Write to a "
                "disk that they share, or iterate over predict() and write on the first process."
            )
        found = gather_objects(set(self._found()))[0]
        return {number for number in range(len(self._pieces)) if self._name(number) in found}

    def _open(
        self, identity: Mapping[str, str], others: Literal["error", "remove"], say: Callable[[str], object]
    ) -> None:
        path = self.folder / _IDENTITY
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.folder, say)
        if path.exists():
            before = _read_identity(path)
            if before == identity:
                return
            if others != "remove":
                names = [name for name in {**before, **identity} if before.get(name) != identity.get(name)]
                shown = (f"{name}: {_short(before, name)}, now {_short(identity, name)}" for name in names)
                raise CheckpointError(
                    "There are pieces of other predictions, which were not completed.",
                    given=f"{self.folder}, in which {'; '.join(shown)}",
                    do='Call predict() as before to complete them, or pass other_pieces="remove" to start again.',
                )
            self._remove_pieces()
        elif foreign := [entry.name for entry in self.folder.iterdir() if not entry.name.startswith(".")]:
            raise CheckpointError(
                f"{self.folder} holds something else than pieces of predictions, such as {foreign[0]}. Move it out of "
                "the way, or pass another folder as pieces."
            )
        atomic_write(path, lambda file: file.write(self._identity))

    def _found(self) -> dict[str, Path]:
        """Return which pieces there are, by the names that they have without their digests."""
        return {piece[1]: path for path in self.folder.iterdir() if (piece := _PIECE.fullmatch(path.name))}

    def _remove_pieces(self) -> None:
        """Remove all pieces, and what kills have left of some."""
        for path in list(self.folder.iterdir()):
            if _PIECE.fullmatch(path.name) or (path.name.startswith(".") and path.suffix == ".tmp"):
                path.unlink()

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
            if path.is_symlink() or not path.is_file() or path.suffix != f".{self._digest(name, path)}":
                raise CheckpointError(
                    f"{path}, a piece of the predictions, is not as it was written. Remove it, and call predict() as "
                    "before: its samples are predicted again."
                )
            paths.append(path)
        return paths

    def remove(self) -> None:
        """Remove the pieces, and the folder unless something else is in it."""
        self._remove_pieces()
        (self.folder / _IDENTITY).unlink()
        self.close()
        with suppress(OSError):  # something else is in it
            self.folder.rmdir()

    def close(self) -> None:
        """Let other runs write to the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _read_identity(path: Path) -> dict[str, object]:
    """What the pieces of a folder are predictions of."""
    try:
        identity: object = json.loads(path.read_bytes() if path.is_file() else b"")
    except (ValueError, RecursionError):
        identity = None
    if not isinstance(identity, dict):
        raise CheckpointError(
            f"{path} should say what the pieces are predictions of, and is damaged or something else. Remove its "
            "folder, if the pieces in it are not needed, and call predict() as before."
        )
    return cast("dict[str, object]", identity)


def _short(identity: Mapping[str, object], name: str) -> str:
    return str(identity.get(name, "nothing"))[:16]
