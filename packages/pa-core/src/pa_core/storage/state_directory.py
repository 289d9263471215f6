"""One training state: a directory that is either whole or absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pa_core.storage.encoding import Encoded, JsonScalar

__all__ = ["State", "is_state", "read_state", "write_state"]


@dataclass(frozen=True, slots=True)
class State:
    """What ``read_state`` found.

    Attributes:
        path: The directory, as it was asked for.
        summary: What the writer said about the state, ``run``, ``sequence``, ``update``, ``epoch`` and
            ``complete`` at least.
        parts: The values by their names; tensors are on the CPU, writable, and independent of the files.
    """

    path: Path
    summary: dict[str, JsonScalar]
    parts: dict[str, Any]


def write_state(
    directory: str | Path, parts: Mapping[str, object] | Mapping[str, Encoded], summary: Mapping[str, JsonScalar]
) -> None:
    """Write a training state, whole or not at all.

    Args:
        directory: Its path, which may be free, an empty folder, or a state that is then replaced.
        parts: Values, or what ``encode`` made of them, by names that are identifiers.
        summary: What can be known about the state without reading it: ``run``, ``sequence``, ``update``, ``epoch``
            and ``complete`` at least.

    Raises:
        CheckpointError: Something else stands at the path, a value cannot be stored, or the disk does not take it.
    """
    raise NotImplementedError


def read_state(directory: str | Path, *, verify: bool = True) -> State:
    """Read a training state without running any code from it.

    Args:
        directory: Its path.
        verify: Whether every file is compared with its digest. Sizes and the manifest always are.

    Raises:
        CheckpointError: There is no state, it is damaged, or it was written in a newer format.
    """
    raise NotImplementedError


def is_state(path: str | Path) -> bool:
    """Whether there is a training state at the path, whole or damaged."""
    raise NotImplementedError
