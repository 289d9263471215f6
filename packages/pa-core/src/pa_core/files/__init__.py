"""Datasets in many files: JSON lines, Parquet, tar archives, each read at any sample, in an order of their own."""

from __future__ import annotations

from pa_core.files.lines import JsonLines, TextLines
from pa_core.files.shard_file import ByteSource, ShardFile
from pa_core.files.shard_order import ShardOrder
from pa_core.files.shard_reader import OpenShard, ShardReader
from pa_core.files.sharded_files import ShardedFiles

__all__ = [
    "ByteSource",
    "JsonLines",
    "OpenShard",
    "ShardFile",
    "ShardOrder",
    "ShardReader",
    "ShardedFiles",
    "TextLines",
]
