"""Predictions that each process writes: piece by piece to a folder, or to a function."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import Tensor

from pa_checkpoint import atomic_write
from pa_core.distributed.collectives import num_processes, rank
from pa_core.distributed.rank_messages import RankMessages, do_while_others_wait
from pa_core.errors import ArgumentTypeError, ConfigurationError
from pa_core.predictions.file_formats import FileFormat, columns_of, format_of
from pa_core.predictions.job import Pieces, PredictionJob
from pa_core.predictions.piece_folder import PieceFolder
from pa_core.predictions.types import PredictionWriter
from pa_core.run_config import check_count

_MOST_PIECES = 1_000
_MOST_SAMPLES = 65_536


class Writing:
    """What ``predict()`` writes to, and what of it is there already.

    Args:
        write: A file, or a function that is called with the predictions for each batch and their positions.
        job: What is predicted.
        samples_per_piece: As passed to ``predict()``.
        folder: Where the pieces are kept; None for a folder next to the file.
        other_pieces: What to do with pieces of other predictions.

    Attributes:
        path: The file, None for a function.
        pieces: All pieces.

    Raises:
        ArgumentTypeError: ``write`` is neither a path nor a function.
        ConfigurationError: An argument cannot work.
        UnsupportedConfigurationError: A package is missing.
    """

    def __init__(
        self,
        write: str | Path | PredictionWriter[Any],
        job: PredictionJob,
        *,
        samples_per_piece: int | None,
        folder: str | Path | None,
        other_pieces: Literal["error", "remove"],
    ) -> None:
        if other_pieces not in ("error", "remove"):
            raise ConfigurationError(f'other_pieces must be "error" or "remove", got {other_pieces!r}.')
        self.path: Path | None = _path_of(write)
        # By default as many pieces as leave no process long without work, and lose little with a kill.
        most = (
            min(-(-job.num_samples // _MOST_PIECES), _MOST_SAMPLES) if samples_per_piece is None else samples_per_piece
        )
        check_count("samples_per_piece", most)
        self.pieces: Pieces = Pieces(job.num_samples, job.batch_size, -(-most // job.batch_size))
        self._function = None if isinstance(write, str | Path) else write
        self._format: FileFormat | None = None if self.path is None else format_of(self.path)
        if folder is None and self.path is not None:
            folder = self.path.with_name(f"{self.path.name}.pieces")
        suffix = ".done" if self.path is None else self.path.suffix
        self._folder = None if folder is None else PieceFolder(Path(folder).absolute(), self.pieces, suffix)
        self._other_pieces: Literal["error", "remove"] = other_pieces
        self._messages: RankMessages | None = None

    def open(self, identity: Mapping[str, str], say: Callable[[str], object]) -> Tensor:
        """Return the numbers of the missing pieces that this process predicts.

        Every process must call this, and `close` later.

        Args:
            identity: What decides the predictions, by name.
            say: Told what is there already, and why it takes time, where it does.

        Raises:
            CheckpointError: There are pieces of other predictions.
            FolderInUseError: Another run is writing them.
            ConfigurationError: The processes do not share the folder.
        """
        self._messages = RankMessages() if num_processes() > 1 else None
        found: set[int] = set()
        if self._folder is not None:
            name = "a function" if self.path is None else self.path.suffix
            cut = {"samples in a piece": str(self.pieces.size), "written to": name}
            found = self._folder.open({**identity, **cut}, self._other_pieces, say)
            if found:
                folder = self._folder.folder
                say(f"{len(found)} of {len(self.pieces)} pieces of the predictions are in {folder} already")
        missing = [number for number in range(len(self.pieces)) if number not in found]
        return torch.tensor(missing[rank() :: num_processes()], dtype=torch.int64)

    def write(self, number: int, predicted: Iterator[Any]) -> None:
        """Write a piece.

        Args:
            number: Its number.
            predicted: Makes the predictions for its batches, and for more than those.
        """

        def write_piece(file: BinaryIO) -> None:
            batches = ((positions, next(predicted)) for positions in self.pieces.batches(number))
            if self._format is not None:
                self._format.write((columns_of(one, len(positions)) for positions, one in batches), file)
            elif self._function is not None:
                for positions, one in batches:
                    self._function(one, positions)

        if self._folder is None:
            write_piece(io.BytesIO())
        else:
            self._folder.write(number, write_piece)

    def finish(self) -> None:
        """Join the pieces once all processes have written theirs, and remove them; every process must call this.

        Raises:
            BatchOutputError: The pieces do not go together.
            CheckpointError: A piece is not as it was written.
            OSError: The file cannot be written.
            OtherProcessError: Another process has failed, or is gone, before it was done.
        """
        if self._messages is not None:
            self._messages.wait_for_all()
        do_while_others_wait(self._join if rank() == 0 else None)

    def close(self) -> None:
        """Let other runs write the same, and the others fail that wait for this process; none of it after `finish`."""
        if self._messages is not None:
            self._messages.leave()
        if self._folder is not None:
            self._folder.close()

    def _join(self) -> None:
        if self._folder is None:
            return
        if self.path is not None and self._format is not None:
            atomic_write(self.path, partial(self._format.join, self._folder.verified_paths()))
        self._folder.remove()


def _path_of(write: object) -> Path | None:
    if isinstance(write, str) and "://" in write:
        raise ConfigurationError(
            "Predictions are written to a file of this machine, or of a disk that all machines share, not to "
            f"{write!r}. Write a local file, and send it to the store afterwards."
        )
    if isinstance(write, str | Path):
        path = Path(write).absolute()
        if path.exists() and not path.is_file():
            raise ConfigurationError(
                f"{path} is a {'folder' if path.is_dir() else 'device or pipe'}, where predictions are to be written. "
                "Add a file name to the path."
            )
        return path
    if not callable(write):
        raise ArgumentTypeError(
            f"write={write!r} is nothing to write predictions to. Pass a path such as 'predictions.csv', or a function "
            "of the predictions and their positions."
        )
    return None


def require_nothing_to_write(**arguments: object) -> None:
    """Raise an error for arguments that have no effect where the predictions are iterated over.

    Args:
        **arguments: The arguments of ``predict()`` that belong to ``write``.

    Raises:
        ConfigurationError: One of them was passed.
    """
    for name, value in arguments.items():
        if value not in (None, "error"):
            raise ConfigurationError(f"{name} must be left out without write, a file or a function, got {value!r}.")
