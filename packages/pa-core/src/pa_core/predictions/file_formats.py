"""Predictions as columns, and the files of them: CSV, JSON lines and Parquet, piece by piece, and joined."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import importlib.util
import io
import json
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import torch
from torch import Tensor

from pa_core.errors import BatchOutputError, ConfigurationError, UnsupportedConfigurationError
from pa_data.batches import describe_batch, is_array, is_mapping, keys_of

Column: TypeAlias = "Tensor | Sequence[Any]"
"""A value for each sample of a batch: a tensor whose first dimension is the samples, or a list."""

_Batches: TypeAlias = Iterable[Mapping[str, Column]]

_NAME = "prediction"
_ROWS_OF_GROUP = 65_536
_DIMENSIONS_OF_TABLE = 2


def columns_of(predictions: object, num_samples: int) -> dict[str, Column]:
    """Return the columns of the predictions for a batch.

    Args:
        predictions: What ``predict_batch`` returned: a mapping, a dataclass or a named tuple, each item of which is a
            column; a plain tuple of columns, which are called ``prediction_0`` and so on; or one column.
        num_samples: The number of samples in the batch.

    Raises:
        BatchOutputError: Something in it does not have a value for each sample.

    Example:
        >>> columns_of({"label": torch.tensor([3, 1]), "name": ["cat", "dog"]}, 2)
        {'label': tensor([3, 1]), 'name': ['cat', 'dog']}
        >>> columns_of((torch.zeros(2), torch.ones(2)), 2)
        {'prediction_0': tensor([0., 0.]), 'prediction_1': tensor([1., 1.])}
    """
    return {name: _column(name, value, num_samples, predictions) for name, value in _named(predictions).items()}


def _named(predictions: Any) -> dict[str, Any]:
    if is_mapping(predictions):
        return {str(key): predictions[key] for key in keys_of(predictions)}
    if dataclasses.is_dataclass(predictions):
        fields = {field.name: getattr(predictions, field.name) for field in dataclasses.fields(predictions)}
        return {name: value for name, value in fields.items() if value is not None}
    kind: Any = predictions.__class__
    if issubclass(kind, tuple):
        names: Any = getattr(predictions, "_fields", [f"{_NAME}_{number}" for number in range(len(predictions))])
        return dict(zip(names, predictions, strict=True))
    return {_NAME: predictions}


def _column(name: str, value: Any, num_samples: int, predictions: object) -> Column:
    column = torch.as_tensor(value) if is_array(value) else value
    is_column = column.dim() > 0 if isinstance(column, Tensor) else isinstance(column, list | tuple)
    if not is_column or len(column) != num_samples:
        raise BatchOutputError(
            "The predictions for a batch cannot be written as columns with a value for each sample.",
            given=f"{describe_batch(predictions)} for {num_samples} samples, of which {name!r} is not a column",
            expected="tensors whose first dimension is the samples, and lists with an item for each sample; "
            "or a mapping of them",
            do="Override predict_batch(self, batch), and return what is to be written.",
        )
    if isinstance(column, Tensor) and column.dtype in (torch.bfloat16, torch.float16):
        return column.float()  # the same values in a type that files know
    return cast("Column", column)


def _plain(value: Any) -> Any:
    """A value of a column as Python's own: of tensors and arrays the numbers, of containers those inside."""
    if is_array(value):
        return value.tolist()
    if is_mapping(value):
        return {key: _plain(value[key]) for key in keys_of(value)}
    kind: type[Any] = value.__class__
    return [_plain(one) for one in value] if issubclass(kind, list | tuple) else value


@dataclass(frozen=True)
class FileFormat:
    """Writes the columns of batches to a piece of a file, and joins the pieces.

    What a piece holds, and the whole file, depends on the columns alone.

    Attributes:
        write: Called with the columns of each batch of a piece, at least one, and a file that is open for writing.
        join: Called with all pieces, in order, and a file that is open for writing; raises a ``BatchOutputError`` where
            they do not go together.
    """

    write: Callable[[_Batches, BinaryIO], None]
    join: Callable[[Sequence[Path], BinaryIO], None]


def format_of(path: Path) -> FileFormat:
    """Return the format of a file, by the end of its name.

    Args:
        path: The file.

    Raises:
        ConfigurationError: There is no such format.
        UnsupportedConfigurationError: The format needs a package that is not installed.
    """
    formats = {
        ".csv": FileFormat(_write_csv, _join_csv),
        ".jsonl": FileFormat(_write_lines, _join_lines),
        ".parquet": FileFormat(_write_table, _join_tables),
    }
    if path.suffix not in formats:
        raise ConfigurationError(
            f"The format of write={str(path)!r} is not known. Choose a name that ends in .csv, .jsonl or .parquet, or "
            "pass a function that writes the predictions for each batch."
        )
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedConfigurationError(
            "Parquet files are written by pyarrow, which is not installed. Run pip install 'pa-core[parquet]', or "
            "write to a .csv or .jsonl file."
        )
    return formats[path.suffix]


