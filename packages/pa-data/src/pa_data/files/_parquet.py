"""A reader of Parquet files that uses pyarrow: row groups are decoded on request, and cached."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from pa_data.errors import ShardError, safe_cause, without_secrets
from pa_data.files._file_systems import is_url
from pa_data.files._shard_file import ShardFile

__all__ = ["Parquet"]


@dataclass(frozen=True)
class Parquet:
    """Reads Parquet files in which each row is a sample, as a dictionary of Python values by column.

    Pass it to ``ShardedFiles`` as the reader. It needs pyarrow: ``pip install pa-data[parquet]``. At the start only the
    footer of each file is read, for the number of rows. A row group, the smallest part that can be decoded, is decoded
    when a row of it is requested, and cached. So the ``cache_bytes`` of ``ShardedFiles`` should be large enough for the
    row groups that a window covers.

    Attributes:
        columns: The names of the columns to read. The default, None, reads all columns. If you name only the columns
            that you need, less is read and decoded.

    Raises:
        RuntimeError: pyarrow is not installed. ``count`` and ``open`` raise it, not the constructor.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from pa_data.files import Parquet, ShardedFiles
        >>> folder = tempfile.TemporaryDirectory()
        >>> pq.write_table(pa.table({"text": ["first", "second"], "label": [1, 2]}), f"{folder.name}/a.parquet")
        >>> data = ShardedFiles(f"{folder.name}/*.parquet", Parquet(columns=["text"]))
        >>> data[1]
        {'text': 'second'}
        >>> folder.cleanup()
    """

    name: ClassVar[str] = "parquet-v1"
    columns: Sequence[str] | None = None

    def count(self, file: ShardFile) -> int:
        """Return the number of rows of a file, from its footer.

        ``ShardedFiles`` calls it, so you need not. No row is decoded.

        Args:
            file: The file, on disk or in an object store.

        Returns:
            The number of samples, which may be 0.

        Raises:
            ShardError: The file is missing or damaged, is not a Parquet file, or lacks one of ``columns``.
            RuntimeError: pyarrow is not installed.

        Example:
            >>> import tempfile
            >>> import pyarrow as pa, pyarrow.parquet as pq
            >>> from pa_data.files import Parquet, ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     pq.write_table(pa.table({"label": [1, 2]}), f"{folder}/a.parquet")
            ...     Parquet().count(ShardFile(f"{folder}/a.parquet"))
            2
        """
        shard = self.open(file)
        shard.close()
        return shard.num_rows

    def open(self, file: ShardFile) -> _ParquetShard:
        """Open a file and read its footer.

        ``ShardedFiles`` calls it, so you need not. A row group is decoded when a row of it is requested.

        Args:
            file: The file, on disk or in an object store.

        Returns:
            An object that returns row ``n`` as a dictionary by column for the index ``n``, counted from 0, and has a
            ``close`` method.

        Raises:
            ShardError: The file is missing or damaged, is not a Parquet file, or lacks one of ``columns``.
            RuntimeError: pyarrow is not installed.

        Example:
            >>> import tempfile
            >>> import pyarrow as pa, pyarrow.parquet as pq
            >>> from pa_data.files import Parquet, ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     pq.write_table(pa.table({"label": [1, 2]}), f"{folder}/a.parquet")
            ...     Parquet().open(ShardFile(f"{folder}/a.parquet"))[1]
            {'label': 2}
        """
        return _ParquetShard(file, None if self.columns is None else list(self.columns))


@dataclass(frozen=True)
class _Rows:
    """A decoded row group."""

    nbytes: int
    columns: Mapping[str, Any]


class _ParquetShard:
    def __init__(self, file: ShardFile, columns: list[str] | None) -> None:
        self._file: ShardFile = file
        self._columns: list[str] | None = columns
        self._opened: Any = _open(file)  # pyarrow has no types
        about = self._opened.metadata
        sizes = [int(about.row_group(number).num_rows) for number in range(about.num_row_groups)]
        self._ends: NDArray[np.int64] = np.array([0, *accumulate(sizes)], np.int64)
        self.num_rows: int = int(self._ends[-1])
        self._check_columns()

    def __getitem__(self, row: int) -> dict[str, Any]:
        group = int(self._ends.searchsorted(row, side="right")) - 1
        rows = self._file.piece((group, tuple(self._columns or ())), lambda: self._decode(group))
        place = row - int(self._ends[group])
        return {name: column[place].as_py() for name, column in rows.columns.items()}

    def close(self) -> None:
        self._opened.close()

    def _decode(self, group: int) -> _Rows:
        # One thread: several workers decode at a time.
        with _explaining(self._file):
            table = self._opened.read_row_group(group, columns=self._columns, use_threads=False)
        columns = [column.chunk(0) if column.num_chunks == 1 else column for column in table.columns]
        return _Rows(table.nbytes, dict(zip(table.column_names, columns, strict=True)))

    def _check_columns(self) -> None:
        there = cast("list[str]", self._opened.schema_arrow.names)
        missing = [name for name in self._columns or () if name not in there]
        if missing:
            self.close()
            raise ShardError(
                f"A Parquet file lacks columns. Got {self._file.path}, columns={self._columns}, expected some of its "
                f"columns: {', '.join(there)}. Correct the names of the columns."
            )


def _open(file: ShardFile) -> Any:
    """Open a file with pyarrow."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        problem = "Parquet files are read by pyarrow, which is not installed."
        raise RuntimeError(f"{problem} Install pa-data[parquet].") from error
    with _explaining(file):
        return ParquetFile(file.open(), pre_buffer=True) if is_url(file.path) else ParquetFile(file.path)


@contextmanager
def _explaining(file: ShardFile) -> Generator[None]:
    """Turn pyarrow errors within the block into an error that names the file."""
    with file.explaining():
        try:
            yield
        except (FileNotFoundError, PermissionError, IsADirectoryError, ShardError):
            raise
        except (ValueError, OSError) as error:  # pyarrow's own errors are one or the other
            reason = without_secrets(f"{type(error).__name__}: {error}", file.path)
            raise ShardError(
                f"A Parquet file cannot be read. Got {file.path}: {reason}. Copy or write the file again."
            ) from safe_cause(error, file.path)
