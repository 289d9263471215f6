"""Datasets in many files (JSON lines, Parquet, tar archives) with random access to their samples."""

from __future__ import annotations

from pa_data.files import (
    ByteSource,
    JsonLines,
    OpenShard,
    Parquet,
    ShardedFiles,
    ShardFile,
    ShardOrder,
    ShardReader,
    TarSample,
    TarSamples,
    TextLines,
)

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
