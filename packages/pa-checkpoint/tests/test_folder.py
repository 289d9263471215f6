"""Many checkpoints in a folder, and what in it no run has written."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pa_checkpoint import CheckpointInfo, Folder, load, verify
from pa_checkpoint._errors import CheckpointError, CheckpointNotFoundError
from pa_checkpoint._files import used
from tests.support.states import flip, found, names_in, save


def _save(folder: Folder, updates: Sequence[int], run: str = "first") -> list[Path]:
    return [save(folder.path_for(f"step_{update}", run), update, run) for update in updates]


def test_states_are_listed_in_the_order_of_writing(tmp_path: Path) -> None:
    """Oldest first, whatever the updates, the names and the clocks say."""
    folder = Folder(tmp_path / "states")
    assert folder.records() == []

    first, second = _save(folder, [80, 95])
    third = save(tmp_path / "states" / "after a look back", 20, "second", complete=True)
    os.utime(second, (0, 0))

    assert [replace(record, digest="") for record in folder.records()] == [
        CheckpointInfo(first, 1, "first", 80, 1, complete=False, problem=None),
        CheckpointInfo(second, 2, "first", 95, 1, complete=False, problem=None),
        CheckpointInfo(third, 3, "second", 20, 1, complete=True, problem=None),
    ]
    assert folder.next_sequence() == 4


def test_a_state_replaces_none_of_another_run_and_nothing_else(tmp_path: Path) -> None:
    """It gets a number behind its name then; a state of its own run is replaced."""
    folder = Folder(tmp_path)
    (first,) = _save(folder, [10], "first")
    (second,) = _save(folder, [10], "second")
    assert names_in(tmp_path) == [first.name, second.name] == ["step_10", "step_10_2"]
    assert _save(folder, [10], "second") == [second]
    assert [(record.run, record.sequence) for record in folder.records()] == [("first", 1), ("second", 3)]

    (tmp_path / "final").write_text("a note")
    (tmp_path / "final_2").mkdir()
    (tmp_path / "final_2" / "web.html").touch()
    assert folder.path_for("final", "first") == tmp_path / "final_3"
    (second / "manifest.json").write_text("{}")
    assert folder.path_for("step_10", "second") == tmp_path / "step_10_3"


def test_states_with_the_names_of_earlier_versions_are_in_their_place(tmp_path: Path) -> None:
    """Their order is that of the manifests, and where one is damaged, that of the name."""
    folder = Folder(tmp_path)
    for sequence, update in ((3, 10), (11, 40)):
        save(tmp_path / f"state_{sequence:06d}_update_{update}", update, sequence=sequence)
    _save(folder, [60, 70])
    (tmp_path / "state_000011_update_40" / "manifest.json").unlink()
    assert [record.sequence for record in folder.records()] == [3, 11, 12, 13]
    assert found(tmp_path) == (70, [])
    flip(tmp_path / "step_70" / "model.safetensors")
    flip(tmp_path / "step_60" / "model.safetensors")
    assert found(tmp_path) == (10, ["step_70", "step_60", "state_000011_update_40"])
    removed = folder.keep(2, "first")
    assert [record.path.name for record in removed] == ["state_000003_update_10"]


def test_what_is_no_state_is_not_listed(tmp_path: Path) -> None:
    """Logs, files, hidden folders and what merely looks alike are none of them, and hide none."""
    folder = Folder(tmp_path)
    _save(folder, [10])
    (tmp_path / "state.json").touch()
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text("{}")
    (tmp_path / "logs").mkdir()
    (tmp_path / "config.yaml").touch()
    (tmp_path / "epoch_3").mkdir()
    (tmp_path / "epoch_3" / "pytorch_model.bin").touch()
    shutil.copytree(tmp_path / "step_10", tmp_path / ".staging.0123456789ab.cdef")

    assert [record.update for record in folder.records()] == [10]
    assert found(tmp_path) == (10, [])


def test_folders_of_somebody_else_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset of a million files beside the states costs a look at its folder."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.png").touch()
    listed: list[Path] = []
    original = Path.iterdir

    def noted(folder: Path) -> Iterator[Path]:
        listed.append(folder)
        return original(folder)

    monkeypatch.setattr(Path, "iterdir", noted)
    assert Folder(tmp_path).records() == []
    assert listed == [tmp_path]


def test_a_listing_names_what_is_wrong(tmp_path: Path) -> None:
    """Missing and truncated files are seen without reading tensors; where the manifest is gone, so is the place."""
    folder = Folder(tmp_path)
    paths = _save(folder, [10, 20, 30, 40])
    (paths[0] / "manifest.json").unlink()
    (paths[1] / "model.safetensors").write_bytes(b"")
    (paths[2] / "manifest.json").write_bytes(b"{}")
    shutil.rmtree(paths[3])
    paths[3].mkdir()

    records = folder.records()

    assert [(record.sequence, record.update) for record in records] == [(2, 20), (0, 10), (0, 30), (0, 40)]
    assert [record.run for record in records] == ["first", "", "", ""]
    for record, file in zip(records, ("model", "manifest", "manifest", "manifest"), strict=True):
        assert record.problem is not None
        assert file in record.problem
    assert folder.next_sequence() == 3


def test_the_newest_valid_state_is_found(tmp_path: Path) -> None:
    """Damaged states are passed over, newest first, each with its reason; also those that may be the newest."""
    folder = Folder(tmp_path)
    paths = _save(folder, [10, 20, 30, 40])
    assert found(tmp_path) == (40, [])

    flip(paths[3] / "model.safetensors")
    (paths[2] / "manifest.json").unlink()

    assert found(str(tmp_path)) == (20, [paths[2].name, paths[3].name])
    _, skipped = Folder(tmp_path).newest_readable(load)
    assert "manifest.json" in skipped[0].reason
    assert "model.safetensors" in skipped[1].reason
    assert "digest" in skipped[1].reason

    flip(paths[1] / "model.safetensors")
    flip(paths[0] / "model.safetensors")
    assert found(tmp_path) == (None, [paths[index].name for index in (2, 3, 1, 0)])


def test_one_state_is_found_by_its_own_path(tmp_path: Path) -> None:
    """A path to a state is that state or nothing: no other is taken for it."""
    first, second = _save(Folder(tmp_path), [10, 20])
    assert found(first) == (10, [])

    flip(first / "model.safetensors")
    assert found(first) == (None, [first.name])
    (second / "manifest.json").unlink()
    assert found(second) == (None, [second.name])
    second.rename(tmp_path / "best")
    assert found(tmp_path / "best") == (None, ["best"])


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    """A new run finds no state and no reason to stop; a file is no folder of states."""
    assert Folder(tmp_path / "nothing").newest_readable(load) == (None, [])
    assert Folder(tmp_path).newest_readable(load) == (None, [])
    (tmp_path / "model.pt").touch()
    with pytest.raises(CheckpointError, match="cannot be read"):
        Folder(tmp_path / "model.pt").newest_readable(load)


def test_a_state_that_was_set_aside_counts(tmp_path: Path) -> None:
    """After a crash in the middle of replacing a state, the old one is listed and found under its name."""
    folder = Folder(tmp_path)
    (path,) = _save(folder, [10])
    path.rename(tmp_path / f".{path.name}.set_aside")

    assert [(record.path, record.update) for record in folder.records()] == [(path, 10)]
    assert found(tmp_path) == found(path) == (10, [])
    folder.remove_leftovers("first")
    assert found(tmp_path) == (10, [])

    _save(folder, [20])
    assert [record.path for record in folder.keep(1, "first")] == [path]
    assert names_in(tmp_path) == ["step_20"]


def test_retention_keeps_the_newest_valid_states(tmp_path: Path) -> None:
    """A damaged state does not count, and the states of another run stay."""
    folder = Folder(tmp_path)
    _save(folder, [10], "second")
    paths = _save(folder, [20, 30, 40, 50])
    (paths[3] / "model.safetensors").unlink()

    removed = folder.keep(2, "first")

    assert [record.path for record in removed] == [paths[0]]
    assert [record.update for record in folder.records()] == [10, 30, 40, 50]
    assert folder.keep(2, "first") == []
    assert found(tmp_path) == (40, [paths[3].name])
    for newest in (0, -1):
        with pytest.raises(ValueError, match=f"newest must be .*, got {newest}"):
            folder.keep(newest, "first")


def test_a_removal_that_stops_halfway_leaves_no_half_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state has gone from view before its first file is deleted, and the rest goes later."""
    folder = Folder(tmp_path)
    _save(folder, [10, 20])

    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fail)
        with pytest.raises(CheckpointError, match="could not be removed"):
            folder.keep(1, "first")

    assert [record.update for record in folder.records()] == [20]
    assert len(names_in(tmp_path)) == 2
    folder.remove_leftovers("first")
    assert names_in(tmp_path) == ["step_20"]


