"""Finding the run to resume: all processes read and verify the same state."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, overload

from pa_checkpoint import CheckpointInfo, Folder, RemoteFolder, load
from pa_core import distributed
from pa_core.checkpoints.accelerate_state import find_accelerate_state, refusal_of_accelerate_state
from pa_core.errors import CheckpointError, CheckpointNotFoundError, ConfigurationError
from pa_core.training_state.run_state import SavedRun
from pa_core.user_warnings import warn_user

_SHOWN_STATES = 5
_NAME = re.compile(r"(?:(?:epoch|step)_\d+|final)(?:_\d+)?|state_\d+_update_\d+")  # the last is from earlier versions


@overload
def find_saved_run(place: str | Path, resume_missing: Literal["error"] = ..., *, argument: str = ...) -> SavedRun: ...
@overload
def find_saved_run(place: str | Path, resume_missing: Literal["error", "start"]) -> SavedRun | None: ...
def find_saved_run(
    place: str | Path, resume_missing: Literal["error", "start"] = "error", *, argument: str = "resume_from"
) -> SavedRun | None:
    """Return the saved run at a path, or the newest valid run in a folder; every process must call this.

    The first process chooses the state, and each process reads and verifies it. States that several processes saved in
    pieces are verified by all of them together.

    Args:
        place: A state, or a folder of states.
        resume_missing: ``"start"`` returns None if there is no state.
        argument: The name of the argument with the place, for messages. Only calls with ``resume_from`` also have
            ``resume_missing``.

    Raises:
        ConfigurationError: ``resume_missing`` is neither ``"error"`` nor ``"start"``.
        CheckpointNotFoundError: There is no state, and ``resume_missing`` is ``"error"``.
        CheckpointError: There are states, but none is valid; or a process finds a different or damaged state at the
            path.
    """
    if resume_missing not in ("error", "start"):
        raise ConfigurationError(
            f'resume_missing must be "error", or "start" for a new run if there is no state, got {resume_missing!r}.'
        )
    may_start = ' pass resume_missing="start" to begin a new run' if argument == "resume_from" else ""
    chosen, saved = _choose(Path(place), may_start) if distributed.rank() == 0 else _help_to_verify()
    for warning in chosen.warnings:
        warn_user(warning)
    if chosen.problem is not None:
        raise chosen.problem
    if saved is None and resume_missing == "error":
        raise CheckpointNotFoundError(
            f"There is no training state to {'resume from' if may_start else 'load'}.",
            given=f"{argument}={str(place)!r}{describe_neighbours(place)}",
            expected="a training state, or a folder with at least one",
            do=f"Check the path{may_start and f', or{may_start} if there is no state yet'}.",
        )
    return saved


class _Candidate(NamedTuple):
    """A state that all processes read, chosen by the first."""

    path: Path
    is_sharded: bool


class _Finding(NamedTuple):
    """The result of reading a candidate on a process; the digest of a damaged state is from the manifest."""

    digest: str
    updates: int = 0
    error: OSError | CheckpointError | None = None


class _Choice(NamedTuple):
    """The final choice of the first process, after all have read the last candidate."""

    warnings: Sequence[str] = ()
    problem: CheckpointError | None = None


class _StateElsewhereError(Exception):
    """Some processes do not have the state that the first process reads; the text names them and their states."""


def _choose(path: Path, may_start: str) -> tuple[_Choice, SavedRun | None]:
    """Choose a state, while the other processes are in ``_help_to_verify``."""
    saved, choice = None, _Choice()
    try:
        saved, skipped = Folder(path).newest_readable(_verify)
        if saved is None:
            choice = _Choice(problem=_why_none(path, {state.path: state.reason for state in skipped}, may_start))
        else:
            choice = _Choice([f"The training state {state.path} is skipped: {state.reason}" for state in skipped])
    except _StateElsewhereError as error:
        problem = CheckpointError(
            "The processes do not all have the training state that the first process resumes from; nothing was loaded.",
            given=str(error),
            do="Copy it from the machine of rank 0 to the others, or keep states in a folder that all machines share.",
        )
        choice = _Choice(problem=problem)
    except CheckpointError as error:
        choice = _Choice(problem=error)
    distributed.gather_objects(choice)
    return choice, saved


def _why_none(path: Path, reasons: Mapping[Path, str], may_start: str) -> CheckpointError | None:
    if (foreign := find_accelerate_state(path)) is not None:
        return refusal_of_accelerate_state(foreign)
    if not reasons:
        return None
    if set(reasons) == {path}:
        return CheckpointError(
            "The training state is not valid.",
            given=f"{path}: {reasons[path]}",
            do="Pass the folder that it is in for the newest valid state there, or restore this state from a backup.",
        )
    return CheckpointError(
        "None of the training states is valid.",
        given=f"{path} with {'; '.join(f'{state.name}: {reason}' for state, reason in reasons.items())}",
        do=f"Restore a state from a backup{may_start and f', or move them away and{may_start}'}.",
    )


def _help_to_verify() -> tuple[_Choice, SavedRun | None]:
    """Read each state that the first process reads; return its choice, and the run that was read last."""
    saved: SavedRun | None = None
    nothing: Any = None
    while isinstance(message := distributed.gather_objects(nothing)[0], _Candidate):
        saved, _ = _read_on_all(message)
    return message, saved


def _verify(path: Path) -> SavedRun:
    """Read a state together with the other processes.

    Raises:
        CheckpointError: The state is damaged, on any process for a state in pieces.
        _StateElsewhereError: A process does not have the same state at that path. It is not replaced with an older
            state: copies can be repaired, lost work cannot.
    """
    info = CheckpointInfo.at(path)
    candidate = _Candidate(path, is_sharded=info is not None and info.is_sharded)
    distributed.gather_objects(candidate)
    saved, findings = _read_on_all(candidate)
    own = findings[0]
    if own.error is not None:
        raise own.error
    elsewhere = [
        f"{_told(path, finding)} (rank {rank})"
        for rank, finding in enumerate(findings)
        if finding.digest != own.digest or (finding.error is not None and not candidate.is_sharded)
    ]
    if elsewhere:
        raise _StateElsewhereError("; ".join(elsewhere))
    for finding in findings:
        if finding.error is not None:
            raise finding.error
    return cast("SavedRun", saved)


def _read_on_all(candidate: _Candidate) -> tuple[SavedRun | None, list[_Finding]]:
    """Read a state, with each process verifying its share of the pieces; return the findings of all processes."""
    saved: SavedRun | None = None
    try:
        saved = SavedRun(candidate.path, in_shares=candidate.is_sharded)
        finding = _Finding(saved.digest, saved.position.updates)
    except (OSError, CheckpointError) as error:
        info = CheckpointInfo.at(candidate.path)
        finding = _Finding("" if info is None else info.digest, error=error)
    return saved, distributed.gather_objects(finding)


def _told(path: Path, finding: _Finding) -> str:
    error = finding.error
    if error is None:
        return f"{path} is another state, after update {finding.updates}"
    return f"{error.problem} {error.given}" if isinstance(error, CheckpointError) else str(error)


def describe_neighbours(path: str | Path) -> str:
    """Describe the states next to a path without a state; empty if there are none.

    Only names of states are shown: other files may belong to other users, as in a folder of temporary files.
    """
    folder = Path(path).parent
    try:
        records = [record for record in Folder(folder).records() if record.problem is None]
    except CheckpointError:
        return ""
    names = [record.path.name for record in records if _NAME.fullmatch(record.path.name)]
    if not names:
        return ""
    more = f"{len(names) - _SHOWN_STATES} older states, " if len(names) > _SHOWN_STATES else ""
    return f" ({folder} has {more}{', '.join(names[-_SHOWN_STATES:])})"


def continues_run(state: Path, run: str, folders: Collection[Path], stores: Iterable[RemoteFolder] = ()) -> bool:
    """Whether a run that resumes from a state continues the saved run, rather than branching off from it.

    This is the case if the state is in one of the folders, and neither these nor the object stores to which their
    states are sent have a later valid state of the run.

    Args:
        state: The state to resume from.
        run: The name of the run that saved it.
        folders: The folders in which the run that resumes saves its states.
        stores: The object stores to which it sends its states.

    Raises:
        CheckpointError: A store cannot be queried.
    """
    places = {_real(state.parent), _real(state).parent}
    found = [(folder, record) for folder in map(_real, folders) for record in _states_of(run, folder)]
    own = next((record for folder, record in found if folder in places and _real(record.path) == _real(state)), None)
    if own is None:
        return False
    if any(_is_later(record, own, folder in places) and _is_valid(record.path) for folder, record in found):
        return False
    return not any(store.has_later(run, own.sequence, own.update) for store in stores)


def newest_state(folder: Path, run: str) -> Path | None:
    """Return the newest state of a run in a folder, damaged or not; None without a state.

    Args:
        folder: The folder.
        run: The name of the run.
    """
    return next((record.path for record in reversed(_states_of(run, folder))), None)


def _states_of(run: str, folder: Path) -> list[CheckpointInfo]:
    try:
        return [record for record in Folder(folder).records() if record.run == run]
    except CheckpointError:  # a folder of another user, which cannot be listed
        return []


def _is_later(record: CheckpointInfo, own: CheckpointInfo, is_beside: bool) -> bool:
    """Sequence numbers count the states of a folder; states of two folders are compared by their updates."""
    if _real(record.path) == _real(own.path):
        return False
    return record.update > own.update or (is_beside and record.update == own.update and record.sequence > own.sequence)


def _is_valid(state: Path) -> bool:
    try:
        load(state, lazy=True)
    except CheckpointError:
        return False
    return True


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
