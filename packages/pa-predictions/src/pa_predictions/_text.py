"""Predictions as text: CSV, with a header, and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from torch import Tensor

from pa_core import BatchOutputError
from pa_data.batches import describe_batch
from pa_predictions._columns import Column, plain, require_same_columns

_DIMENSIONS_OF_TABLE = 2


def write_csv(batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
    """Write a header and a row for each sample.

    Args:
        batches: The columns of each batch, at least one.
        file: Open for writing.

    Raises:
        BatchOutputError: There is no place for the columns in a table.
    """
    names: list[str] | None = None
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    rows = csv.writer(text, lineterminator="\n")
    for columns in batches:
        cells = dict(_flat_columns(columns))
        if names is None:
            names = list(cells)
            rows.writerow(names)
        require_same_columns(names, list(cells))
        rows.writerows(zip(*cells.values(), strict=True))
    text.detach()


def _flat_columns(columns: Mapping[str, Column]) -> Iterator[tuple[str, list[Any]]]:
    """The columns of a table of single values: of a tensor of two dimensions, one for each number of a sample."""
    for name, column in columns.items():
        if isinstance(column, Tensor) and column.dim() == _DIMENSIONS_OF_TABLE:
            yield from ((f"{name}_{number}", plain(one)) for number, one in enumerate(column.unbind(1)))
            continue
        values = plain(column)
        if any(isinstance(value, list | dict) for value in values):
            raise BatchOutputError(
                "A table of comma-separated values has no place for a list within a cell.",
                given=f"{describe_batch(column)} as {name!r}",
                do="Write to a .jsonl or .parquet file, or return single values from predict_batch.",
            )
        yield name, values


def join_csv(pieces: Sequence[Callable[[], BinaryIO]], file: BinaryIO) -> None:
    """Join pieces of a table, which has one header.

    Args:
        pieces: Open each piece for reading.
        file: Open for writing.

    Raises:
        BatchOutputError: They do not have the same columns.
    """
    names: list[str] | None = None
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    for open_piece in pieces:
        with io.TextIOWrapper(open_piece(), encoding="utf-8", newline="") as piece:
            own = next(csv.reader(piece))
            if names is None:
                names = own
                csv.writer(text, lineterminator="\n").writerow(names)
            require_same_columns(names, own)
            shutil.copyfileobj(piece, text)
    text.detach()


def write_lines(batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
    """Write a JSON object a line; numbers that are not finite are NaN and Infinity, as Python reads them.

    Args:
        batches: The columns of each batch.
        file: Open for writing.

    Raises:
        BatchOutputError: JSON has no such values.
    """
    for columns in batches:
        for row in zip(*map(plain, columns.values()), strict=True):
            line = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=_refuse)
            file.write(line.encode() + b"\n")


def _refuse(value: object) -> Any:
    raise BatchOutputError(
        "The predictions have a value that cannot be written.",
        given=f"a value of type {type(value).__name__}",
        do="Return plain values from predict_batch: tensors, numbers, strings, None, lists and dictionaries of them.",
    )


def join_lines(pieces: Sequence[Callable[[], BinaryIO]], file: BinaryIO) -> None:
    """Put pieces one after the other.

    Args:
        pieces: Open each piece for reading.
        file: Open for writing.
    """
    for open_piece in pieces:
        with open_piece() as piece:
            shutil.copyfileobj(piece, file)
