"""A folder with the training states of a run, or of several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pa_core.storage.state_directory import State
from pa_core.storage.state_record import StateRecord

__all__ = ["Skipped", "StateFolder", "newest_valid"]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A state that was passed over, and why.

    Attributes:
        path: Its directory.
        reason: What is wrong with it, in the words of the error.
    """

    path: Path
    reason: str


class StateFolder:
    """A folder that holds training states, one directory each.

    Args:
        path: The folder; it need not exist before the first state is written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def records(self) -> list[StateRecord]:
        """List the states, oldest first, with the problems that manifests and file sizes reveal."""
        raise NotImplementedError

    def next_sequence(self) -> int:
        """Return 1 more than the highest sequence in the folder; a write that is still going on is not in it yet."""
        raise NotImplementedError

    def next_path(self, update: int, sequence: int | None = None) -> Path:
        """Return where the next state goes, such as ``state_000012_update_480``.

        Args:
            update: The optimizer updates made so far.
            sequence: What ``next_sequence`` returned; asked again where it is not given.
        """
        raise NotImplementedError

    def apply_retention(self, max_checkpoints: int, run: str) -> list[StateRecord]:
        """Remove what ``states_to_remove`` chooses and return it; no half-removed state is ever found.

        Raises:
            ConfigurationError: ``max_checkpoints`` is less than 1.
            CheckpointError: A state cannot be removed.
        """
        raise NotImplementedError

    def remove_leftovers(self, run: str) -> None:
        """Remove what a killed process of the run left half-written or half-removed.

        Call it when the run starts, before its first write.
        """
        raise NotImplementedError


def newest_valid(path: str | Path) -> tuple[State | None, list[Skipped]]:
    """Read the newest state that verifies completely.

    Args:
        path: One state, or a folder of states, of which the one with the highest sequence is tried first.

    Returns:
        The state, None where there is none, and those that were passed over, newest first.

    Raises:
        CheckpointError: There is a file at the path.
    """
    raise NotImplementedError
