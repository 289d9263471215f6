"""Folders of states in which there is something that no run has written: links, pipes, foreign files, other names."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pa_checkpoint import CheckpointError, Folder, load
from pa_checkpoint._manifest import FileEntry, manifest_text, read_manifest
from tests.support.states import found, names_in, save


@pytest.mark.parametrize("content", [b"", b'{"format": "pa-core', b"pa-core\x00training", None])
def test_a_state_with_a_name_of_ones_own_and_a_damaged_manifest_is_named(tmp_path: Path, content: bytes | None) -> None:
    """It may be the newest one: it is neither invisible, nor hidden by an older one that is taken."""
    save(tmp_path / "before", 10)
    manifest = save(tmp_path / "best so far", 20) / "manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    assert found(tmp_path) == (10, ["best so far"])

    shutil.rmtree(tmp_path / "before")
    assert found(tmp_path) == (None, ["best so far"])


def test_a_copy_of_a_state_is_as_good_as_the_state(tmp_path: Path) -> None:
    """Two that have the same place are looked at more closely, not refused."""
    shutil.copytree(save(tmp_path / "step_10", 10), tmp_path / "copy")
    save(tmp_path / "step_20", 20)
    assert found(tmp_path) == (20, [])


def test_a_symbolic_link_neither_counts_nor_goes(tmp_path: Path) -> None:
    """Neither the link nor what it points to is removed, and it takes the place of no state that stays."""
    states = tmp_path / "states"
    moved = save(tmp_path / "other disk" / "step_10", 10)
    states.mkdir()
    (states / "step_10").symlink_to(moved)
    for update in (20, 30, 40):
        save(states / f"step_{update}", update)
    (states / "latest").symlink_to("step_40")
    (states / "nowhere").symlink_to("gone")
    (states / "loop").symlink_to("loop")

    folder = Folder(states)
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        load(states / "loop")
    assert Folder(states / "loop").newest_readable(load) == (None, [])
    assert [record.path.name for record in folder.keep(2, "first")] == ["step_20"]
    assert names_in(states) == ["latest", "loop", "nowhere", "step_10", "step_30", "step_40"]
    assert load(moved).summary["update"] == 10
    assert found(states) == (40, [])
    assert folder.path_for("step_10", "first") == states / "step_10_2"
    assert folder.path_for("nowhere", "first") == states / "nowhere_2"


def test_what_only_looks_like_a_leftover_is_left_alone(tmp_path: Path) -> None:
    """Files, links and folders of others with such names end no run, and what they point to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = Folder(tmp_path / "states")
    save(folder.path / "step_10", 10)
    (folder.path / ".staging").touch()
    (folder.path / ".staging.file").touch()
    (folder.path / f".staging.{'0' * 12}.0123abcd").touch()
    (folder.path / ".staging.notes").mkdir()
    (folder.path / f".removed.{'0' * 12}.0123abcd").symlink_to(outside)
    (folder.path / ".step_10.set_aside").symlink_to(outside)
    before = sorted(folder.path.iterdir())

    folder.remove_leftovers("first")
    assert sorted(folder.path.iterdir()) == before
    assert (outside / "kept").exists()


def test_what_another_run_had_begun_to_remove_goes(tmp_path: Path) -> None:
    """It was to go in any case, and its run may never be started again."""
    folder = Folder(tmp_path)
    save(tmp_path / "step_10", 10, run="other").rename(tmp_path / f".removed.{'0' * 12}.0123abcd")
    folder.remove_leftovers("first")
    assert list(tmp_path.iterdir()) == []


def test_one_state_that_cannot_be_removed_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the others go, and the error names the one."""
    folder = Folder(tmp_path)
    for update in (10, 20, 30, 40):
        save(tmp_path / f"step_{update}", update)
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name == "step_10":
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        with pytest.raises(CheckpointError, match=r"could not be removed[\s\S]*step_10"):
            folder.keep(1, "first")
    assert [record.update for record in folder.records()] == [10, 40]


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/hostname", "..", "", "a\x00b"])
def test_names_in_a_manifest_reach_nothing_outside_the_state(tmp_path: Path, name: str) -> None:
    """A file that is not in the folder of the state is not even looked at."""
    (tmp_path / "outside.safetensors").write_bytes(b"")
    state = save(tmp_path / "state", 10)
    manifest = read_manifest(state)
    files = {**manifest.files, name: FileEntry(0, hashlib.sha256(b"").hexdigest())}
    (state / "manifest.json").write_bytes(manifest_text(manifest.summary, files, version=1))
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load(state)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such things")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("file", ["manifest.json", "state.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["FIFO", "loop", "device"])
def test_what_is_not_a_file_is_damage(tmp_path: Path, file: str, kind: str) -> None:
    """No pipe is waited on, no device read, no loop followed; the state before is found."""
    save(tmp_path / "step_10", 10)
    path = save(tmp_path / "step_20", 20) / file
    path.unlink()
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(file if kind == "loop" else "/dev/zero")
    assert found(tmp_path) == (10, ["step_20"])
    with pytest.raises(CheckpointError, match=file):
        load(path.parent)


def test_a_state_that_is_removed_while_it_is_read_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that has removed it has saved a newer one, which is found; an older one is not taken in its place."""
    for update in (10, 20):
        save(tmp_path / f"step_{update}", update)
    opened = Path.open

    def replace(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == tmp_path / "step_20" / "state.json":
            monkeypatch.undo()
            save(tmp_path / "step_30", 30)
            shutil.rmtree(tmp_path / "step_20")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", replace)
    assert found(tmp_path) == (30, [])
