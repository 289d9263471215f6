"""What is known of a training state without reading its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["StateRecord", "age"]


@dataclass(frozen=True, slots=True)
class StateRecord:
    """What a folder's listing tells about one state.

    Attributes:
        path: Its directory.
        sequence: Its place in the order in which the states of the folder were written; 0 where that cannot be known.
        run: The run that wrote it; empty where that cannot be known.
        update: The optimizer updates made before it was written.
        epoch: The epoch in which it was written.
        complete: Whether the run had come to its end.
        problem: What is wrong with it, found by a check of the manifest and of the sizes of the files; None for a
            state in which that check found nothing.

    Example:
        >>> record = StateRecord(Path("states/step_480"), 12, "first", 480, 3, False, None)
        >>> "valid" if record.problem is None else record.problem
        'valid'
    """

    path: Path
    sequence: int
    run: str
    update: int
    epoch: int
    complete: bool
    problem: str | None


def age(record: StateRecord) -> tuple[bool, int, int, str]:
    """Return what orders states from old to new; no clock takes part in it. One that may be the newest counts as it."""
    is_unknown = not record.run and record.sequence == 0
    return is_unknown, record.sequence, record.update, record.path.name
