"""Indexes of files that are kept in a folder, and what is kept in memory."""

from __future__ import annotations

import gzip
import io
import multiprocessing
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pa_data.files import JsonLines, ShardedFiles, TarSamples, TextLines
from pa_data.files._cache import KeptPieces
from tests.support.shards import write_json_lines


def read_bytes() -> int:
    """How many bytes this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_an_index_is_made_once(tmp_path: Path) -> None:
    """A dataset that is made again reads no file whose index is kept; a file that changed is read again."""
    pattern = write_json_lines(tmp_path / "data", (30, 40), padding=100_000)
    data = ShardedFiles(pattern, JsonLines(), index=tmp_path / "index")
    before = read_bytes()
    again = ShardedFiles(pattern, JsonLines(), index=tmp_path / "index")
    assert again.counts == data.counts == (30, 40)
    assert again[69]["id"] == 69
    assert read_bytes() - before < 200_000
    (tmp_path / "data" / "00.jsonl").write_text('{"id": 0}\n{"id": 1}\n')
    assert ShardedFiles(pattern, JsonLines(), index=tmp_path / "index").counts == (2, 40)


def test_an_index_moves_with_its_files(tmp_path: Path) -> None:
    """A folder of files with their indexes can be moved or copied; nothing is read anew."""
    write_json_lines(tmp_path / "a", (30, 40), padding=100_000)
    ShardedFiles(str(tmp_path / "a" / "*.jsonl"), JsonLines(), index=tmp_path / "a" / "index")
    (tmp_path / "a").rename(tmp_path / "b")
    before = read_bytes()
    assert len(ShardedFiles(str(tmp_path / "b" / "*.jsonl"), JsonLines(), index=tmp_path / "b" / "index")) == 70
    assert read_bytes() - before < 50_000


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    """Whatever became of the file of an index, the samples are those of the data."""
    pattern = write_json_lines(tmp_path / "data", (30,))
    ShardedFiles(pattern, JsonLines(), index=tmp_path / "index")
    (index,) = (path for path in (tmp_path / "index").iterdir() if path.name != ".lock")
    whole = index.read_bytes()
    for damaged in (b"", whole[:7], whole[:40], whole[:-1], b"\xff" * 8 + whole[8:], whole.replace(b"I64", b"F64")):
        index.write_bytes(damaged)
        assert [sample["id"] for sample in ShardedFiles(pattern, JsonLines(), index=tmp_path / "index")] == [*range(30)]
    assert len(index.read_bytes()) == len(whole)


def write_lines(folder: Path) -> str:
    """Write lines of text."""
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"line {number}\n" for number in range(30)))
    return str(folder / "*.txt")


def write_compressed_lines(folder: Path) -> str:
    """Write the same, compressed."""
    folder.mkdir()
    (folder / "a.txt.gz").write_bytes(gzip.compress("".join(f"line {number}\n" for number in range(30)).encode()))
    return str(folder / "*.gz")


def write_tar(folder: Path) -> str:
    """Write samples into an archive."""
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number in range(20):
            entry = tarfile.TarInfo(f"{number:04}.txt")
            entry.size = len(content := f"sample {number}".encode())
            archive.addfile(entry, io.BytesIO(content))
    return str(folder / "*.tar")


FORMATS: dict[str, tuple[Callable[[Path], str], Any]] = {
    "JSON lines": (lambda folder: write_json_lines(folder, (30,)), JsonLines()),
    "lines": (write_lines, TextLines()),
    "compressed lines": (write_compressed_lines, TextLines()),
    "tar": (write_tar, TarSamples()),
}


@pytest.mark.parametrize("every", [53, pytest.param(13, marks=pytest.mark.more_cases)])
@pytest.mark.parametrize("kind", FORMATS)
def test_one_flipped_bit_of_an_index_changes_no_sample(kind: str, every: int, tmp_path: Path) -> None:
    """In its arrays or its header: what it says of the places of samples is not believed, and it is made again."""
    write, layout = FORMATS[kind]
    pattern = write(tmp_path / "data")

    def read() -> list[str]:
        return [repr(sample) for sample in ShardedFiles(pattern, layout, index=tmp_path / "index")]

    whole = read()
    (index,) = (path for path in (tmp_path / "index").iterdir() if path.name != ".lock")
    content = index.read_bytes()
    for bit in range(0, 8 * len(content), every):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        index.write_bytes(flipped)
        assert read() == whole


@pytest.mark.parametrize("kind", FORMATS)
def test_a_system_may_read_less_than_it_was_asked_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux does beyond 2 GiB: here, it reads seven bytes at once."""
    write, layout = FORMATS[kind]
    pattern, pread = write(tmp_path / "data"), os.pread
    whole = [repr(sample) for sample in ShardedFiles(pattern, layout)]

    def read_little(file: int, size: int, offset: int) -> bytes:
        return pread(file, min(size, 7), offset)

    monkeypatch.setattr("os.pread", read_little)
    assert [repr(sample) for sample in ShardedFiles(pattern, layout)] == whole


