"""The files that predictions are written to: CSV, JSON lines and Parquet, piece by piece, and joined."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from typing_extensions import override

from pa_core.errors import BatchOutputError, ConfigurationError, UnsupportedConfigurationError
from pa_core.predictions.columns import Column, plain_value

__all__ = ["FileFormat", "format_of"]

_ROWS_OF_GROUP = 65_536
_DIMENSIONS_OF_TABLE = 2


class FileFormat(ABC):
    """Writes the columns of batches to a piece of a file, and joins the pieces.

    What a piece holds, and the whole file, depends on the columns alone.
    """

    @abstractmethod
    def write(self, batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
        """Write a piece.

        Args:
            batches: The columns of each of its batches, at least one.
            file: Open for writing.
        """

    @abstractmethod
    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        """Write the whole file.

        Args:
            pieces: All pieces, in order.
            file: Open for writing.

        Raises:
            BatchOutputError: The pieces do not go together.
        """


def format_of(path: Path) -> FileFormat:
    """Return the format of a file, by the end of its name.

    Args:
        path: The file.

    Raises:
        ConfigurationError: There is no such format.
        UnsupportedConfigurationError: The format needs a package that is not installed.
    """
    formats: dict[str, Callable[[], FileFormat]] = {".csv": _Csv, ".jsonl": _JsonLines, ".parquet": _Parquet}
    if path.suffix not in formats:
        raise ConfigurationError(
            f"The format of write={str(path)!r} is not known. Choose a name that ends in .csv, .jsonl or .parquet, or "
            "pass a function that writes the predictions for each batch."
        )
    return formats[path.suffix]()


class _Csv(FileFormat):
    """A piece begins with the names of the columns as JSON, which always has them in one line."""

    @override
    def write(self, batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
        names: list[str] | None = None
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        rows = csv.writer(text, lineterminator="\n")
        for columns in batches:
            cells = dict(_flat_columns(columns))
            if names is None:
                names = list(cells)
                text.write(json.dumps(names) + "\n")
            _require_same_columns(names, list(cells))
            rows.writerows(zip(*cells.values(), strict=True))
        text.flush()
        text.detach()

    @override
    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        names: list[str] | None = None
        for path in pieces:
            with path.open("rb") as piece:
                own: list[str] = json.loads(piece.readline())
                if names is None:
                    names = own
                    header = io.StringIO(newline="")
                    csv.writer(header, lineterminator="\n").writerow(names)
                    file.write(header.getvalue().encode())
                _require_same_columns(names, own)
                shutil.copyfileobj(piece, file)


def _flat_columns(columns: Mapping[str, Column]) -> Iterator[tuple[str, list[Any]]]:
    """The columns of a table of single values: of a tensor of two dimensions, one for each number of a sample."""
    for name, column in columns.items():
        if not isinstance(column, Tensor):
            values = [plain_value(value) for value in column]
            if any(isinstance(value, list | dict) for value in values):
                raise _not_single(name, "a list, or a mapping, for each sample")
            yield name, values
        elif column.dim() == 1:
            yield name, plain_value(column)
        elif column.dim() == _DIMENSIONS_OF_TABLE:
            yield from ((f"{name}_{number}", plain_value(one)) for number, one in enumerate(column.unbind(1)))
        else:
            raise _not_single(name, f"a tensor of shape {tuple(column.shape)}")


def _not_single(name: str, given: str) -> BatchOutputError:
    return BatchOutputError(
        "A table of comma-separated values has no place for a list within a cell.",
        given=f"{given} as {name!r}",
        do="Write to a .jsonl or .parquet file, or return single values from predict_batch.",
    )


def _require_same_columns(names: Sequence[str], others: Sequence[str]) -> None:
    if list(names) != list(others):
        raise BatchOutputError(
            "The predictions for two batches have other columns.",
            given=f"{', '.join(names)}; and {', '.join(others)}",
            do="Return the same names from predict_batch each time, or write to a .jsonl file.",
        )


class _JsonLines(FileFormat):
    """One object a line; numbers that are not finite are NaN and Infinity, as Python reads them."""

    @override
    def write(self, batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
        for columns in batches:
            values = [[plain_value(value) for value in column] for column in columns.values()]
            for row in zip(*values, strict=True):
                line = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=_not_plain)
                file.write(line.encode() + b"\n")

    @override
    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        for path in pieces:
            with path.open("rb") as piece:
                shutil.copyfileobj(piece, file)


def _not_plain(value: object) -> Any:
    raise BatchOutputError(
        "The predictions have a value that cannot be written.",
        given=f"a value of type {type(value).__name__}",
        do="Return plain values from predict_batch: tensors, numbers, strings, None, lists and dictionaries of them.",
    )


class _Parquet(FileFormat):
    """A table of Arrow; a tensor of several dimensions becomes lists."""

    def __init__(self) -> None:
        if importlib.util.find_spec("pyarrow") is None:
            raise UnsupportedConfigurationError(
                "Parquet files are written by pyarrow, which is not installed. Run pip install 'pa-core[parquet]', or "
                "write to a .csv or .jsonl file."
            )
        self._arrow: Any = importlib.import_module("pyarrow")
        self._parquet: Any = importlib.import_module("pyarrow.parquet")

    @override
    def write(self, batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
        tables: list[Any] = []
        for columns in batches:
            _require_same_columns(tables[0].column_names if tables else list(columns), list(columns))
            tables.append(self._arrow.table({name: self._array(name, column) for name, column in columns.items()}))
        whole = self._of_one_type(lambda: self._arrow.concat_tables(tables, promote_options="permissive"))
        self._parquet.write_table(whole.combine_chunks(), file)

    @override
    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        schemas = [self._parquet.read_schema(piece) for piece in pieces]
        for schema in schemas:
            _require_same_columns(schemas[0].names, schema.names)
        schema = self._of_one_type(lambda: self._arrow.unify_schemas(schemas, promote_options="permissive"))
        with self._parquet.ParquetWriter(file, schema) as writer:
            # As many rows in each group whatever the size of a piece, which may be that of a batch.
            rows = schema.empty_table()
            for piece in pieces:
                rows = self._arrow.concat_tables([rows, self._parquet.read_table(piece).cast(schema)])
                while rows.num_rows >= _ROWS_OF_GROUP:
                    writer.write_table(rows.slice(0, _ROWS_OF_GROUP).combine_chunks())
                    rows = rows.slice(_ROWS_OF_GROUP)
            if rows.num_rows:
                writer.write_table(rows.combine_chunks())

    def _of_one_type(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except self._arrow.ArrowException as error:
            raise BatchOutputError(
                "A column of the predictions has values of types that do not go together.",
                given=str(error).splitlines()[0],
                do="Return values of one type from predict_batch, or write to a .jsonl file.",
            ) from error

    def _array(self, name: str, column: Column) -> Any:
        if isinstance(column, Tensor):
            return self._nested(column)
        return self._of_one_type(lambda: self._arrow.array([plain_value(value) for value in column]))

    def _nested(self, tensor: Tensor) -> Any:
        if tensor.dim() == 1:
            return self._arrow.array(tensor.numpy())
        number, width = tensor.shape[0], tensor.shape[1]
        offsets = (torch.arange(number + 1, dtype=torch.int32) * width).numpy()
        return self._arrow.ListArray.from_arrays(offsets, self._nested(tensor.reshape(-1, *tensor.shape[2:])))
