"""Finding the run to resume: all processes read and verify the same state, and what is told where there is none."""

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
_NAME = re.compile(r"(?:(?:epoch|step)_\d+|final)(?:_\d+)?|state_\d+_update_\d+")  # the last one of earlier versions


@overload
def find_saved_run(resume_from: str | Path, resume_missing: Literal["error"] = ...) -> SavedRun: ...
@overload
def find_saved_run(resume_from: str | Path, resume_missing: Literal["error", "start"]) -> SavedRun | None: ...
def find_saved_run(resume_from: str | Path, resume_missing: Literal["error", "start"] = "error") -> SavedRun | None:
    """Return the run of the state at a path, or of the newest valid one of a folder; every process must call this.

    The first process chooses the state, and each process reads and verifies it. What several processes have saved in
    pieces is verified by all of them together.

    Args:
        resume_from: One state, or a folder of states.
        resume_missing: ``"start"`` returns None where there is no state at all.

    Raises:
        ConfigurationError: ``resume_missing`` is neither ``"error"`` nor ``"start"``.
        CheckpointNotFoundError: There is no state, and ``resume_missing`` is ``"error"``.
        CheckpointError: There are states, but none is valid; or a process finds another state at the path, or a damaged
            one.
    """
    if resume_missing not in ("error", "start"):
        raise ConfigurationError(
            f'resume_missing must be "error", or "start" for a new run where there is no state, got {resume_missing!r}.'
        )
    chosen, saved = _choose(Path(resume_from)) if distributed.rank() == 0 else _help_to_verify()
    for warning in chosen.warnings:
        warn_user(warning)
    if chosen.problem is not None:
        raise chosen.problem
    if saved is None and resume_missing == "error":
        raise CheckpointNotFoundError(
            "There is no training state to resume from.",
            given=f"resume_from={str(resume_from)!r}{describe_neighbours(resume_from)}",
            expected="a training state, or a folder with at least one",
            do='Check the path, or pass resume_missing="start" to begin a new run where there is none yet.',
        )
    return saved


class _Candidate(NamedTuple):
    """A state that the first process has the others read with it."""

    path: Path
    is_sharded: bool


class _Finding(NamedTuple):
    """What a process has found of a candidate; of a damaged one, the manifest has told the digest."""

    digest: str
    updates: int = 0
    error: OSError | CheckpointError | None = None


class _Choice(NamedTuple):
    """What the first process tells the others at the end, who have read the last candidate."""

    warnings: Sequence[str] = ()
    problem: CheckpointError | None = None


class _StateElsewhereError(Exception):
    """Some processes do not have the state that the first one reads; it says which, and what they have."""


def _choose(path: Path) -> tuple[_Choice, SavedRun | None]:
    """Choose a state, while the other processes are in ``_help_to_verify``."""
    saved, choice = None, _Choice()
    try:
        saved, skipped = Folder(path).newest_readable(_verify)
        if saved is None:
            choice = _Choice(problem=_why_none(path, {one.path: one.reason for one in skipped}))
        else:
            choice = _Choice([f"The training state {one.path} is skipped: {one.reason}" for one in skipped])
    except _StateElsewhereError as error:
        problem = CheckpointError(
            "The processes do not all have the training state that the first one resumes from; nothing was loaded.",
            given=str(error),
            do="Copy it from the machine of rank 0 to the others, or keep states in a folder that all machines share.",
        )
        choice = _Choice(problem=problem)
    except CheckpointError as error:
        choice = _Choice(problem=error)
    distributed.gather_objects(choice)
    return choice, saved


def _why_none(path: Path, reasons: Mapping[Path, str]) -> CheckpointError | None:
    if (foreign := find_accelerate_state(path)) is not None:
        return refusal_of_accelerate_state(foreign)
    if not reasons:
        return None
    if set(reasons) == {path}:
        return CheckpointError(
            "The training state is not valid.",
            given=f"{path}: {reasons[path]}",
            do="Pass the folder that it is in for the newest valid state there, or restore this one from a backup.",
        )
    return CheckpointError(
        "None of the training states is valid.",
        given=f"{path} with {'; '.join(f'{one.name}: {reason}' for one, reason in reasons.items())}",
        do='Restore one from a backup, or move them away and pass resume_missing="start" to begin a new run.',
    )


def _help_to_verify() -> tuple[_Choice, SavedRun | None]:
    """Read each state that the first process reads; return its choice, and what was read last."""
    saved: SavedRun | None = None
    nothing: Any = None
    while isinstance(message := distributed.gather_objects(nothing)[0], _Candidate):
        saved, _ = _read_on_all(message)
    return message, saved


def _verify(path: Path) -> SavedRun:
    """Read a state together with the other processes.

    Raises:
        CheckpointError: It is damaged; of a state in pieces, no matter which process has found that.
        _StateElsewhereError: A process does not have the same state at that path. It is not given up for an older one:
            copies can be repaired, lost work cannot.
    """
    info = CheckpointInfo.at(path)
    candidate = _Candidate(path, is_sharded=info is not None and info.is_sharded)
    distributed.gather_objects(candidate)
    saved, findings = _read_on_all(candidate)
    own = findings[0]
    if own.error is not None:
        raise own.error
    elsewhere = [
        f"{_told(path, one)} (rank {rank})"
        for rank, one in enumerate(findings)
        if one.digest != own.digest or (one.error is not None and not candidate.is_sharded)
    ]
    if elsewhere:
        raise _StateElsewhereError("; ".join(elsewhere))
    for one in findings:
        if one.error is not None:
            raise one.error
    return cast("SavedRun", saved)


def _read_on_all(candidate: _Candidate) -> tuple[SavedRun | None, list[_Finding]]:
    """Read a state, of which each process verifies its share of the pieces; return what all processes have found."""
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
    """Return which states are next to a path that holds none; empty without any.

    Only names that runs give to their states are told: others may belong to anybody, as in a folder of temporary files.
    """
    folder = Path(path).parent
    try:
        records = [record for record in Folder(folder).records() if record.problem is None]
    except CheckpointError:
        return ""
    names = [record.path.name for record in records if _NAME.fullmatch(record.path.name)]
    if not names:
        return ""
    more = f"{len(names) - _SHOWN_STATES} older ones, " if len(names) > _SHOWN_STATES else ""
    return f" ({folder} has {more}{', '.join(names[-_SHOWN_STATES:])})"


def continues_run(state: Path, run: str, folders: Collection[Path], stores: Iterable[RemoteFolder] = ()) -> bool:
    """Whether a run that resumes from a state continues the one that saved it, rather than branching off from it.

    It does where the state is in one of the folders, and neither these nor the object stores to which their states are
    sent have a valid state of the run that was saved later.

    Args:
        state: The state to resume from.
        run: The name of the run that saved it.
        folders: Where the run that resumes saves its own states.
        stores: Where it sends them.

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
    """Return the newest state of a run in a folder, be it damaged or not; None without any.

    Args:
        folder: The folder.
        run: The name of the run.
    """
    return next((record.path for record in reversed(_states_of(run, folder))), None)


def _states_of(run: str, folder: Path) -> list[CheckpointInfo]:
    try:
        return [record for record in Folder(folder).records() if record.run == run]
    except CheckpointError:  # a folder of others, which may not be listed
        return []


def _is_later(record: CheckpointInfo, own: CheckpointInfo, is_beside: bool) -> bool:
    """Sequences count the states of one folder; two folders have only the updates in common."""
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
