"""Who may use a folder: one live process, whatever became of those before it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from pa_core.errors import CheckpointError, FolderInUseError
from pa_core.storage import folder_lock
from pa_core.storage.folder_lock import LOCK, FolderLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "SECONDS_TO_DIE", 0.3)
    monkeypatch.setattr(folder_lock, "SECONDS_BETWEEN_BEATS", 0.1)
    monkeypatch.setattr(folder_lock, "SECONDS_OF_SILENCE", 0.5)
    monkeypatch.setattr(folder_lock, "SECONDS_UNTIL_ALL_HAVE_WRITTEN", 0.2)


def fork(function: Callable[[], object]) -> int:
    """Run a function in another process."""
    process = os.fork()
    if process == 0:
        try:
            function()
        finally:
            os._exit(0)
    return process


@contextlib.contextmanager
def user_of(folder: Path, *, with_worker: bool = False) -> Generator[int]:
    """A process that uses the folder, perhaps with a worker that outlives it; it is killed at the end."""
    reads, writes = os.pipe()

    def use() -> None:
        FolderLock.acquire(folder)
        worker = fork(signal.pause) if with_worker else 0
        os.write(writes, f"{worker}\n".encode())
        signal.pause()

    process = fork(use)
    worker = int(os.read(reads, 100))
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        if worker:
            FolderLock.acquire(folder).release()
            os.kill(worker, signal.SIGKILL)


def write_owner(folder: Path, machine: str = "another") -> Path:
    """Leave the lock file of a process on another machine."""
    owner = {"host": "node7", "machine": machine, "pid": 4711, "since": "2026-01-01 00:00:00 UTC", "token": "0"}
    (folder / LOCK).write_text(json.dumps(owner))
    return folder / LOCK


def test_a_folder_that_a_live_process_uses_is_refused_with_its_name(tmp_path: Path) -> None:
    """The error says which process on which machine, since when, and when it last gave a sign of life."""
    with user_of(tmp_path) as process, pytest.raises(FolderInUseError) as raised:
        FolderLock.acquire(tmp_path)
    assert f"{tmp_path}, used by process {process} on {os.uname().nodename} since 20" in raised.value.given
    assert "last heartbeat 0 seconds ago" in raised.value.given
    FolderLock.acquire(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_workers_that_outlive_a_killed_process_do_not_hold_its_folder(tmp_path: Path) -> None:
    """The run can be started again at once."""
    with user_of(tmp_path, with_worker=True):
        pass  # the folder is taken before the worker is killed


def test_one_process_uses_a_folder_once(tmp_path: Path) -> None:
    """Also within a process there is one lock for a folder, which no forked process gives up."""
    lock = FolderLock.acquire(tmp_path)
    os.waitpid(fork(lock.release), 0)
    with pytest.raises(FolderInUseError, match=f"process {os.getpid()} "):
        FolderLock.acquire(tmp_path)
    lock.release()
    again = FolderLock.acquire(tmp_path)
    lock.release()
    with pytest.raises(FolderInUseError):
        FolderLock.acquire(tmp_path)
    again.release()


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\x00" * 10_000, "null"])
def test_a_lock_file_that_says_nothing_holds_nobody_up(tmp_path: Path, content: str) -> None:
    """Its process was killed while it wrote, or something else has written it."""
    (tmp_path / LOCK).write_text(content)
    FolderLock.acquire(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds_ago", [0, 3600, -3600])
def test_a_process_on_another_machine_that_is_silent_is_gone(tmp_path: Path, seconds_ago: int) -> None:
    """Whatever the clocks say, its folder is free after a time of silence, or at once where that is over already."""
    beat = time.time() - seconds_ago
    os.utime(write_owner(tmp_path), (beat, beat))
    said: list[str] = []
    FolderLock.acquire(tmp_path, said.append).release()
    assert len(said) == (seconds_ago < 3600)
    assert all("process 4711 on node7 since 2026-01-01" in line for line in said)


def test_a_process_on_another_machine_that_gives_a_sign_of_life_is_not_gone(tmp_path: Path) -> None:
    """Where the locks of the two machines do not reach each other, a heartbeat keeps the folder."""
    path = write_owner(tmp_path)
    threading.Timer(0.2, os.utime, [path]).start()
    with pytest.raises(FolderInUseError, match="process 4711 on node7"):
        FolderLock.acquire(tmp_path)
    assert "node7" in path.read_text()


def test_a_used_folder_shows_signs_of_life(tmp_path: Path) -> None:
    """The lock file changes again and again until it is released."""
    lock = FolderLock.acquire(tmp_path)
    seen: set[int] = set()
    give_up = time.monotonic() + 10
    while len(seen) < 3 and time.monotonic() < give_up:
        seen.add((tmp_path / LOCK).stat().st_mtime_ns)
        time.sleep(0.01)
    lock.release()
    assert len(seen) >= 3


def test_where_nothing_can_be_locked_one_of_several_gets_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of some that find a stale lock file at the same moment."""

    def not_here(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", not_here)
    beat = time.time() - 3600
    os.utime(write_owner(tmp_path, machine=""), (beat, beat))
    outcomes: list[FolderLock | Exception] = []

    def acquire() -> None:
        try:
            outcomes.append(FolderLock.acquire(tmp_path))
        except FolderInUseError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=acquire) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks = [one for one in outcomes if isinstance(one, FolderLock)]
    assert (len(outcomes), len(locks)) == (4, 1)
    locks[0].check()
    acquire()
    assert isinstance(outcomes[-1], FolderInUseError)
    locks[0].release()


