"""Files that are whole or untouched, and who may use a folder: one live process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from pa_checkpoint import CheckpointError, FolderInUseError, atomic_write
from pa_checkpoint import _folder as folder_lock
from pa_checkpoint._folder import LOCK, OWNER, FolderLock
from tests.support.states import names_in


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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_a_folder_that_a_live_process_uses_is_refused_with_its_name(tmp_path: Path) -> None:
    """The error says which process on which machine, and since when."""
    with user_of(tmp_path) as process, pytest.raises(FolderInUseError) as raised:
        FolderLock(tmp_path)
    assert f"{tmp_path}, used by process {process} on {os.uname().nodename} since 20" in raised.value.given
    FolderLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_workers_that_outlive_a_killed_process_do_not_hold_its_folder(tmp_path: Path) -> None:
    """The run can be started again at once."""
    with user_of(tmp_path, with_worker=True):
        pass  # the folder is taken before the worker is killed


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
@pytest.mark.parametrize("content", ["", "{}", "[1]", "\x00" * 10_000, "null"])
def test_a_lock_file_that_says_nothing_holds_nobody_up(tmp_path: Path, content: str) -> None:
    """Its process was killed while it wrote, or something else has written it."""
    (tmp_path / LOCK).write_text(content)
    FolderLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
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


def _write(content: bytes) -> Callable[[BinaryIO], object]:
    return lambda file: file.write(content)


def test_content_replaces_what_was_there(tmp_path: Path) -> None:
    """The file holds what was written last, and nothing else is left in the folder."""
    path = tmp_path / "a" / "b" / "model.pt"

    atomic_write(path, _write(b"first, and longer"))
    atomic_write(str(path), _write(b"second"))

    assert path.read_bytes() == b"second"
    assert names_in(path.parent) == ["model.pt"]


@pytest.mark.parametrize("error", [RuntimeError("full"), KeyboardInterrupt(), SystemExit(1)])
def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    """Whatever ends the writing, the old file is whole and the half-written one is gone."""
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")

    def fail_halfway(file: BinaryIO) -> None:
        file.write(b"new" * 100_000)
        raise error

    with pytest.raises(type(error)):
        atomic_write(path, fail_halfway)

    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["model.pt"]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    """Who reads while the file is replaced again and again sees one of the versions."""
    path = tmp_path / "model.pt"
    size = 200_000
    atomic_write(path, _write(b"0" * size))
    seen: set[bytes] = set()

    def replace_again_and_again() -> None:
        for turn in range(1, 40):
            atomic_write(path, _write(str(turn % 10).encode() * size))

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(replace_again_and_again)
        while not writing.done():
            content = path.read_bytes()
            assert len(content) == size
            seen.update(content[i : i + 1] for i in (0, size // 2, size - 1))
            assert content == content[:1] * size
            time.sleep(0.001)
        writing.result()

    assert path.read_bytes() == b"9" * size
    assert seen


def test_content_reaches_the_disk_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that survives a power cut: content, then the name, then the folder."""
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        content = b"" if is_folder else next(tmp_path.glob(".*.tmp")).read_bytes()
        calls.append("folder" if is_folder else f"file with {content!r}")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        calls.append(f"replace {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    atomic_write(tmp_path / "model.pt", _write(b"new"))

    assert calls == ["file with b'new'", "replace model.pt", "folder"]


def test_a_name_that_cannot_be_taken_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after the writing cleans up as well."""

    def replace(self: Path, target: Path) -> Path:
        raise PermissionError(f"{self} may not become {target}")

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(PermissionError):
        atomic_write(tmp_path / "model.pt", _write(b"new"))

    assert names_in(tmp_path) == []


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    """A link from the project to a large disk keeps its meaning."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "model.pt"
    link.symlink_to(tmp_path / "disk" / "weights.pt")

    atomic_write(link, _write(b"new"))

    assert link.is_symlink()
    assert (tmp_path / "disk" / "weights.pt").read_bytes() == b"new"
    assert names_in(tmp_path / "disk") == ["weights.pt"]


def test_only_files_are_replaced(tmp_path: Path) -> None:
    """A folder or a device under the name is refused before anything is written, and stays."""
    (tmp_path / "model.pt").mkdir()
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(CheckpointError, match=r"model\.pt, a folder"):
        atomic_write(tmp_path / "model.pt", _write(b"new"))
    with pytest.raises(CheckpointError, match="pipe, a device or pipe"):
        atomic_write(tmp_path / "pipe", _write(b"new"))

    assert names_in(tmp_path) == ["model.pt", "pipe"]


def test_files_are_as_readable_as_any_other(tmp_path: Path) -> None:
    """The permissions are those of an ordinary new file, so that colleagues can read a checkpoint."""
    (tmp_path / "ordinary").write_bytes(b"")
    atomic_write(tmp_path / "model.pt", _write(b"new"))

    assert (tmp_path / "model.pt").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def _victim(folder: Path) -> Path:
    """A file of somebody else's, to which a link in the folder leads."""
    victim = folder.parent / "victim"
    victim.write_text("precious")
    return victim


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("kind", ["link", "hard link", "link to nothing", "pipe"])
def test_a_run_never_writes_through_what_somebody_puts_in_place_of_its_note(tmp_path: Path, kind: str) -> None:
    """A link that comes in place of the note of a run is replaced, and what it leads to stays as it is."""
    folder = tmp_path / "states"
    folder.mkdir()
    victim, lock = _victim(folder), FolderLock(folder)
    (folder / OWNER).unlink()
    match kind:
        case "link":
            (folder / OWNER).symlink_to(victim)
        case "hard link":
            (folder / OWNER).hardlink_to(victim)
        case "link to nothing":
            (folder / OWNER).symlink_to(tmp_path / "nothing")
        case _:
            os.mkfifo(folder / OWNER)
    lock.check()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()
    assert "process" in json.loads((folder / OWNER).read_text())
    lock.release()
    assert victim.read_text() == "precious"


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_that_comes_between_the_look_and_the_note_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment after a run has seen that nothing is there, a link to another file is."""
    folder = tmp_path / "states"
    folder.mkdir()
    victim, acquire = _victim(folder), FolderLock._acquire  # pyright: ignore[reportPrivateUsage]  # what comes between two steps of it

    def acquire_late(self: FolderLock, say: Callable[[str], None] | None) -> None:
        acquire(self, say)
        (folder / OWNER).symlink_to(victim)

    monkeypatch.setattr(FolderLock, "_acquire", acquire_late)
    with FolderLock(folder):
        assert victim.read_text() == "precious"
        assert not (folder / OWNER).is_symlink()


def test_a_note_of_any_size_is_read_in_part(tmp_path: Path) -> None:
    """A file of a terabyte in its place takes no memory, and means nothing."""
    with FolderLock(tmp_path) as lock:
        os.truncate(tmp_path / OWNER, 1 << 40)
        lock.check()
        assert (tmp_path / OWNER).stat().st_size < 1000
