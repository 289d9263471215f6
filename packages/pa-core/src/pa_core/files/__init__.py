"""Datasets in many files (JSON lines, Parquet, tar archives) with random access to their samples."""

from __future__ import annotations

from pa_core.files.lines import JsonLines, TextLines
from pa_core.files.parquet import Parquet
from pa_core.files.shard_file import ByteSource, ShardFile
from pa_core.files.shard_order import ShardOrder
from pa_core.files.shard_reader import OpenShard, ShardReader
from pa_core.files.sharded_files import ShardedFiles
from pa_core.files.tar_samples import TarSample, TarSamples

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
