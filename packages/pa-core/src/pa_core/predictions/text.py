"""Predictions as text: CSV, with a header, and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from torch import Tensor

from pa_core.errors import BatchOutputError
from pa_core.predictions.columns import Column, plain, require_names_once, require_same_columns
from pa_data.batches import describe_batch

_DIMENSIONS_OF_TABLE = 2
_CHARACTERS_AT_A_TIME = 2**20
_ENDS_OF_LINES = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}
"""Characters that some programs treat as the end of a line, and that JSON allows within strings."""


def write_csv(batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
    """Write a header and a row for each sample.

    Args:
        batches: The columns of each batch, at least one.
        file: A file that is open for writing.

    Raises:
        BatchOutputError: The columns do not fit into a table.
    """
    names: list[str] | None = None
    for columns in batches:
        flat = list(_flat_columns(columns))
        own = [name for name, _ in flat]
        if names is None:
            require_names_once(own)
            file.write(_line(own))
            names = own
        require_same_columns(names, own)
        for row in zip(*(cells for _, cells in flat), strict=True):
            file.write(_line(row))


def _line(cells: Sequence[object]) -> bytes:
    """Return a row that any program can read, with quotes around text that could be misread.

    The standard library's writer leaves out the quotes around a carriage return.
    """
    texts = ["" if cell is None else str(cell) for cell in cells]
    line = ",".join(map(_quoted, texts)) if texts != [""] else '""'
    try:
        return f"{line}\n".encode()
    except UnicodeEncodeError as error:
        raise BatchOutputError(
            "The predictions have a string that is not valid Unicode.",
            given=f"a half of a surrogate pair in {line[max(0, error.start - 20) : error.end + 20]!r}",
            do='Return text.encode(errors="replace").decode() from predict_batch, or write to a .jsonl file.',
        ) from error


def _quoted(text: str) -> str:
    has_space_around = text != text.strip()
    if has_space_around or "," in text or '"' in text or len(text.splitlines()) > 1:
        return '"' + text.replace('"', '""') + '"'
    return text


def _flat_columns(columns: Mapping[str, Column]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the columns of a table of single values; a tensor of two dimensions becomes several columns."""
    for name, column in columns.items():
        if isinstance(column, Tensor) and column.dim() == _DIMENSIONS_OF_TABLE:
            yield from ((f"{name}_{number}", plain(values)) for number, values in enumerate(column.unbind(1)))
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
    """Join pieces of a table under a single header.

    Args:
        pieces: Functions that open each piece for reading.
        file: A file that is open for writing.

    Raises:
        BatchOutputError: The pieces have different columns.
    """
    names: list[str] | None = None
    for open_piece in pieces:
        with io.TextIOWrapper(open_piece(), encoding="utf-8", newline="") as piece:
            own = next(csv.reader(piece))
            if names is None:
                names = own
                file.write(_line(names))
            require_same_columns(names, own)
            while rows := piece.read(_CHARACTERS_AT_A_TIME):
                file.write(rows.encode())


def write_lines(batches: Iterable[Mapping[str, Column]], file: BinaryIO) -> None:
    """Write a JSON object per line; NaN and infinity are written as NaN and Infinity, which Python reads.

    Args:
        batches: The columns of each batch.
        file: A file that is open for writing.

    Raises:
        BatchOutputError: JSON cannot represent a value.
    """
    for columns in batches:
        for row in zip(*map(plain, columns.values()), strict=True):
            values = dict(zip(columns, row, strict=True))
            line = json.dumps(values, ensure_ascii=False, default=_reject).translate(_ENDS_OF_LINES)
            try:
                file.write(line.encode() + b"\n")
            except UnicodeEncodeError:  # a half of a surrogate pair, which JSON can escape
                file.write(json.dumps(values, default=_reject).encode() + b"\n")


def _reject(value: object) -> Any:
    raise BatchOutputError(
        "The predictions have a value that cannot be written.",
        given=f"a value of type {type(value).__name__}",
        do="Return plain values from predict_batch: tensors, numbers, strings, None, lists and dictionaries of them.",
    )


def join_lines(pieces: Sequence[Callable[[], BinaryIO]], file: BinaryIO) -> None:
    """Concatenate pieces.

    Args:
        pieces: Functions that open each piece for reading.
        file: A file that is open for writing.
    """
    for open_piece in pieces:
        with open_piece() as piece:
            shutil.copyfileobj(piece, file)
