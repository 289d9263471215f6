"""Files whose lines are samples."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from pa_data.errors import ShardError
from pa_data.files import JsonLines, ShardedFiles, TextLines


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n"])
def test_every_line_that_is_not_empty_is_a_sample(tmp_path: Path, ending: bytes, last: bytes) -> None:
    """Lines may end as on Unix or Windows, the last one may have no end, and empty ones are skipped."""
    path = tmp_path / "a.txt"
    path.write_bytes("eins,zwei,,drü,vier".replace(",", ending.decode()).encode() + last)
    assert list(ShardedFiles(path, TextLines())) == ["eins", "zwei", "drü", "vier"]


def test_json_lines_hold_any_values(tmp_path: Path) -> None:
    """A line is what json makes of it, also where it is longer than what is read at once."""
    values = [{"a": 1}, [1, 2], "x" * 5_000_000, None, 2.5, {"deep": {"a": [True]}}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, values)))
    data = ShardedFiles(path, JsonLines())
    assert [data[index] for index in (5, 0, 2, 1, 4, 3)] == [values[index] for index in (5, 0, 2, 1, 4, 3)]


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz"])
def test_compressed_files_are_decompressed(tmp_path: Path, ending: str) -> None:
    """Files that gzip, bzip2 and xz have written are read as if they were not compressed."""
    compress: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    path = tmp_path / f"a.jsonl.{ending}"
    path.write_bytes(compress[ending](b"".join(b'{"id": %d}\n' % number for number in range(100))))
    data = ShardedFiles(path, JsonLines())
    assert [data[index]["id"] for index in (99, 0, 50)] == [99, 0, 50]


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    """A file whose compression is not known is not read as text."""
    (tmp_path / "a.jsonl.zst").write_bytes(b"(\xb5/\xfd")
    with pytest.raises(ShardError, match=r"a.jsonl.zst(.|\n)*\.gz, \.tgz, \.bz2, \.xz(.|\n)*Decompress"):
        ShardedFiles(tmp_path / "a.jsonl.zst", JsonLines())


def test_a_compressed_file_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    """A file that ends within the compressed data says so, and says which file it is."""
    whole = gzip.compress(b'{"id": 1}\n' * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(ShardError, match=r"ends too early(.|\n)*a.jsonl.gz"):
        ShardedFiles(tmp_path / "a.jsonl.gz", JsonLines())


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    """What is no JSON is an error with the file and the line, empty lines included in the count."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 0}\n\n{"id": 1}\n{"id": 2, "te')
    data = ShardedFiles(path, JsonLines())
    assert data[1] == {"id": 1}
    with pytest.raises(ShardError, match=r"a.jsonl, line 4: (.|\n)*may be incomplete"):
        data[2]


def test_a_line_in_another_encoding_is_named(tmp_path: Path) -> None:
    """Text that is not in the encoding that was asked for is an error; in the right one it is read."""
    path = tmp_path / "a.txt"
    path.write_bytes("eins\nzwölf\n".encode("latin-1"))
    assert ShardedFiles(path, TextLines("latin-1"))[1] == "zwölf"
    with pytest.raises(ShardError, match=r"a.txt, line 2: (.|\n)*text in utf-8"):
        ShardedFiles(path, TextLines())[1]