def test_what_another_run_is_writing_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its process lives; what nobody will ever finish is removed, whoever began it."""
    folder = Folder(tmp_path / "states")
    folder.remove_leftovers("first")

    def die(descriptor: int) -> None:
        raise MemoryError(descriptor)

    def survive(path: Path, *, ignore_errors: bool) -> None:
        assert path.exists()
        assert ignore_errors

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", die)
        patched.setattr(shutil, "rmtree", survive)  # as if it were killed before it can clean up
        for run in ("first", "second"):
            with pytest.raises(MemoryError):
                _save(folder, [10], run)
    assert len(names_in(folder.path)) == 2
    assert all(name.startswith(".staging.") for name in names_in(folder.path))

    with contextlib.ExitStack() as writing:
        for name in names_in(folder.path):
            writing.enter_context(used(folder.path / name))
        folder.remove_leftovers("first")
        assert len(names_in(folder.path)) == 1
        folder.remove_leftovers("third")
        assert len(names_in(folder.path)) == 1
    folder.remove_leftovers("third")
    assert names_in(folder.path) == []


def test_other_directories_are_whole_or_absent_too(tmp_path: Path) -> None:
    """One that fails half-way leaves nothing, and one that is removed is gone."""
    folder = Folder(tmp_path)
    with folder.writing("exported") as directory:
        (directory / "config.json").write_text("first")
    with contextlib.suppress(RuntimeError), folder.writing("exported") as directory:
        (directory / "config.json").write_text("second")
        raise RuntimeError
    assert [(path.name, path.joinpath("config.json").read_text()) for path in tmp_path.iterdir()] == [
        ("exported", "first")
    ]
    folder.remove("exported")
    assert list(tmp_path.iterdir()) == []


def _write(folder: Folder, name: str, update: int, run: str = "first") -> Path:
    with folder.writing(name, run, {"update": update}) as directory:
        (directory / "weights.pth").write_bytes(b"weights")
        (directory / "notes.txt").write_text(name)
    return folder.path / name


def test_directories_with_a_summary_are_listed_and_removed_as_checkpoints(tmp_path: Path) -> None:
    """In the order of writing; a function can tell which ones belong to a run."""
    folder = Folder(tmp_path)
    paths = [_write(folder, name, update) for name, update in (("b", 10), ("a", 20), ("c", 30))]
    other = _write(folder, "other", 5, "second")
    assert [(one.path, one.run, one.update, one.problem) for one in folder.records()] == [
        *((path, "first", update, None) for path, update in zip(paths, (10, 20, 30), strict=True)),
        (other, "second", 5, None),
    ]
    assert [one.path for one in folder.keep(1, "first", needed=[paths[0]])] == [paths[1]]
    assert [one.path for one in folder.keep(1, lambda one: one.update < 30)] == [paths[0]]
    assert [one.path for one in folder.records()] == [paths[2], other]


@pytest.mark.parametrize("how", ["missing", "longer", "flipped"])
def test_files_of_any_content_are_verified(how: str, tmp_path: Path) -> None:
    """Those that are asked for; what somebody adds later does not matter, and load() makes nothing of them."""
    path = _write(Folder(tmp_path), "exported", 1)
    (path / "added.txt").touch()
    info = CheckpointInfo.at(path)
    assert info is not None
    assert verify(path) == info.digest
    with pytest.raises(CheckpointError, match="the manifest of other files"):
        load(path)
    (path / "weights.pth").unlink()
    if how != "missing":
        (path / "weights.pth").write_bytes({"longer": b"weights.", "flipped": b"weightt"}[how])
    with pytest.raises(CheckpointError, match=r"weights\.pth"):
        verify(path)
    assert verify(path, lambda name: name == "notes.txt") == info.digest


def test_what_is_at_a_path_is_told_without_reading_it(tmp_path: Path) -> None:
    """Its place and its digest; nothing of another folder; and a path without a checkpoint is not found."""
    (path,) = _save(Folder(tmp_path), [10])
    info = CheckpointInfo.at(path)
    assert info is not None
    assert (info.update, info.problem, info.digest, info.is_sharded) == (10, None, load(path).digest, False)
    assert CheckpointInfo.at(tmp_path) is None
    with pytest.raises(CheckpointNotFoundError, match="There is no checkpoint"):
        load(tmp_path / "elsewhere")
    with pytest.raises(CheckpointNotFoundError, match="elsewhere, where nothing is"):
        verify(tmp_path / "elsewhere")
    with pytest.raises(CheckpointNotFoundError, match=r"manifest\.json, a file"):
        verify(path / "manifest.json")


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
