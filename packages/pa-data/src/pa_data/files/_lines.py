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
    r"""Reads text files in which each line is a sample, as a string without the line break.

    Pass it to ``ShardedFiles`` as the reader. Empty lines are skipped. Lines may end with ``\n`` or ``\r\n``. Each file
    is read once to find its lines; pass ``index`` to ``ShardedFiles`` to keep the positions. For one JSON value per
    line, use ``JsonLines``.

    Attributes:
        encoding: The encoding of the text, a name that ``bytes.decode`` knows. It must write a line break as byte 10,
            as the default, UTF-8, does; UTF-16 does not.

    Example:
        >>> import pathlib, tempfile
        >>> from pa_data.files import ShardedFiles, TextLines
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pathlib.Path(folder.name, "a.txt").write_text("first\nsecond\n")
        >>> list(ShardedFiles(f"{folder.name}/*.txt", TextLines()))
        ['first', 'second']
        >>> folder.cleanup()
    """

    name: ClassVar[str] = "text-lines-v1"
    encoding: str = "utf-8"

    def count(self, file: ShardFile) -> int:
        r"""Return the number of lines of a file that are not empty.

        ``ShardedFiles`` calls it, so you need not. The file is read once to find its lines.

        Args:
            file: The file, on disk or in an object store, compressed or not.

        Returns:
            The number of samples, which may be 0.

        Raises:
            ShardError: The file is missing or damaged.

        Example:
            >>> import pathlib, tempfile
            >>> from pa_data.files import ShardFile, TextLines
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "a.txt")
            ...     _ = path.write_text("first\n\nsecond\n")
            ...     TextLines().count(ShardFile(str(path)))
            2
        """
        return len(_places(file)["begins"])

    def open(self, file: ShardFile) -> _LinesOfFile[str]:
        r"""Open a file for reading its lines in any order.

        ``ShardedFiles`` calls it, so you need not. The file is read once to find its lines, unless ``count`` has done
        so.

        Args:
            file: The file, on disk or in an object store, compressed or not.

        Returns:
            An object that returns line ``n``, as a string, for the index ``n``, counted from 0, not counting empty
            lines.

        Raises:
            ShardError: The file is missing or damaged. Reading a line raises it if the line is not text in the
                encoding.

        Example:
            >>> import pathlib, tempfile
            >>> from pa_data.files import ShardFile, TextLines
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "a.txt")
            ...     _ = path.write_text("first\nsecond\n")
            ...     TextLines().open(ShardFile(str(path)))[1]
            'second'
        """
        return _LinesOfFile(
            file, lambda line: line.removesuffix(_RETURN).decode(self.encoding), f"text in {self.encoding}"
        )


@dataclass(frozen=True)
class JsonLines:
    r"""Reads files of JSON lines, in which each line is a sample, as ``json.loads`` parses it.

    Pass it to ``ShardedFiles`` as the reader. Each line is a JSON value in UTF-8: usually an object, which becomes a
    dictionary. Empty lines are skipped. Each file is read once to find its lines; pass ``index`` to ``ShardedFiles`` to
    keep the positions. For lines of plain text, use ``TextLines``.

    Example:
        >>> import pathlib, tempfile
        >>> from pa_data.files import JsonLines, ShardedFiles
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pathlib.Path(folder.name, "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
        >>> list(ShardedFiles(f"{folder.name}/*.jsonl", JsonLines()))
        [{'x': 1}, {'x': 2}]
        >>> folder.cleanup()
    """

    name: ClassVar[str] = "json-lines-v1"

    def count(self, file: ShardFile) -> int:
        r"""Return the number of lines of a file that are not empty. The lines are not parsed.

        ``ShardedFiles`` calls it, so you need not. The file is read once to find its lines.

        Args:
            file: The file, on disk or in an object store, compressed or not.

        Returns:
            The number of samples, which may be 0.

        Raises:
            ShardError: The file is missing or damaged.

        Example:
            >>> import pathlib, tempfile
            >>> from pa_data.files import JsonLines, ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "a.jsonl")
            ...     _ = path.write_text('{"x": 1}\n{"x": 2}\n')
            ...     JsonLines().count(ShardFile(str(path)))
            2
        """
        return len(_places(file)["begins"])

    def open(self, file: ShardFile) -> _LinesOfFile[Any]:
        r"""Open a file for reading its lines in any order.

        ``ShardedFiles`` calls it, so you need not. The file is read once to find its lines, unless ``count`` has done
        so.

        Args:
            file: The file, on disk or in an object store, compressed or not.

        Returns:
            An object that returns the parsed line ``n`` for the index ``n``, counted from 0, not counting empty lines.

        Raises:
            ShardError: The file is missing or damaged. Reading a line raises it if the line is not valid JSON.

        Example:
            >>> import pathlib, tempfile
            >>> from pa_data.files import JsonLines, ShardFile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "a.jsonl")
            ...     _ = path.write_text('{"x": 1}\n{"x": 2}\n')
            ...     JsonLines().open(ShardFile(str(path)))[1]
            {'x': 2}
        """
        return _LinesOfFile(file, json.loads, "one JSON value in UTF-8 on each line")


class _LinesOfFile(Generic[_SampleT]):
    """The samples of an open file, parsed from the bytes of their lines, including a carriage return at the end."""

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
                f"{self._expected}. Correct or remove the line. If it is the last line, the file may be incomplete: "
                "copy or write it again."
            ) from error


def _places(file: ShardFile) -> Arrays:
    """Return the beginning and the end of each line."""
    return file.index("lines-v1", lambda: _find_lines(file))


def _find_lines(file: ShardFile) -> Arrays:
    """Find the beginning and the end of each line that is not empty."""
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
