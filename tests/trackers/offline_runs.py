"""What runs without a network leave in files: of SwanLab, Trackio and Weights & Biases."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.launching import Launch

Point = tuple[str, int, float]
"""The name of a metric, a step and a value."""


def package(name: str) -> Any:
    """A package that is installed only where these tests run."""
    return importlib.import_module(name)


def points_of_wandb(files: Iterable[Path]) -> Iterator[Point]:
    """Read what Weights & Biases would send of some files."""
    record: Any = package("wandb.proto.wandb_internal_pb2").Record()
    for content in contents(files):
        record.ParseFromString(content)
        for item in record.history.item:
            name: str = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                yield name, record.history.step.num, json.loads(item.value_json)


def points_of_swanlab(files: Iterable[Path]) -> Iterator[Point]:
    """Read what SwanLab would send of some files."""
    record: Any = package("swanlab.proto.swanlab.record.v1.record_pb2").Record()
    for content in contents(files):
        record.ParseFromString(content)
        if record.HasField("scalar") and not record.scalar.key.startswith("__"):
            yield record.scalar.key, record.scalar.step, record.scalar.value.number


def rows_of_trackio(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read rows and settings of the only run in Trackio's database in a folder: a process knows one such folder."""
    launched = Launch(folder, {"TRACKIO_DIR": str(folder / "trackio")})(_READ_TRACKIO, fresh=True)
    rows, config = json.loads(launched.output.splitlines()[-1])
    return rows, config


_READ_TRACKIO = """
import json
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_runs("digits")
print(json.dumps([SQLiteStorage.get_logs("digits", run), SQLiteStorage.get_run_config("digits", run)], default=str))
"""


def contents(files: Iterable[Path]) -> Iterator[bytes]:
    """The records of several files."""
    for file in sorted(files):
        yield from records_of(file.read_bytes())


def records_of(content: bytes) -> Iterator[bytes]:
    """Take apart a log in the format of LevelDB: blocks of 32 KiB, pieces with a header of seven bytes.

    A record at the end that a killed process had half written is left out.
    """
    position, record = 7, b""
    while position + 7 <= len(content):
        left_in_block = -position % 2**15
        if 0 < left_in_block < 7:
            position += left_in_block
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        if position + 7 + length > len(content):
            return
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield record
            record = b""
