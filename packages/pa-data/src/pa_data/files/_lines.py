"""Readers of files in which each line is a sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pa_data.errors import ShardError
from pa_data.files._file_index import Arrays
from pa_data.files._shard_file import ShardFile

__all__ = ["JsonLines", "TextLines"]

_SampleT = TypeVar("_SampleT")
_BLOCK = 1 << 22
_NEW_LINE, _RETURN = b"\n", b"\r"


@dataclass(frozen=True)
class TextLines:
    r"""Reads text files: each line is a sample, a string without the end of the line. Empty lines are skipped.

    Where the lines begin is found by reading each file once; see ``index`` of `ShardedFiles`.

    Attributes:
        encoding: How characters are written; one that writes a new line as the byte 10, as UTF-8 does.

    Example:
        >>> import tempfile, pathlib
        >>> from pa_data.files import ShardedFiles
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pathlib.Path(folder.name, "a.txt").write_text("one\ntwo\n")
        >>> list(ShardedFiles(f"{folder.name}/*.txt", TextLines()))
        ['one', 'two']
        >>> folder.cleanup()
    """

    name: ClassVar[str] = "text-lines-v1"
    encoding: str = "utf-8"

    def count(self, file: ShardFile) -> int:
        """Return the number of lines that are not empty."""
        return len(_places(file)["begins"])

    def open(self, file: ShardFile) -> _LinesOfFile[str]:
        """Open a file."""
        return _LinesOfFile(
            file, lambda line: line.removesuffix(_RETURN).decode(self.encoding), f"text in {self.encoding}"
        )


@dataclass(frozen=True)
class JsonLines:
    r"""Reads files of JSON lines: each line is a sample, as `json.loads` parses it. Empty lines are skipped.

    Where the lines begin is found by reading each file once; see ``index`` of `ShardedFiles`.

    Example:
        >>> import tempfile, pathlib
        >>> from pa_data.files import ShardedFiles
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pathlib.Path(folder.name, "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
        >>> list(ShardedFiles(f"{folder.name}/*.jsonl", JsonLines()))
        [{'x': 1}, {'x': 2}]
        >>> folder.cleanup()
    """

    name: ClassVar[str] = "json-lines-v1"

    def count(self, file: ShardFile) -> int:
        """Return the number of lines that are not empty."""
        return len(_places(file)["begins"])

    def open(self, file: ShardFile) -> _LinesOfFile[Any]:
        """Open a file."""
        return _LinesOfFile(file, json.loads, "one JSON value in UTF-8 on each line")


class _LinesOfFile(Generic[_SampleT]):
    """The samples of an open file, each made of the bytes of its line, with a carriage return if it ends in one."""

    def __init__(self, file: ShardFile, parse: Callable[[bytes], _SampleT], expected: str) -> None:
        self._file, self._parse, self._expected = file, parse, expected
        places = _places(file)
        self._begins, self._ends = places["begins"], places["ends"]
        self._source = file.source()

    def __getitem__(self, row: int) -> _SampleT:
        begin, end = int(self._begins[row]), int(self._ends[row])
        line = self._source.read(begin, end)
        try:
            return self._parse(line)
        except ValueError as error:  # which a wrong encoding raises too
            blocks = (self._source.read(at, min(at + _BLOCK, begin)) for at in range(0, begin, _BLOCK))
            number = 1 + sum(block.count(_NEW_LINE) for block in blocks)
            raise ShardError(
                f"A line of a file cannot be read. Got {self._file.path}, line {number}: {error}, expected "
                f"{self._expected}. Correct or remove the line. If it is the last one, the file may be incomplete: "
                "copy or write it again."
            ) from error


def _places(file: ShardFile) -> Arrays:
    return file.index("lines-v1", lambda: _find_lines(file))


def _find_lines(file: ShardFile) -> Arrays:
    """Find where the lines of a file begin and end, those that are empty left out."""
    ends: list[NDArray[np.int64]] = []
    returns: list[NDArray[np.int64]] = []
    position = 0
    with file.stream() as stream:
        while block := stream.read(_BLOCK):
            characters = np.frombuffer(block, np.uint8)
            ends.append(np.flatnonzero(characters == _NEW_LINE[0]) + position)
            if _RETURN in block:
                returns.append(np.flatnonzero(characters == _RETURN[0]) + position)
            position += len(block)
    all_ends = np.concatenate([*ends, np.array([position], np.int64)])
    begins = np.concatenate([np.zeros(1, np.int64), all_ends[:-1] + 1])
    lengths = all_ends - begins
    is_empty = lengths <= 0
    if returns:
        is_empty |= (lengths == 1) & np.isin(begins, np.concatenate(returns))
    return {"begins": begins[~is_empty], "ends": all_ends[~is_empty]}
