"""Downloading the state that a run resumes from, from an object store to each machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from pa_checkpoint import CheckpointError, CheckpointInfo, CheckpointNotFoundError, Folder, RemoteFolder
from pa_core import _accelerate, distributed
from pa_core.checkpoints.checkpoint import as_url
from pa_core.errors import ConfigurationError
from pa_core.user_warnings import warn_user
from pa_distributed import run_while_others_wait

_SkippedT = TypeVar("_SkippedT")

_URL = re.compile(r"[A-Za-z][\w+.-]+(::[A-Za-z][\w+.-]+)*://.+")


@runtime_checkable
class _SendsStates(Protocol):
    """A callback that sends the states of a folder to an object store."""

    @property
    def upload_to(self) -> str | None: ...
    @property
    def save_dir(self) -> Path: ...


def url_of(place: str | Path) -> str | None:
    """Return the URL of a place in an object store, without slashes at its end; None for a local path.

    Raises:
        ConfigurationError: The place is a ``Path`` made from a URL, which has lost a slash.

    Example:
        >>> url_of("s3://bucket/states/"), url_of("states")
        ('s3://bucket/states', None)
    """
    if isinstance(place, str):
        return place.rstrip("/") if _URL.fullmatch(place) else None
    if (url := as_url(place)) is not None:
        raise ConfigurationError(f"A URL was converted to a Path, which removes a slash. Pass it as a string: {url!r}.")
    return None


def save_dirs_of(callbacks: Iterable[object]) -> list[Path]:
    """Return the folders in which callbacks save states.

    Args:
        callbacks: The callbacks of a run.
    """
    return [Path(os.path.realpath(callback.save_dir)) for callback in callbacks if isinstance(callback, _SendsStates)]


def local_folders(callbacks: Iterable[object]) -> dict[str, Path]:
    """Return the local folders whose states callbacks send to object stores, by the URLs of the stores.

    Args:
        callbacks: The callbacks of a run.
    """
    found = [(callback.upload_to, callback.save_dir) for callback in callbacks if isinstance(callback, _SendsStates)]
    return {url.rstrip("/"): Path(os.path.realpath(folder)) for url, folder in found if url is not None}


def cache_folder(resume_from: str | Path, local_folders_by_url: Mapping[str, Path]) -> Path:
    """Return the local folder or state that a run resumes from; for a URL, the folder of downloaded states.

    Args:
        resume_from: A path, or the URL of an object store.
        local_folders_by_url: The local folders by URL, from ``local_folders``.

    Raises:
        ConfigurationError: ``resume_from`` is a ``Path`` made from a URL.
    """
    url = url_of(resume_from)
    if url is None:
        return Path(resume_from)
    if url in local_folders_by_url:
        return local_folders_by_url[url]
    return _cache() / hashlib.sha256(url.encode()).hexdigest()[:16]


def download(place: str | Path, local_folders_by_url: Mapping[str, Path], report: Callable[[str], None]) -> str | Path:
    """Download states to the disk of every machine, and return their path; every process must call this.

    From an object store, the newest valid state is downloaded, which the first process chooses. If the local folder has
    a newer state of a run in the store, that state has precedence, because the run was killed before sending it. It is
    sent first if another machine needs it. A warning names the skipped states.

    Args:
        place: A path, the URL of a store, or the URL of a state in a store, which is the URL of the store followed by
            the name of the state.
        local_folders_by_url: The local folders by URL, from ``local_folders``.
        report: A function that prints the downloads.

    Returns:
        The path unchanged, or the path of the downloaded state; the URL if the store has no state.

    Raises:
        ConfigurationError: The place is a ``Path`` made from a URL.
        CheckpointError: There are states, but none is valid; or the store cannot be queried, or the disk cannot be
            written to.
    """
    url = url_of(place)
    if url is None:
        return place
    choice = _Choice()

    def choose() -> None:
        nonlocal choice
        choice = _choose(url, cache_folder(place, local_folders_by_url), report)

    run_while_others_wait(choose if distributed.rank() == 0 else None)
    choice = distributed.gather_objects(choice)[0]
    for warning in choice.warnings:
        warn_user(warning)
    if choice.path is None:
        return place
    _fetch_elsewhere(choice, choice.path)
    return choice.path


class _Choice(NamedTuple):
    """The state that the first process chose, and has on its disk.

    Attributes:
        path: The state; None without a state.
        digest: The digest of the state.
        url: The store that has the state, or will have it.
        warnings: Warnings about skipped states, newest first.
    """

    path: Path | None = None
    digest: str = ""
    url: str = ""
    warnings: Sequence[str] = ()


def _choose(url: str, folder: Path, report: Callable[[str], None]) -> _Choice:
    store, name = _open(url)
    try:
        path, skipped = _fetch(folder, lambda: store.fetch(folder, name=name, say=report))
    except CheckpointNotFoundError:
        return _Choice()
    warnings = [f"The training state {state.path} in {url} is skipped: {state.reason}" for state in skipped]
    return _Choice(path, _digest(path), store.url, warnings)


def _open(url: str) -> tuple[RemoteFolder, str | None]:
    """Open a store, or the store of a single state, and return the name of that state."""
    store = RemoteFolder(url)
    above, _, name = url.rpartition("/")
    if above.endswith("/") or store.states():
        return store, None
    around = RemoteFolder(above)
    return (around, name) if any(state.name == name for state in around.states()) else (store, None)


def _fetch(folder: Path, fetch: Callable[[], tuple[Path, _SkippedT]]) -> tuple[Path, _SkippedT]:
    """Download a state to a folder; a folder for temporary files keeps only this state."""
    if folder.parent != _cache():
        return fetch()
    _make_private(folder)
    path, skipped = fetch()
    for other in Folder(folder).records():
        if other.path != path:
            shutil.rmtree(other.path, ignore_errors=True)
    return path, skipped


def _fetch_elsewhere(choice: _Choice, path: Path) -> None:
    """Download the state of the first process to all machines."""
    if all(distributed.gather_objects(_digest(path) == choice.digest)):
        return
    store = RemoteFolder(choice.url)

    def send() -> None:
        info = CheckpointInfo.at(path)
        if info is None or not any(
            state.is_of(info.run) and state.age == (info.sequence, info.update) for state in store.states()
        ):
            store.upload(path)

    def fetch() -> None:
        _fetch(path.parent, lambda: store.fetch(path.parent, digest=choice.digest))

    run_while_others_wait(send if distributed.rank() == 0 else None)
    # First one process of each machine, and then processes that do not see its disk.
    for is_my_turn in (_accelerate.process_state().is_local_main_process, True):
        is_missing = _digest(path) != choice.digest
        run_while_others_wait(fetch if is_my_turn and is_missing else None)


def _digest(path: Path) -> str:
    """Return the digest of the state at a path; empty if there is no state, or its files have changed in size."""
    info = CheckpointInfo.at(path)
    return "" if info is None or info.problem is not None else info.digest


def _cache() -> Path:
    """Return this user's folder for downloads without another folder."""
    user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    return Path(os.path.realpath(tempfile.gettempdir()), f"pa_core_states_{user}")


def _make_private(folder: Path) -> None:
    """Create a folder below the folder for temporary files, which other users cannot write to."""
    cache = folder.parent
    cache.mkdir(mode=0o700, exist_ok=True)
    status = cache.lstat()
    if hasattr(os, "getuid") and (not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid()):
        raise CheckpointError(
            "The folder of downloaded training states belongs to another user.",
            given=str(cache),
            do="Set TMPDIR to your own folder.",
        )
