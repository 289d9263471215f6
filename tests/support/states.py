"""Small training states, and what is found of them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_checkpoint import Folder, load
from pa_checkpoint._checkpoint import write_checkpoint
from pa_checkpoint._encoding import JsonScalar


def summary(update: int = 1, sequence: int = 1, **others: JsonScalar) -> dict[str, JsonScalar]:
    """The summary of a state."""
    return {"run": "first", "sequence": sequence, "update": update, "epoch": 1, "complete": False, **others}


def save(path: Path, update: int, run: str = "first", **others: Any) -> Path:
    """Write a small state, the last one of its folder; all of them have files of the same sizes."""
    parts = {"model": {"weight": torch.full((10,), float(update))}, "position": update}
    write_checkpoint(
        path, parts, summary(update, **{"sequence": Folder(path.parent).next_sequence(), **others}, run=run)
    )
    return path


def found(path: Path | str) -> tuple[Any, list[str]]:
    """The update of the newest valid state, and the names of those that were passed over."""
    state, skipped = Folder(path).newest_readable(load)
    if state is not None:
        assert state.parts["model"]["weight"][0] == state.parts["position"] == state.summary["update"]
    return state and state.summary["update"], [entry.path.name for entry in skipped]


def names_in(folder: Path) -> list[str]:
    """The names of all that is in a folder."""
    return sorted(entry.name for entry in folder.iterdir())


def with_attribute(value: Any, attribute: object) -> Any:
    """A value with something of its own."""
    value.attribute = attribute
    return value


def flip(file: Path, position: int = -1) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def same(first: Any, second: Any) -> bool:
    """Compare in depth and to the last bit: types, order, values, shapes, strides, attributes."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        equal = same([*first.items()], [*second.items()])
    elif isinstance(first, list | tuple):
        equal = len(first) == len(second) and all(map(same, first, second))
    else:
        equal = bool(_comparable(first) == _comparable(second))
    attributes = [
        vars(one) if isinstance(one, dict | Tensor) and hasattr(one, "__dict__") else {} for one in (first, second)
    ]
    return equal and (not any(attributes) or same(*attributes))


def _comparable(value: Any) -> object:
    """What is equal for equal values and no others."""
    if isinstance(value, Tensor):
        content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy() if value.numel() else b""
        return value.dtype, value.shape, value.stride(), bytes(content)
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, float | complex):
        return struct.pack("dd", value.real, value.imag)
    return value
