"""A writer of predictions in pieces, to a file that is joined from them or to a function."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from torch import Tensor

from pa_checkpoint import atomic_write
from pa_core.errors import ArgumentTypeError, ConfigurationError
from pa_core.predictions.columns import Column, Ids, columns_of
from pa_core.predictions.parquet import join_tables, require_pyarrow, write_table
from pa_core.predictions.piece_folder import PieceFolder
from pa_core.predictions.text import join_csv, join_lines, write_csv, write_lines
from pa_core.types import PredictionWriter

_MOST_PIECES = 1_000
_MOST_SAMPLES = 65_536

_FORMATS = {
    ".csv": (write_csv, join_csv),
    ".jsonl": (write_lines, join_lines),
    ".parquet": (write_table, join_tables),
}
"""The functions that write the batches of a piece, and that join pieces, by the suffix of the file."""


class ResumableWriter:
    """Write predictions piece by piece, so that written pieces survive a kill.

    ``Trainer.predict(dataset, write=...)`` creates and calls it. Use it directly if your own loop predicts: open the
    writer, on the first process before the others, write the missing pieces in any order and on any process, and finish
    on the first process when all pieces are written.

    Args:
        write: A file whose name ends in .csv, .jsonl or .parquet; or a function that is called with the predictions for
            each batch and the range of their positions.
        num_samples: The number of samples.
        batch_size: The number of samples of each batch, except for the last.
        samples_per_piece: The largest number of samples of a piece, rounded up to whole batches: they are predicted
            again after a kill. The default is a thousandth of all samples, and 65,536 at most.
        pieces: The folder of the pieces. The default is a folder next to the file, with ``.pieces`` added to its name.
            With a function, the folder holds a record of the written pieces; without a folder, nothing survives a kill.
        other_pieces: What to do with pieces of other predictions: ``"error"``, the default, or ``"remove"``.
        ids: A value for each sample, for a first column ``id``: a list, a tensor of one dimension, a ``range``. A
            function gets the positions instead.

    Attributes:
        path: The file, None for a function.
        missing: The positions of the samples of each missing piece, in order, once the writer is open.

    Raises:
        ArgumentTypeError: ``write`` is neither a path nor a function.
        ConfigurationError: An argument has a value that cannot work.
        UnsupportedConfigurationError: A Parquet file needs pyarrow, which is not installed.

    Example:
        >>> import tempfile
        >>> temporary = tempfile.TemporaryDirectory()
        >>> writer = ResumableWriter(f"{temporary.name}/squares.csv", num_samples=5, batch_size=2)
        >>> writer.open({"weights": "those of Monday"})
        >>> writer.missing
        [range(0, 2), range(2, 4), range(4, 5)]
        >>> for piece in writer.missing:
        ...     writer.write(piece, ((batch, {"square": [one**2 for one in batch]}) for batch in writer.batches(piece)))
        >>> writer.finish()
        >>> writer.close()
        >>> Path(temporary.name, "squares.csv").read_text().split()
        ['square', '0', '1', '4', '9', '16']
        >>> temporary.cleanup()
    """

    def __init__(
        self,
        write: str | Path | PredictionWriter[Any],
        num_samples: int,
        batch_size: int,
        *,
        samples_per_piece: int | None = None,
        pieces: str | Path | None = None,
        other_pieces: Literal["error", "remove"] = "error",
        ids: Sequence[Any] | Tensor | None = None,
    ) -> None:
        if other_pieces not in ("error", "remove"):
            raise ConfigurationError(f'other_pieces must be "error" or "remove", got {other_pieces!r}.')
        # The default number of pieces keeps all processes busy, and loses little with a kill.
        most = min(-(-num_samples // _MOST_PIECES), _MOST_SAMPLES) if samples_per_piece is None else samples_per_piece
        for name, count in (("num_samples", num_samples), ("batch_size", batch_size), ("samples_per_piece", most)):
            if isinstance(count, bool) or not isinstance(cast("object", count), Integral) or count < 1:
                raise ConfigurationError(f"{name} must be a whole number of at least 1, got {count!r}.")
        self.path: Path | None = _checked(write) if isinstance(write, str | Path) else None
        self._function: PredictionWriter[Any] | None = None if isinstance(write, str | Path) else write
        if self.path is None and not callable(write):
            raise ArgumentTypeError(
                f"write={write!r} is not a place for predictions. Pass a path, for example 'predictions.csv', or a "
                "function of the predictions and their positions."
            )
        self._ids: Ids | None = None if ids is None else Ids(ids, num_samples)
        if ids is not None and self.path is None:
            raise ConfigurationError(
                "ids must be left out if write is a function, which is called with the positions of "
                "the samples, and can look up their ids."
            )
        self.missing: Sequence[range] = []
        self._batch_size: int = batch_size
        self._piece_size: int = -(-most // batch_size) * batch_size
        self._pieces: list[range] = _parts(range(num_samples), self._piece_size)
        self._removes_others: bool = other_pieces == "remove"
        if pieces is None and self.path is not None:
            pieces = self.path.with_name(f"{self.path.name}.pieces")
        self._suffix: str = ".done" if self.path is None else self.path.suffix
        self._folder: PieceFolder | None = None if pieces is None else PieceFolder(Path(pieces), self._suffix)

    def batches(self, piece: range) -> list[range]:
        """Return the positions of the samples of each batch of a piece, to iterate over while you write it.

        Args:
            piece: The positions of its samples, from ``missing``.

        Returns:
            Consecutive ranges of ``batch_size`` positions; the last may be shorter.
        """
        return _parts(piece, self._batch_size)

    def open(self, identity: Mapping[str, str], report: Callable[[str], None] = print) -> None:
        """Find the existing pieces; on several processes, the first process has to call this before the others.

        Args:
            identity: The values that decide the predictions, by name, for example ``{"weights": digest, "prompt":
                prompt}``. Pieces with other values are not reused.
            report: A function that prints how many pieces exist, and why opening takes time.

        Raises:
            CheckpointError: There are pieces of other predictions, or the folder holds other files.
            FolderInUseError: Another run is writing them.
            ConfigurationError: The processes do not share the folder.
        """
        self.missing = self._pieces
        if self._folder is not None:
            name = "a function" if self.path is None else self._suffix
            own = {"samples in a piece": str(self._piece_size), "written to": name}
            own |= {} if self._ids is None else {"ids": self._ids.digest()}
            self._folder.open({**identity, **own}, report, remove_others=self._removes_others)
            found = self._folder.found()
            self.missing = [piece for piece in self._pieces if piece not in found]
            if number := len(self._pieces) - len(self.missing):
                report(f"{number} of {len(self._pieces)} pieces of the predictions are in {self._folder.path} already")

    def write(self, piece: range, batches: Iterable[tuple[range, Any]]) -> None:
        """Write a piece, atomically if there is a folder; any process may call it, for each piece once.

        Args:
            piece: The positions of its samples, from ``missing``.
            batches: For each batch of ``batches(piece)``, in order, its positions and the predictions for them: a
                tensor or a list with a row for each sample, or a mapping of columns.

        Raises:
            BatchOutputError: The predictions do not fit the file.
        """
        if self._folder is None:
            self._write_batches(batches, io.BytesIO())
        else:
            self._folder.write(piece, partial(self._write_batches, batches))

    def _write_batches(self, batches: Iterable[tuple[range, Any]], file: BinaryIO) -> None:
        if self._function is None:
            write_columns, _ = _FORMATS[self._suffix]
            write_columns(starmap(self._columns_of, batches), file)
        else:
            for positions, predictions in batches:
                self._function(predictions, positions)

    def _columns_of(self, positions: range, predictions: object) -> dict[str, Column]:
        columns = columns_of(predictions, len(positions))
        return columns if self._ids is None else self._ids.beside(columns, positions)

    def finish(self) -> None:
        """Join the pieces once all are written, and remove them; call this on the first process only.

        All processes must have written their pieces before: call ``wait_for_everyone()`` of a trainer, or gather an
        object.

        Raises:
            BatchOutputError: The pieces do not fit into the same file.
            CheckpointError: A piece is damaged or missing.
            OSError: The file cannot be written.
        """
        if self._folder is None:
            return
        found = self._folder.found()
        open_pieces = [partial(self._folder.read, piece, found.get(piece)) for piece in self._pieces]
        if self.path is None:
            for open_piece in open_pieces:
                open_piece().close()  # opening compares it with its digest
        else:
            _, join = _FORMATS[self._suffix]
            atomic_write(self.path, partial(join, open_pieces))
        self._folder.remove()

    def close(self) -> None:
        """Release the folder, so that other runs can write to it; call it on every process, even after an exception."""
        if self._folder is not None:
            self._folder.close()


def _checked(path: str | Path) -> Path:
    if isinstance(path, str) and "://" in path:
        raise ConfigurationError(
            "Predictions are written to a file on this machine, or on a disk that all machines share, not to "
            f"{path!r}. Write a local file, and send it to the store afterwards."
        )
    path = Path(path).absolute()
    if path.exists() and not path.is_file():
        raise ConfigurationError(
            f"{path} is a {'folder' if path.is_dir() else 'device or pipe'}, not a file for the predictions. "
            "Add a file name to the path."
        )
    if path.suffix not in _FORMATS:
        raise ConfigurationError(
            f"The format of write={str(path)!r} is not known. Choose a name that ends in .csv, .jsonl or .parquet, or "
            "pass a function that writes the predictions for each batch."
        )
    if path.suffix == ".parquet":
        require_pyarrow()
    return path


def _parts(positions: range, size: int) -> list[range]:
    return [positions[start : start + size] for start in range(0, len(positions), size)]