def _write_csv(batches: _Batches, file: BinaryIO) -> None:
    names: list[str] | None = None
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    rows = csv.writer(text, lineterminator="\n")
    for columns in batches:
        cells = dict(_flat_columns(columns))
        if names is None:
            names = list(cells)
            rows.writerow(names)
        _require_same_columns(names, list(cells))
        rows.writerows(zip(*cells.values(), strict=True))
    text.detach()


def _join_csv(pieces: Sequence[Path], file: BinaryIO) -> None:
    names: list[str] | None = None
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    for path in pieces:
        with path.open(encoding="utf-8", newline="") as piece:
            own = next(csv.reader(piece))
            if names is None:
                names = own
                csv.writer(text, lineterminator="\n").writerow(names)
            _require_same_columns(names, own)
            shutil.copyfileobj(piece, text)
    text.detach()


def _flat_columns(columns: Mapping[str, Column]) -> Iterator[tuple[str, list[Any]]]:
    """The columns of a table of single values: of a tensor of two dimensions, one for each number of a sample."""
    for name, column in columns.items():
        if isinstance(column, Tensor) and column.dim() == _DIMENSIONS_OF_TABLE:
            yield from ((f"{name}_{number}", _plain(one)) for number, one in enumerate(column.unbind(1)))
            continue
        values = _plain(column)
        if any(isinstance(value, list | dict) for value in values):
            raise BatchOutputError(
                "A table of comma-separated values has no place for a list within a cell.",
                given=f"{describe_batch(column)} as {name!r}",
                do="Write to a .jsonl or .parquet file, or return single values from predict_batch.",
            )
        yield name, values


def _require_same_columns(names: Sequence[str], others: Sequence[str]) -> None:
    if list(names) != list(others):
        raise BatchOutputError(
            "The predictions for two batches have other columns.",
            given=f"{', '.join(names)}; and {', '.join(others)}",
            do="Return the same names from predict_batch each time, or write to a .jsonl file.",
        )


def _write_lines(batches: _Batches, file: BinaryIO) -> None:
    """One JSON object a line; numbers that are not finite are NaN and Infinity, as Python reads them."""
    for columns in batches:
        for row in zip(*map(_plain, columns.values()), strict=True):
            line = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=_not_plain)
            file.write(line.encode() + b"\n")


def _join_lines(pieces: Sequence[Path], file: BinaryIO) -> None:
    for path in pieces:
        with path.open("rb") as piece:
            shutil.copyfileobj(piece, file)


def _not_plain(value: object) -> Any:
    raise BatchOutputError(
        "The predictions have a value that cannot be written.",
        given=f"a value of type {type(value).__name__}",
        do="Return plain values from predict_batch: tensors, numbers, strings, None, lists and dictionaries of them.",
    )


def _write_table(batches: _Batches, file: BinaryIO) -> None:
    """A table of Arrow; a tensor of several dimensions becomes lists."""
    arrow = _arrow()
    tables: list[Any] = []
    with _one_type_a_column():
        for columns in batches:
            _require_same_columns(tables[0].column_names if tables else list(columns), list(columns))
            tables.append(arrow.table({name: _array(column) for name, column in columns.items()}))
        whole = arrow.concat_tables(tables, promote_options="permissive")
    arrow.parquet.write_table(whole.combine_chunks(), file)


def _join_tables(pieces: Sequence[Path], file: BinaryIO) -> None:
    arrow = _arrow()
    schemas = [arrow.parquet.read_schema(piece) for piece in pieces]
    for schema in schemas:
        _require_same_columns(schemas[0].names, schema.names)
    with _one_type_a_column():
        schema = arrow.unify_schemas(schemas, promote_options="permissive")
    with arrow.parquet.ParquetWriter(file, schema) as writer:
        # As many rows in each group whatever the size of a piece, which may be that of a batch.
        rows = schema.empty_table()
        for piece in pieces:
            rows = arrow.concat_tables([rows, arrow.parquet.read_table(piece).cast(schema)])
            while rows.num_rows >= _ROWS_OF_GROUP:
                writer.write_table(rows.slice(0, _ROWS_OF_GROUP).combine_chunks())
                rows = rows.slice(_ROWS_OF_GROUP)
        if rows.num_rows:
            writer.write_table(rows.combine_chunks())


def _array(column: Column) -> Any:
    arrow = _arrow()
    if not isinstance(column, Tensor):
        return arrow.array(_plain(column))
    if column.dim() == 1:
        return arrow.array(column.numpy())
    number, width = column.shape[0], column.shape[1]
    offsets = (torch.arange(number + 1, dtype=torch.int32) * width).numpy()
    return arrow.ListArray.from_arrays(offsets, _array(column.reshape(-1, *column.shape[2:])))


@contextmanager
def _one_type_a_column() -> Generator[None]:
    arrow = _arrow()
    try:
        yield
    except arrow.ArrowException as error:
        raise BatchOutputError(
            "A column of the predictions has values of types that do not go together.",
            given=str(error).splitlines()[0],
            do="Return values of one type from predict_batch, or write to a .jsonl file.",
        ) from error


def _arrow() -> Any:
    importlib.import_module("pyarrow.parquet")
    return importlib.import_module("pyarrow")
