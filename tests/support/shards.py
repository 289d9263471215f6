"""Files of numbered samples, and what loaders yield of them."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from pa_data import KeyedDataLoader
from pa_data.files import JsonLines, ShardedFiles
from pa_data.orders import Order


def write_json_lines(folder: Path, counts: Sequence[int], padding: int = 0) -> str:
    """Write shards whose samples are numbered over all of them; return the pattern of their names."""
    folder.mkdir(exist_ok=True)
    number = 0
    for shard, count in enumerate(counts):
        lines = [json.dumps({"id": number + row, "padding": "x" * padding}) for row in range(count)]
        (folder / f"{shard:02}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        number += count
    return str(folder / "*.jsonl")


def id_and_draws(sample: dict[str, Any]) -> tuple[int, float, float, float]:
    """What a transform that augments makes of a sample: its number, and what the three generators draw."""
    return sample["id"], random.random(), float(torch.rand(())), float(torch.randn(()))


def numbered(pattern: str, **options: Any) -> ShardedFiles[tuple[int, float, float, float]]:
    """The dataset of files that `write_json_lines` wrote, with draws."""
    return ShardedFiles(pattern, JsonLines(), transform=id_and_draws, **options)


def batches(
    data: Dataset[Any], order: Order, *, rank: int = 0, num_processes: int = 1, start: int = 0, **options: Any
) -> Iterator[list[tuple[float, ...]]]:
    """The batches of one process in epoch 2: for each sample what `id_and_draws` made of it."""
    loader: KeyedDataLoader[Any] = KeyedDataLoader(
        data, order=order, rank=rank, num_processes=num_processes, seed=11, **options
    )
    loader.start_epoch(2, start)
    for batch in loader:
        yield list(zip(*(column.tolist() for column in batch), strict=True))


def samples_in_order(
    data: ShardedFiles[Any], *, num_processes: int, start: int = 0, **options: Any
) -> list[tuple[float, ...]]:
    """What all processes together train on, in the order of the epoch."""
    ranks = [
        list(batches(data, data.default_order, rank=rank, num_processes=num_processes, start=start, **options))
        for rank in range(num_processes)
    ]
    steps = max(map(len, ranks))
    return [sample for step in range(steps) for rank in ranks if step < len(rank) for sample in rank[step]]


def write_parquet(folder: Path, counts: tuple[int, ...], rows_of_group: int) -> str:
    """Write tables whose rows are numbered over all files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    for shard, count in enumerate(counts):
        ids = list(range(number, number + count))
        table = pa.table({"id": ids, "text": [f"row {row}" for row in ids], "many": [[row] * (row % 3) for row in ids]})
        pq.write_table(table, folder / f"{shard}.parquet", row_group_size=rows_of_group)
        number += count
    return str(folder / "*.parquet")


def write_tar(path: Path, members: dict[str, bytes] | list[tuple[str, bytes]]) -> Path:
    """Write an archive, compressed if the name says so."""
    mode = "w:gz" if path.name.endswith("gz") else "w"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # a literal is asked for
        for name, content in members.items() if isinstance(members, dict) else members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path
