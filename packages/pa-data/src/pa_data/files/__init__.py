"""Datasets in many files (text, JSON lines, Parquet, tar archives) with random access to their samples."""

from __future__ import annotations

from pa_data.files._lines import JsonLines, TextLines
from pa_data.files._parquet import Parquet
from pa_data.files._shard_file import ByteSource, OpenShard, ShardFile, ShardReader
from pa_data.files._shard_order import ShardOrder
from pa_data.files._sharded_files import ShardedFiles
from pa_data.files._tar_samples import TarSample, TarSamples

__all__ = [
    "ByteSource",
    "JsonLines",
    "OpenShard",
    "Parquet",
    "ShardFile",
    "ShardOrder",
    "ShardReader",
    "ShardedFiles",
    "TarSample",
    "TarSamples",
    "TextLines",
]