@pytest.mark.parametrize("fate", ["moved", "replaced", "removed", "by a file"])
def test_a_folder_that_is_not_the_same_any_more_is_an_error(tmp_path: Path, fate: str) -> None:
    """What would be saved from now on would not be beside what was saved before."""
    folder = tmp_path / "states"
    folder.mkdir()
    lock = FolderLock.acquire(folder)
    folder.rename(tmp_path / "elsewhere")
    if fate == "replaced":
        folder.mkdir()
    elif fate == "by a file":
        folder.touch()
    elif fate == "removed":
        (tmp_path / "elsewhere" / LOCK).unlink()
        (tmp_path / "elsewhere").rmdir()
    with pytest.raises(CheckpointError, match=r"moved, replaced or removed[\s\S]*states"):
        lock.check()
    lock.release()
    assert not (folder / LOCK).exists()


def test_a_lock_file_that_somebody_deletes_is_written_again(tmp_path: Path) -> None:
    """The run continues, and others are refused as before."""
    lock = FolderLock.acquire(tmp_path)
    (tmp_path / LOCK).unlink()
    lock.check()
    with pytest.raises(FolderInUseError):
        FolderLock.acquire(tmp_path)
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_one_has_replaced_notices(tmp_path: Path) -> None:
    """It was silent for too long, such as a machine that was suspended; the other one goes on undisturbed."""
    lock = FolderLock.acquire(tmp_path)
    (tmp_path / LOCK).unlink()
    other = FolderLock.acquire(tmp_path)
    with pytest.raises(CheckpointError, match="has acquired"):
        lock.check()
    lock.release()
    other.check()
    other.release()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["FIFO", "folder", "link"])
def test_something_else_with_the_name_of_the_lock_is_an_error(tmp_path: Path, kind: str) -> None:
    """Nothing is waited for, and nothing outside is written to."""
    outside = tmp_path / "outside"
    outside.touch()
    folder = tmp_path / "states"
    folder.mkdir()
    if kind == "FIFO":
        os.mkfifo(folder / LOCK)
    elif kind == "folder":
        (folder / LOCK).mkdir()
    else:
        (folder / LOCK).symlink_to(outside)
    with pytest.raises(CheckpointError, match=r"not a regular file[\s\S]*Remove it"):
        FolderLock.acquire(folder)
    assert outside.read_bytes() == b""
