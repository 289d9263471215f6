"""Bringing the state that a run resumes from out of an object store to each machine of the run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from pa_checkpoint._checkpoint import check_files
from pa_checkpoint._manifest import read_manifest
from pa_checkpoint._object_store import ObjectStoreError
from pa_checkpoint._remote_folder import RemoteCheckpoint, RemoteFolder, verified_digest
from pa_checkpoint._staging import discard, key_of, located
from pa_core import _accelerate, distributed
from pa_core.distributed.long_waits import do_while_others_wait
from pa_core.errors import CheckpointError, StateNotFoundError
from pa_core.storage import Skipped, StateFolder, StateRecord
from pa_core.storage.urls import url_of
from pa_core.user_warnings import warn_user

__all__ = ["fetched", "folder_of", "homes_of"]


@runtime_checkable
class _SendsStates(Protocol):
    """A callback that sends the states of a folder to an object store."""

    @property
    def upload_to(self) -> str | None: ...
    @property
    def save_dir(self) -> Path: ...


def homes_of(callbacks: Iterable[object]) -> dict[str, Path]:
    """Return the local folders whose states callbacks send to object stores, by the URLs of these.

    Args:
        callbacks: The callbacks of a run.
    """
    found = [(one.upload_to, one.save_dir) for one in callbacks if isinstance(one, _SendsStates)]
    return {url.rstrip("/"): Path(os.path.realpath(folder)) for url, folder in found if url is not None}


def folder_of(resume_from: str | Path, homes: Mapping[str, Path]) -> Path:
    """Return the local folder or state that a run resumes from; of a URL, the folder into which states are fetched.

    Args:
        resume_from: A path, or the URL of an object store.
        homes: As ``homes_of`` returns them.

    Raises:
        ConfigurationError: It is a URL that was made a ``Path``.
    """
    url = url_of(resume_from)
    if url is None:
        return Path(resume_from)
    if url in homes:
        return homes[url]
    return _cache() / hashlib.sha256(url.encode()).hexdigest()[:16]


def fetched(place: str | Path, homes: Mapping[str, Path], say: Callable[[str], None]) -> str | Path:
    """Return where states are on the disk of every machine; every process must call this.

    Of an object store, the newest valid state is fetched, as the first process chooses it. A newer state in the local
    folder, of a run that the store knows, is preferred: the run was killed before it was sent. It is sent first if
    another machine needs it. A warning tells which states were skipped.

    Args:
        place: A path, or the URL of a store, or of one state in it: the URL of the store, and the name of the state.
        homes: As ``homes_of`` returns them.
        say: Told what is fetched.

    Returns:
        A path as it is, and of a URL the path of the state; the URL if no state is there at all.

    Raises:
        ConfigurationError: The place is a URL that was made a ``Path``.
        CheckpointError: There are states, but none is valid; or the store cannot be queried, or the disk not written
            to.
    """
    url = url_of(place)
    if url is None:
        return place
    choice = _Choice()

    def choose() -> None:
        nonlocal choice
        choice = _choose(url, folder_of(place, homes), say)

    _raise_first(do_while_others_wait(choose if distributed.rank() == 0 else None))
    choice = distributed.gather_objects(choice)[0]
    for one in choice.skipped:
        warn_user(f"The training state {one.path} in {url} is skipped: {one.reason}")
    if choice.path is None:
        return place
    _fetch_elsewhere(choice, choice.path)
    return choice.path


class _Choice(NamedTuple):
    """What the first process has chosen, and has on its disk.

    Attributes:
        path: The state; None if there is none.
        digest: The digest of the state.
        url: The store that has it.
        state: What it is in the store; None where it was not sent yet.
        skipped: States that were skipped, newest first.
    """

    path: Path | None = None
    digest: str = ""
    url: str = ""
    state: RemoteCheckpoint | None = None
    skipped: Sequence[Skipped] = ()


def _choose(url: str, folder: Path, say: Callable[[str], None]) -> _Choice:
    store, states = _open(url)
    local = _newest_local(folder, store, states) if store.url == url else None
    skipped: list[Skipped] = []
    for state in reversed(states):
        if local is not None and (local.sequence, local.update) >= state.age:
            break
        try:
            path = _bring(store, state, folder, say)
        except StateNotFoundError:  # it was removed meanwhile
            continue
        except ObjectStoreError:
            raise
        except CheckpointError as error:
            skipped.append(Skipped(Path(state.name), f"{error.problem} {error.given} instead of {error.expected}"))
        else:
            return _Choice(path, verified_digest(path), store.url, state, skipped)
    if local is not None:
        return _Choice(local.path, verified_digest(local.path), store.url, None, skipped)
    if skipped:
        raise CheckpointError(
            "None of the training states in the object store is valid.",
            given=f"{url} with {'; '.join(f'{one.path}: {one.reason}' for one in skipped)}",
            expected="at least one whole state",
            do="Restore one from a backup, or remove them to begin a new run.",
        )
    return _Choice()


def _open(url: str) -> tuple[RemoteFolder, list[RemoteCheckpoint]]:
    """Open a store and list its states; or the one of a single state, and list this one."""
    store = RemoteFolder(url)
    if states := store.states():
        return store, states
    above, _, name = url.rpartition("/")
    if above.endswith("/"):
        return store, []
    named = [state for state in RemoteFolder(above).states() if state.name == name]
    return (RemoteFolder(above), named) if named else (store, [])


def _newest_local(folder: Path, store: RemoteFolder, states: Iterable[RemoteCheckpoint]) -> StateRecord | None:
    """Return the newest valid state in the folder that is of a run which the store knows."""
    records = [record for record in StateFolder(folder).records() if record.problem is None]
    keys = {state.key for state in states}
    known = {run for run in {record.run for record in records} if key_of(run) in keys or store.has_run(run)}
    for record in reversed(records):
        if record.run in known:
            with contextlib.suppress(CheckpointError):
                verified_digest(record.path)
                return record
    return None


def _bring(store: RemoteFolder, state: RemoteCheckpoint, folder: Path, say: Callable[[str], None]) -> Path:
    """Have a state in the folder, and return its path."""
    digest = store.digest(state)
    for record in StateFolder(folder).records():
        if record.problem is None and record.sequence == state.sequence and _is(record.path, digest):
            return record.path
    say(f"Fetching {state.name} from {store.url} into {folder}.")
    return _download(store, state, folder)


def _download(store: RemoteFolder, state: RemoteCheckpoint, folder: Path) -> Path:
    if folder.parent != _cache():
        return store.download(state, folder)
    _make_private(folder)
    path = store.download(state, folder)
    for other in StateFolder(folder).records():
        if other.path != path:
            discard(other.path, other.run)
    return path


def _fetch_elsewhere(choice: _Choice, path: Path) -> None:
    """Have the state that the first process has on all machines."""
    is_here = _is(path, choice.digest)
    if all(distributed.gather_objects(is_here)):
        return
    state = choice.state
    if state is None:

        def send() -> None:
            nonlocal state
            state = RemoteFolder(choice.url).upload(path)

        _raise_first(do_while_others_wait(send if distributed.rank() == 0 else None))
        state = distributed.gather_objects(state)[0]

    def fetch() -> None:
        if state is not None:
            _download(RemoteFolder(choice.url), state, path.parent)

    # One process of each machine, and then those that do not see the disk of that one.
    for is_my_turn in (_accelerate.process_state().is_local_main_process, True):
        is_missing = not _is(path, choice.digest)
        _raise_first(do_while_others_wait(fetch if is_my_turn and is_missing else None))


def _is(path: Path, digest: str) -> bool:
    """Whether the state of this digest is at the path, judged by its manifest and the sizes of its files."""
    try:
        manifest = read_manifest(located(path))
        check_files(located(path), manifest)
    except (CheckpointError, OSError):
        return False
    return manifest.digest == digest


def _raise_first(errors: Iterable[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def _cache() -> Path:
    """The folder of this user for what is fetched and has no other place."""
    user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    return Path(os.path.realpath(tempfile.gettempdir()), f"pa_core_states_{user}")


def _make_private(folder: Path) -> None:
    """Make a folder below that for temporary files, in which nobody else can put anything."""
    cache = folder.parent
    cache.mkdir(mode=0o700, exist_ok=True)
    status = cache.lstat()
    if hasattr(os, "getuid") and (not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid()):
        raise CheckpointError(
            "The folder into which training states are fetched belongs to somebody else.",
            given=str(cache),
            expected="a folder of this user",
            do="Set TMPDIR to your own folder.",
        )
