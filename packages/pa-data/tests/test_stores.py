"""Files in stores that fsspec knows; how many bytes are read of them, and of which ones."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pa_data.errors import ShardError
from pa_data.files import JsonLines, Parquet, ShardedFiles, TarSamples
from tests.support.shards import batches, numbered, write_json_lines, write_parquet, write_tar

fsspec: Any = pytest.importorskip("fsspec")
local: Any = pytest.importorskip("fsspec.implementations.local")

READ: Counter[str] = Counter()
"""How many bytes of each file were read."""


class CountedFiles(local.LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of this machine, of which is noted what is read."""

    protocol = "counted"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.removeprefix("counted://"))

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path."""
        return f"counted://{name}"

    def _open(self, path: str, *args: Any, **options: Any) -> BinaryIO:
        opened: BinaryIO = super()._open(path, *args, **options)
        read = opened.read

        def noting(size: int = -1) -> bytes:
            content = read(size)
            READ[Path(path).name] += len(content)
            return content

        vars(opened)["read"] = noting
        return opened


@pytest.fixture(autouse=True)
def counted() -> None:
    """URLs that begin with counted:// are known."""
    fsspec.register_implementation("counted", CountedFiles, clobber=True)
    READ.clear()


def test_a_url_is_as_good_as_a_path(tmp_path: Path) -> None:
    """JSON lines, compressed or not, Parquet files and tar archives are read from a store; patterns work there too."""
    write_json_lines(tmp_path / "lines", (5, 8))
    lines = ShardedFiles(f"counted://{tmp_path}/lines/*.jsonl", JsonLines(), index=tmp_path / "index")
    assert [sample["id"] for sample in lines] == list(range(13))
    assert lines.paths == tuple(f"counted://{tmp_path}/lines/{name}.jsonl" for name in ("00", "01"))
    write_parquet(tmp_path, (5, 8), 3)
    rows = ShardedFiles(f"counted://{tmp_path}/*.parquet", Parquet(["id"]))
    assert [row["id"] for row in rows] == list(range(13))
    for ending in ("tar", "tar.gz"):
        write_tar(tmp_path / f"a.{ending}", {f"{key}.cls": str(key).encode() for key in range(7)})
        archive = ShardedFiles([f"counted://{tmp_path}/a.{ending}"], TarSamples())
        assert [sample.files["cls"] for sample in archive] == [str(key).encode() for key in range(7)]


def test_a_resumed_run_reads_the_shards_at_hand(tmp_path: Path) -> None:
    """Of eight files, a run that goes on in mid-epoch reads those that its window is in, and of no other one a byte."""
    write_json_lines(tmp_path / "data", (80,) * 8, padding=40_000)
    pattern, index = f"counted://{tmp_path}/data/*.jsonl", tmp_path / "index"
    numbered(pattern, window=40, index=index)
    size = 80 * 40_030
    assert sum(READ.values()) == pytest.approx(8 * size, rel=0.01)
    for start in (0, 70, 333, 620):
        data = numbered(pattern, window=40, index=index)
        READ.clear()
        rest = batches(data, data.default_order, start=start, batch_size=4)
        ids = [int(sample[0]) for _ in range(5) for sample in next(rest)]
        assert set(READ) == {f"{number // 80:02}.jsonl" for number in ids}
        assert len(READ) <= 2
        assert sum(READ.values()) <= len(READ) * size
    READ.clear()
    counts = ShardedFiles(pattern, JsonLines(), counts=(80,) * 8)
    assert not READ
    assert counts[85]["id"] == 85
    assert set(READ) == {"01.jsonl"}


def test_an_epoch_reads_each_byte_once(tmp_path: Path) -> None:
    """With room for what a window reaches over, nothing is fetched twice from a store in an epoch."""
    write_json_lines(tmp_path / "data", (80,) * 4, padding=40_000)
    pattern = f"counted://{tmp_path}/data/*.jsonl"
    data = numbered(pattern, window=40, counts=(80,) * 4, index=tmp_path / "index")
    numbered(pattern, index=tmp_path / "index")
    READ.clear()
    assert sum(len(batch) for batch in batches(data, data.default_order, batch_size=4)) == 320
    assert sum(READ.values()) == sum(file.stat().st_size for file in (tmp_path / "data").iterdir())


def test_a_worker_with_a_lane_to_itself_reads_its_own_part(tmp_path: Path) -> None:
    """Two processes with two lanes share the files, and do not read them both whole."""
    write_json_lines(tmp_path / "data", (80,) * 4, padding=40_000)
    pattern = f"counted://{tmp_path}/data/*.jsonl"
    numbered(pattern, index=tmp_path / "index")
    for rank in range(2):
        data = numbered(pattern, window=40, lanes=2, block=4, index=tmp_path / "index")
        READ.clear()
        assert len(list(batches(data, data.default_order, rank=rank, num_processes=2, batch_size=4))) == 40
        assert len(READ) == 2


def test_what_a_store_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not in the store, a kind of URL that nobody knows, and a missing package are explained."""
    with pytest.raises(ShardError, match=r"missing(.|\n)*counted://.*none.jsonl"):
        ShardedFiles(f"counted://{tmp_path}/none.jsonl", JsonLines())
    with pytest.raises(ShardError, match=r"No file fits(.|\n)*counted://"):
        ShardedFiles(f"counted://{tmp_path}/*.jsonl", JsonLines())
    with pytest.raises(ShardError, match=r"nowhere://a.jsonl(.|\n)*URL that fsspec knows"):
        ShardedFiles("nowhere://a.jsonl", JsonLines())
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ShardError, match=r"pa-data\[fsspec\]"):
        ShardedFiles(f"counted://{tmp_path}/a.jsonl", JsonLines())
