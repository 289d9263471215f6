"""A reader of Parquet files, by pyarrow: row groups are decoded as they are needed, and kept while there is room."""

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
    """Reads Parquet files: each row is a sample, a dictionary of Python values by the names of the columns.

    It needs pyarrow: ``pip install pa-data[parquet]``. The number of rows stands at the end of each file, which is all
    that is read at the start. A row group, the smallest part that can be decoded, is decoded when the first of its rows
    is requested, and kept while there is room: ``cache_bytes`` of `ShardedFiles` should hold those that a window
    reaches over. Only the requested columns are read.

    Attributes:
        columns: The names of the columns to read; None reads all.

    Raises:
        RuntimeError: pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from pa_data.files import ShardedFiles
        >>> folder = tempfile.TemporaryDirectory()
        >>> pq.write_table(pa.table({"text": ["one", "two"], "label": [1, 2]}), f"{folder.name}/a.parquet")
        >>> data = ShardedFiles(f"{folder.name}/*.parquet", Parquet(columns=["text"]))
        >>> data[1]
        {'text': 'two'}
        >>> folder.cleanup()
    """

    name: ClassVar[str] = "parquet-v1"
    columns: Sequence[str] | None = None

    def count(self, file: ShardFile) -> int:
        """Return the number of rows, which stands in the footer of the file."""
        shard = self.open(file)
        shard.close()
        return shard.num_rows

    def open(self, file: ShardFile) -> _ParquetShard:
        """Open a file, and read its footer."""
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
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        problem = "Parquet files are read by pyarrow, which is not installed."
        raise RuntimeError(f"{problem} Install pa-data[parquet].") from error
    with _explaining(file):
        return ParquetFile(file.open(), pre_buffer=True) if is_url(file.path) else ParquetFile(file.path)


@contextmanager
def _explaining(file: ShardFile) -> Generator[None]:
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
