"""Who may use a folder: one live process, whatever became of those before it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from pa_checkpoint import CheckpointError, FolderInUseError
from pa_checkpoint import _folder as folder_lock
from pa_checkpoint._folder import LOCK, OWNER, FolderLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "SECONDS_TO_DIE", 0.3)


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
        FolderLock(folder)
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
            FolderLock(folder).release()
            os.kill(worker, signal.SIGKILL)


def test_a_folder_that_a_live_process_uses_is_refused_with_its_name(tmp_path: Path) -> None:
    """The error says which process on which machine, and since when."""
    with user_of(tmp_path) as process, pytest.raises(FolderInUseError) as raised:
        FolderLock(tmp_path)
    assert f"{tmp_path}, used by process {process} on {os.uname().nodename} since 20" in raised.value.given
    FolderLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_workers_that_outlive_a_killed_process_do_not_hold_its_folder(tmp_path: Path) -> None:
    """The run can be started again at once."""
    with user_of(tmp_path, with_worker=True):
        pass  # the folder is taken before the worker is killed


def test_one_process_uses_a_folder_once(tmp_path: Path) -> None:
    """Also within a process there is one lock for a folder, which no forked process gives up."""
    lock = FolderLock(tmp_path)
    os.waitpid(fork(lock.release), 0)
    with pytest.raises(FolderInUseError, match=f"process {os.getpid()} "):
        FolderLock(tmp_path)
    lock.release()
    again = FolderLock(tmp_path)
    lock.release()
    with pytest.raises(FolderInUseError):
        FolderLock(tmp_path)
    again.release()


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\x00" * 10_000, "null"])
def test_a_lock_file_that_says_nothing_holds_nobody_up(tmp_path: Path, content: str) -> None:
    """Its process was killed while it wrote, or something else has written it."""
    (tmp_path / LOCK).write_text(content)
    FolderLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fate", ["moved", "replaced", "removed", "by a file"])
def test_a_folder_that_is_not_the_same_any_more_is_an_error(tmp_path: Path, fate: str) -> None:
    """What would be saved from now on would not be beside what was saved before."""
    folder = tmp_path / "states"
    folder.mkdir()
    lock = FolderLock(folder)
    folder.rename(tmp_path / "elsewhere")
    if fate == "replaced":
        folder.mkdir()
    elif fate == "by a file":
        folder.touch()
    elif fate == "removed":
        shutil.rmtree(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"moved, replaced or removed[\s\S]*states"):
        lock.check()
    lock.release()
    assert not (folder / LOCK).exists()


def test_a_file_of_the_owner_that_somebody_deletes_is_written_again(tmp_path: Path) -> None:
    """The run continues, and others are refused as before."""
    lock = FolderLock(tmp_path)
    (tmp_path / OWNER).unlink()
    lock.check()
    assert (tmp_path / OWNER).exists()
    with pytest.raises(FolderInUseError):
        FolderLock(tmp_path)
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_one_has_replaced_notices(tmp_path: Path) -> None:
    """It was silent for too long, such as a machine that was suspended; the other one goes on undisturbed."""
    lock = FolderLock(tmp_path)
    (tmp_path / LOCK).unlink()
    other = FolderLock(tmp_path)
    with pytest.raises(CheckpointError, match="has acquired the folder"):
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
        FolderLock(folder)
    assert outside.read_bytes() == b""
