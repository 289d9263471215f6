"""The state that a run goes on from: the same one on every process."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal, NamedTuple

from pa_core import distributed
from pa_core.errors import CheckpointError, ConfigurationError
from pa_core.storage import Skipped, State, newest_valid, read_state
from pa_core.storage.accelerate_state import find_accelerate_state, refusal_of_accelerate_state
from pa_core.training_state.describing import describe_neighbours

__all__ = ["find_state", "read_same_state"]


def find_state(resume_from: str | Path, resume_missing: Literal["error", "start"]) -> State | None:
    """Return the state at a path, or the newest valid one of a folder; every process must call this.

    Args:
        resume_from: One state, or a folder of states.
        resume_missing: ``"start"`` returns None where there is no state at all.

    Raises:
        ConfigurationError: ``resume_missing`` is neither ``"error"`` nor ``"start"``.
        FileNotFoundError: There is no state, and ``resume_missing`` is ``"error"``.
        CheckpointError: There are states, but none is valid.
    """
    if resume_missing not in ("error", "start"):
        raise ConfigurationError(
            "resume_missing is not usable.",
            given=f"resume_missing={resume_missing!r}",
            expected='"error" or "start"',
            do='Pass "start" to begin a new run where there is nothing to go on from.',
        )
    found = _newest_of_rank_zero(Path(resume_from)) if distributed.rank() == 0 else None
    path, skipped, problem = distributed.gather_objects(_told(found))[0]
    for one in skipped:
        warnings.warn(f"The training state {one.path} is passed over: {one.reason}", UserWarning, stacklevel=2)
    if problem is not None:
        raise problem
    if path is None and resume_missing == "start":
        return None
    if path is None:
        raise FileNotFoundError(
            f"Given as resume_from: {resume_from}. Expected: a training state, or a folder with at least one"
            f"{describe_neighbours(resume_from)}. Check the path, or pass "
            'resume_missing="start" to begin a new run where there is none yet.'
        )
    return _read_elsewhere(path) if found is None else found.state


def read_same_state(directory: str | Path) -> State:
    """Return the state in a directory; every process must call this, and all read the same one.

    Raises:
        FileNotFoundError: There is none.
        CheckpointError: It is not valid.
    """
    state = find_state(directory, "error")
    if state is None:
        raise AssertionError("find_state raises where there is none")
    return state


class _Found(NamedTuple):
    state: State | None
    skipped: list[Skipped]
    problem: CheckpointError | None = None


def _told(found: _Found | None) -> tuple[Path | None, list[Skipped], CheckpointError | None]:
    """What the first process tells the others; not the state itself, which all of them can read."""
    if found is None:
        return None, [], None
    return None if found.state is None else found.state.path, found.skipped, found.problem


def _newest_of_rank_zero(path: Path) -> _Found:
    try:
        state, skipped = newest_valid(path)
    except CheckpointError as error:
        return _Found(None, [], error)
    if state is None and (foreign := find_accelerate_state(path)) is not None:
        return _Found(None, [], refusal_of_accelerate_state(foreign))
    if state is not None or not skipped:
        return _Found(state, skipped)
    reasons = "; ".join(f"{one.path.name}: {one.reason}" for one in skipped)
    none_is_valid = CheckpointError(
        "None of the training states is valid.",
        given=f"{path} with {reasons}",
        expected="at least one whole state",
        do="Restore one from a backup, or remove them to begin a new run.",
    )
    return _Found(None, [], none_is_valid)


def _read_elsewhere(path: Path) -> State:
    try:
        return read_state(path, verify=False)  # the first process has verified it
    except (OSError, CheckpointError) as error:
        raise CheckpointError(
            "A process cannot read the training state that the first process goes on from.",
            given=f"{path} on rank {distributed.rank()}: {error}",
            expected="the same files on every machine of the run",
            do="Keep training states in a folder that all machines share, or copy them to the same path on each.",
        ) from error
