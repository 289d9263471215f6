"""Files that are whole or untouched."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from pa_checkpoint import CheckpointError, atomic_write
from tests.support.states import names_in


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
    script = (
        "import sys\n"
        "from pa_checkpoint import atomic_write\n"
        "for round in range(1, 40):\n"
        f"    atomic_write(sys.argv[1], lambda file: file.write(str(round % 10).encode() * {size}))\n"
    )
    seen: set[bytes] = set()
    with subprocess.Popen([sys.executable, "-c", script, str(path)]) as process:
        while process.poll() is None:
            content = path.read_bytes()
            assert len(content) == size
            seen.update(content[i : i + 1] for i in (0, size // 2, size - 1))
            assert content == content[:1] * size
            time.sleep(0.001)

    assert process.returncode == 0
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
