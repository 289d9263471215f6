"""Files whose lines are samples, and tar archives whose files are."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from pa_data.errors import ShardError
from pa_data.files import JsonLines, ShardedFiles, ShardFile, TarSample, TarSamples, TextLines
from tests.support.shards import write_tar


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz"])
def test_files_of_one_name_are_a_sample(tmp_path: Path, ending: str) -> None:
    """Samples are what WebDataset takes for one: the name ends at the first dot, and the rest tells files apart."""
    long = "folder/" * 30 + "x"
    members = {
        "a/1.jpg": b"picture",
        "a/1.seg.png": b"mask",
        ".hidden": b"",
        "b.c/1.jpg": b"",
        "plain": b"no ending",
        f"{long}.txt": b"x" * 5000,
    }
    data = ShardedFiles(write_tar(tmp_path / f"a.{ending}", members), TarSamples())
    assert [data[index] for index in (3, 2, 1, 0)] == [
        TarSample(long, {"txt": b"x" * 5000}),
        TarSample("plain", {"": b"no ending"}),
        TarSample("b.c/1", {"jpg": b""}),
        TarSample("a/1", {"jpg": b"picture", "seg.png": b"mask"}),
    ]


def test_archives_that_cannot_be_divided_into_samples_are_refused(tmp_path: Path) -> None:
    """Files of one sample that are apart, and a file that comes twice, would make other samples: errors name them."""
    apart = [("1.jpg", b""), ("2.jpg", b""), ("1.cls", b"")]
    with pytest.raises(ShardError, match=r"apart.tar: 1.cls, and other files between"):
        ShardedFiles(write_tar(tmp_path / "apart.tar", apart), TarSamples())
    twice = [("1.jpg", b""), ("1.jpg", b"")]
    with pytest.raises(ShardError, match=r"twice.tar: 1.jpg twice"):
        ShardedFiles(write_tar(tmp_path / "twice.tar", twice), TarSamples())


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_an_archive_that_was_cut_off_is_an_error(tmp_path: Path, ending: str) -> None:
    """Archives that end within a file, and files that are no archive, say so with their name."""
    path = write_tar(tmp_path / f"a.{ending}", {f"{key}.bin": bytes(range(256)) * 40 for key in range(3)})
    path.write_bytes(path.read_bytes()[: 12_000 if ending == "tar" else -30])
    with pytest.raises(ShardError, match=rf"(cannot be read|ends too early)(.|\n)*a.{ending}"):
        ShardedFiles(path, TarSamples())
    path.write_bytes(b"no archive" * 100)
    with pytest.raises(ShardError, match=rf"a.{ending}"):
        ShardedFiles(path, TarSamples())


@pytest.mark.parametrize("size", [5 * 1024, 5 * 1024 + 100], ids=["between two files", "within a header"])
def test_an_archive_without_its_end_is_an_error(tmp_path: Path, size: int) -> None:
    """Cut off between two files or in a header, it would otherwise pass for one with fewer samples."""
    path = write_tar(tmp_path / "a.tar", {f"{key}.bin": b"1" for key in range(10)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ShardError, match=r"a.tar: .* before the end"):
        ShardedFiles(path, TarSamples())


def test_a_damaged_header_is_an_error(tmp_path: Path) -> None:
    """It does not end the archive, which would leave out the samples that follow."""
    path = write_tar(tmp_path / "a.tar", {f"{key}.bin": b"1" for key in range(10)})
    content = bytearray(path.read_bytes())
    content[5 * 1024] ^= 1
    path.write_bytes(content)
    with pytest.raises(ShardError, match=r"a.tar: .* before the end"):
        ShardedFiles(path, TarSamples())


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


def test_a_file_that_holds_too_much_is_not_decompressed(tmp_path: Path) -> None:
    """A file of a megabyte that holds a gigabyte of zeros is an error that names the file and the way out."""
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(1 << 24)) * 65)
    with pytest.raises(ShardError, match=r"a.txt.gz, more than 1073741824 bytes(.|\n)*cache_bytes"):
        ShardedFiles(str(tmp_path / "*.gz"), TextLines())


@pytest.mark.whole_proof
def test_a_line_of_more_than_two_gib_is_read_whole(tmp_path: Path) -> None:
    """A system reads less at once than that."""
    path, size = tmp_path / "a.txt", (1 << 31) + 5
    with path.open("wb") as file:
        file.seek(size)
        file.write(b"\nend\n")
    source = ShardFile(str(path)).source()
    assert len(source.read(0, size)) == size
    assert source.read(size - 3, size + 9) == b"\0\0\0\nend\n"