def count_with_others(pattern: str, index: Path, rank: int) -> int:
    """Make the dataset as one of several processes of a machine; return how many bytes that read."""
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3")
    before = read_bytes()
    assert len(ShardedFiles(pattern, JsonLines(), index=index)) == 90
    return read_bytes() - before


def test_processes_that_start_together_read_each_file_once(tmp_path: Path) -> None:
    """Of several processes each makes some of the indexes, and finds those that the others made."""
    pattern = write_json_lines(tmp_path / "data", (10,) * 9, padding=100_000)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        arguments = [(pattern, tmp_path / "index", rank) for rank in range(3)]
        read = sum(pool.starmap(count_with_others, arguments, chunksize=1))
    assert 9_000_000 < read < 9_500_000


def test_without_an_index_much_data_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where large files are read at each start, a warning says what would prevent that."""
    pattern = write_json_lines(tmp_path / "data", (30,))
    monkeypatch.setattr("pa_data.files._sharded_files._MUCH_TO_READ", 100)
    with pytest.warns(UserWarning, match=r"1 files were read(.|\n)*index=FOLDER") as warned:
        ShardedFiles(pattern, JsonLines())
    assert warned[0].filename == __file__
    ShardedFiles(pattern, JsonLines(), index=tmp_path / "index")


def test_too_little_memory_is_warned_of(tmp_path: Path) -> None:
    """Where compressed files are decompressed again for each sample, a warning says so; in turn they are not."""
    for name in "ab":
        lines = "".join(f'{{"id": {number}}}\n' for number in range(100))
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    data = ShardedFiles(str(tmp_path / "*.gz"), JsonLines(), cache_bytes=1500)
    for _ in range(30):
        assert [sample["id"] for sample in data] == [*range(100), *range(100)]
    with pytest.warns(UserWarning, match=r"cache_bytes=1500 does not hold") as warned:
        assert [data[number % 2 * 100]["id"] for number in range(100)] == [0] * 100
    assert len(warned) == 1


def test_memory_is_bounded() -> None:
    """What was used last is kept as far as there is room; copies for other processes begin empty."""
    pieces = KeptPieces(max_bytes=5)
    made: list[str] = []

    def make(key: str, size: int) -> memoryview:
        made.append(key)
        return memoryview(bytes(size))

    def get(key: str, size: int = 2, kept: KeptPieces = pieces) -> None:
        kept.get(key, lambda: make(key, size))

    for key in "abacabd":
        get(key)
    assert made == ["a", "b", "c", "b", "d"]
    get("large", 100)
    get("large", 100)
    get("d")
    assert made[5:] == ["large", "d"]
    get("d", kept=pickle.loads(pickle.dumps(pieces)))
    assert made[7:] == ["d"]
