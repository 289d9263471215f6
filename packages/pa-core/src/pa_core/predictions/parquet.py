"""Predictions as Arrow tables in Parquet files."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pa_core.errors import BatchOutputError, UnsupportedConfigurationError
from pa_core.predictions.columns import Column, plain, require_same_columns

_ROWS_OF_GROUP = 65_536


def require_pyarrow() -> None:
    """Raise an error if pyarrow is missing.

    Raises:
        UnsupportedConfigurationError: The package is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedConfigurationError(
            "Parquet files are written by pyarrow, which is not installed. Run pip install pa-core[predict], or write "
            "to a .csv or .jsonl file."
        )


def write_table(batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
    """Write a table; a tensor of several dimensions becomes lists.

    Args:
        batches: The columns of each batch, at least one.
        file: A file that is open for writing.

    Raises:
        BatchOutputError: The batches do not fit into the same table.
    """
    arrow, parquet = _modules()
    tables: list[Any] = []
    with _one_type_a_column():
        for columns in batches:
            require_same_columns(tables[0].column_names if tables else list(columns), list(columns))
            tables.append(arrow.table({name: _array(column) for name, column in columns.items()}))
        whole = arrow.concat_tables(tables, promote_options="permissive")
    parquet.write_table(whole.combine_chunks(), file)


def join_tables(pieces: Sequence[Callable[[], BinaryIO]], file: BinaryIO) -> None:
    """Join tables, in groups of 65,536 rows, because pieces may be as small as a batch.

    Args:
        pieces: Functions that open each table for reading.
        file: A file that is open for writing.

    Raises:
        BatchOutputError: The tables have different columns or types.
    """
    arrow, parquet = _modules()
    schemas: list[Any] = []
    for open_piece in pieces:
        with open_piece() as piece:
            schemas.append(parquet.read_schema(piece))
        require_same_columns(schemas[0].names, schemas[-1].names)
    with _one_type_a_column():
        schema = arrow.unify_schemas(schemas, promote_options="permissive")
    with parquet.ParquetWriter(file, schema) as writer:
        rows = schema.empty_table()
        for open_piece in pieces:
            with open_piece() as piece, _one_type_a_column():
                rows = arrow.concat_tables([rows, parquet.read_table(piece).cast(schema)])
            while rows.num_rows >= _ROWS_OF_GROUP:
                writer.write_table(rows.slice(0, _ROWS_OF_GROUP).combine_chunks())
                rows = rows.slice(_ROWS_OF_GROUP)
        if rows.num_rows:
            writer.write_table(rows.combine_chunks())


def _array(column: Column) -> Any:
    arrow, _ = _modules()
    if not isinstance(column, Tensor):
        return arrow.array(plain(column))
    if column.dim() == 1:
        return arrow.array(column.numpy())
    number, width = column.shape[0], column.shape[1]
    offsets = (torch.arange(number + 1, dtype=torch.int32) * width).numpy()
    return arrow.ListArray.from_arrays(offsets, _array(column.reshape(-1, *column.shape[2:])))


@contextmanager
def _one_type_a_column() -> Generator[None]:
    arrow, _ = _modules()
    try:
        yield
    # Python's own errors here are about whole numbers beyond 64 bits and about invalid Unicode.
    except (arrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise BatchOutputError(
            "A column of the predictions has values of different types, or values that no type can hold.",
            given=str(error).splitlines()[0],
            do="Return values of the same type from predict_batch, e.g. strings for large whole numbers; or write to a "
            ".jsonl file, which holds values of any type.",
        ) from error


def _modules() -> tuple[Any, Any]:
    """Return the package and its module for files, which have no types and are slow to import."""
    import pyarrow
    from pyarrow import parquet

    return pyarrow, parquet
