"""Reading a state that was saved in pieces: each process verifies some of its files, and all agree on the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pa_checkpoint import CheckpointInfo, load
from pa_core import distributed
from pa_core.errors import CheckpointError
from pa_core.training_state.run_state import SavedRun

__all__ = ["StateElsewhereError", "help_to_verify", "verify_together"]


class StateElsewhereError(Exception):
    """Some processes do not have the state that the first one reads; it says which, and what they have."""


class _Candidate(NamedTuple):
    """The state that the first process has the others verify with it."""

    path: Path
    digest: str


class _Finding(NamedTuple):
    """What a process has found of a candidate: nothing where its share is as it was written."""

    elsewhere: str | None = None
    damage: CheckpointError | None = None


def verify_together(path: Path) -> SavedRun:
    """Read a state on the first process, while the others are in ``help_to_verify``.

    Where it was saved in pieces, each process verifies its share of them. Any other state is verified here alone.

    Raises:
        CheckpointError: It is damaged, no matter which process has found that.
        StateElsewhereError: A process does not have the same state at that path.
    """
    info = CheckpointInfo.at(path)
    if info is None or not info.is_sharded:
        return SavedRun(load(path, lazy=True))
    candidate = _Candidate(path, info.digest)
    distributed.gather_objects(candidate)
    saved, findings = _verify(candidate)
    elsewhere = [f"{one.elsewhere} (rank {rank})" for rank, one in enumerate(findings) if one.elsewhere]
    if elsewhere:
        raise StateElsewhereError("; ".join(elsewhere))
    for finding in findings:
        if finding.damage is not None:
            raise finding.damage
    return saved or SavedRun(load(path, lazy=True))


def help_to_verify() -> tuple[Any, SavedRun | None]:
    """Verify this process's share of each state that the first one reads, until that one sends something else.

    Returns:
        What it has sent, and the state that was verified last; None where that was damaged, or none was in pieces.
    """
    saved: SavedRun | None = None
    nothing: Any = None
    while isinstance(message := distributed.gather_objects(nothing)[0], _Candidate):
        saved, _ = _verify(message)
    return message, saved


def _verify(candidate: _Candidate) -> tuple[SavedRun | None, list[_Finding]]:
    """Verify this process's share of a state; return what is in it, and what all processes have found."""
    saved, finding = None, _Finding()
    try:
        state = load(candidate.path, lazy=True, share=(distributed.rank(), distributed.num_processes()))
        if state.digest == candidate.digest:
            saved = SavedRun(state)
        else:
            finding = _Finding(elsewhere=f"{candidate.path} is another state")
    except CheckpointError as error:
        info = CheckpointInfo.at(candidate.path)
        is_here = distributed.rank() == 0 or (info is not None and info.digest == candidate.digest)
        finding = _Finding(damage=error) if is_here else _Finding(elsewhere=f"{error.problem} {error.given}")
    return saved, distributed.gather_objects(finding)
