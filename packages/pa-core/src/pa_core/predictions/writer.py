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
from pa_core.checkpoints.checkpoint import as_url
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
    """Writes predictions in pieces of consecutive samples, so that complete pieces survive if the script is killed.

    ``Trainer.predict(dataset, write=...)`` creates and calls it. Use it directly if your own loop predicts. Call
    ``open``, on the first process before the others; call ``write`` for the pieces in ``missing``, in any order and on
    any process; call ``finish`` on the first process when all pieces are written; and call ``close`` on every process.

    Args:
        write: A file whose name ends in .csv, .jsonl or .parquet; or a function that is called with the predictions for
            each batch and the ``range`` of their positions.
        num_samples: The number of samples in the dataset.
        batch_size: The number of samples in each batch, except for the last.
        samples_per_piece: The largest number of samples in a piece, rounded up to whole batches. After a kill,
            incomplete pieces are predicted again. The default is a thousandth of all samples, but at most 65,536, so
            that there are enough pieces for all processes and little work is lost.
        pieces: The folder of the pieces, which all processes share. The default is a folder next to the file, with
            ``.pieces`` added to its name. With a function, the folder holds a record of the written pieces; without a
            folder, nothing survives a kill.
        other_pieces: What to do with pieces in the folder that belong to other predictions: ``"error"``, the default,
            because they may have taken hours to compute, or ``"remove"``.
        ids: A value for each sample, for a first column ``id``: a list, a tensor of one dimension, a ``range``. None,
            the default, writes no such column. Not allowed with a function, which gets the positions instead.

    Attributes:
        path: The absolute path of the file; None for a function.
        missing: The ``range`` of positions of each missing piece, in order; empty before ``open``.

    Raises:
        ArgumentTypeError: ``write`` is neither a path nor a function.
        ConfigurationError: An argument has a value that cannot work.
        UnsupportedConfigurationError: A Parquet file needs pyarrow, which is not installed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pa_core.predictions import ResumableWriter
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
        """Return the positions of the samples in each batch of a piece, to predict them while you write the piece.

        Call it for each piece that this process writes; ``write`` expects the predictions for these batches.

        Args:
            piece: A ``range`` from ``missing``.

        Returns:
            Consecutive ranges of ``batch_size`` positions in the dataset; the last may be shorter.

        Example:
            >>> from pa_core.predictions import ResumableWriter
            >>> writer = ResumableWriter("squares.csv", num_samples=5, batch_size=2, samples_per_piece=4)
            >>> writer.batches(range(0, 4))
            [range(0, 2), range(2, 4)]
        """
        return _parts(piece, self._batch_size)

    def open(self, identity: Mapping[str, str], report: Callable[[str], None] = print) -> None:
        """Find the pieces that already exist, and set ``missing``; call this before you write anything.

        Call it on every process: on the first process before the others, for example with a barrier in between. It
        creates the folder and keeps other runs out of it until ``close``.

        Args:
            identity: The values that determine the predictions, by name, for example ``{"weights": digest, "prompt":
                prompt}``. Pieces that were written with other values are not reused. All processes must pass the same
                values.
            report: A function that is called with lines for the user: how many pieces exist, and why opening takes
                time. The default prints them.

        Raises:
            CheckpointError: There are pieces of other predictions, and ``other_pieces`` is ``"error"``; or the folder
                holds other files.
            FolderInUseError: Another run is writing to the folder.
            ConfigurationError: The processes do not share the folder.

        Example:
            >>> from pa_core.predictions import ResumableWriter
            >>> writer = ResumableWriter(print, num_samples=3, batch_size=2)  # without a folder
            >>> writer.open({})
            >>> writer.missing
            [range(0, 2), range(2, 3)]
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
        """Write a piece: to a file in the folder, atomically, or by calling the function for each of its batches.

        Call it between ``open`` and ``finish``, once for each piece in ``missing``, on any process. If the process is
        killed during the call, the piece stays missing.

        Args:
            piece: A ``range`` from ``missing``.
            batches: For each batch of ``batches(piece)``, in order, its positions and the predictions for them: a
                tensor or a list with a row for each sample, or a mapping of columns. If you pass an iterator, they are
                computed while they are written.

        Raises:
            BatchOutputError: The predictions do not fit the file, for example because they are not rows.
            OSError: The piece cannot be written.

        Example:
            >>> from pa_core.predictions import ResumableWriter
            >>> writer = ResumableWriter(print, num_samples=3, batch_size=3)
            >>> writer.open({})
            >>> for piece in writer.missing:
            ...     writer.write(piece, [(batch, [n**2 for n in batch]) for batch in writer.batches(piece)])
            [0, 1, 4] range(0, 3)
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
        """Join the pieces into the file, in the order of the samples, and remove the pieces and their folder.

        Call it once, on the first process only, after all processes have written their pieces; to wait for them, call
        ``wait_for_everyone()`` of a trainer, or ``gather_objects``, on every process first. With a function, it checks
        and removes the record of the pieces. The file is written atomically, and an existing file is replaced.

        Raises:
            BatchOutputError: The pieces do not fit into the same file, for example because their columns differ.
            CheckpointError: A piece is damaged or missing. Remove it, and predict it again.
            OSError: The file cannot be written.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_core.predictions import ResumableWriter
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     writer = ResumableWriter(f"{folder}/n.csv", num_samples=2, batch_size=2)
            ...     writer.open({})
            ...     writer.write(range(2), [(range(2), {"n": [0, 1]})])
            ...     writer.finish()
            ...     writer.close()
            ...     Path(folder, "n.csv").read_text().split()
            ['n', '0', '1']
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
        """Release the folder, so that other runs can write to it.

        Call it on every process at the end, even after an exception, for example in a ``finally`` block. It keeps the
        pieces, so that a later run can complete them; after ``finish`` there are none left.

        Example:
            Even if a prediction fails::

                writer.open({"weights": digest})
                try:
                    for piece in writer.missing:
                        writer.write(piece, predict_batches(writer.batches(piece)))
                    writer.finish()
                finally:
                    writer.close()
        """
        if self._folder is not None:
            self._folder.close()


def _checked(path: str | Path) -> Path:
    if (url := as_url(path)) is not None:
        raise ConfigurationError(
            "Predictions are written to a file on this machine, or on a disk that all machines share, not to "
            f"{url!r}. Write a local file, and send it to the store afterwards."
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
