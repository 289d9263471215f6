"""Parquet files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pa_data.errors import ShardError
from pa_data.files import Parquet, ShardedFiles
from tests.support.shards import samples_in_order, write_parquet

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("rows_of_group", [1, 7, 100])
def test_each_row_is_a_sample(tmp_path: Path, rows_of_group: int) -> None:
    """Rows are dictionaries of Python values, however large the row groups are and in whatever order they are asked."""
    data = ShardedFiles(write_parquet(tmp_path, (5, 23, 9), rows_of_group), Parquet())
    assert data.counts == (5, 23, 9)
    for index in (36, 0, 13, 27, 28, 5, 4):
        assert data[index] == {"id": index, "text": f"row {index}", "many": [index] * (index % 3)}


def test_the_order_is_the_same_on_any_number_of_processes_and_workers(tmp_path: Path) -> None:
    """Training reads each row once an epoch, the same ones in each step."""
    data = ShardedFiles(
        write_parquet(tmp_path, (5, 23, 9), 4), Parquet(["id"]), transform=lambda row: (int(row["id"]),), window=12
    )
    one = samples_in_order(data, num_processes=1, batch_size=4)
    assert sorted(one) == [(row,) for row in range(37)]
    assert samples_in_order(data, num_processes=2, batch_size=2, num_workers=1) == one


def test_a_row_group_is_decoded_once_in_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a window reaches over is decoded once and kept, also where there is hardly any room."""
    decoded: list[int] = []
    read = pq.ParquetFile.read_row_group

    def noting(file: Any, number: int, **options: Any) -> Any:
        decoded.append(number)
        return read(file, number, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noting)
    data = ShardedFiles(
        write_parquet(tmp_path, (40, 40), 10), Parquet(["id"]), transform=lambda row: (int(row["id"]),), window=20
    )
    samples_in_order(data, num_processes=1, batch_size=4)
    assert sorted(decoded) == [0, 0, 1, 1, 2, 2, 3, 3]
    small = ShardedFiles(data.paths, Parquet(["id"]), cache_bytes=1)
    assert [small[index]["id"] for index in (79, 0, 41)] == [79, 0, 41]


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    """A file that was cut off, one that is no Parquet file, and a column that is not there are errors with its name."""
    path = Path(write_parquet(tmp_path, (5,), 5)).with_name("0.parquet")
    with pytest.raises(ShardError, match=r"0.parquet, columns=\['id', 'txt'\](.|\n)*id, text, many"):
        ShardedFiles(path, Parquet(["id", "txt"]))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ShardError, match=r"Parquet file cannot be read(.|\n)*0.parquet"):
        ShardedFiles(path, Parquet())
    path.write_bytes(b"")
    with pytest.raises(ShardError, match=r"Parquet file cannot be read(.|\n)*0.parquet"):
        ShardedFiles(path, Parquet())
    with pytest.raises(ShardError, match=r"missing(.|\n)*none.parquet"):
        ShardedFiles(tmp_path / "none.parquet", Parquet())


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the error says what to install."""
    pattern = write_parquet(tmp_path, (5,), 5)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RuntimeError, match=r"pa-data\[parquet\]"):
        ShardedFiles(pattern, Parquet())
