"""Directories of training states: whole or absent, verified when read, and readable by others."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from typing_extensions import override

import pa_checkpoint
from pa_checkpoint import CheckpointError, FolderLock, Writer, atomic_write, load, verify
from pa_checkpoint._checkpoint import is_checkpoint, write_checkpoint
from pa_checkpoint._folder import Folder
from pa_checkpoint._manifest import FileEntry, manifest_text, read_manifest
from tests.launching import Launch
from tests.support.disks import full_disk
from tests.support.states import names_in, save, summary

NOBODY = 65534


def _parts(update: int = 1) -> dict[str, Any]:
    weight = torch.arange(12.0).reshape(3, 4) * update
    return {
        "model": {"weight": weight, "tied": weight, "count": torch.tensor(update)},
        "optimizer": {"state": {0: {"exp_avg": weight + 1, "step": torch.tensor(2.0)}}, "lr": 0.1},
        "history": [("loss", float("nan")), {1: update}],
    }


def _write(path: Path, update: int = 1) -> None:
    write_checkpoint(path, _parts(update), summary(update))


def _updates(path: Path) -> tuple[object, object]:
    """The update in the summary, and that in the parts: equal in a state that is whole."""
    state = load(path)
    return state.summary["update"], state.parts["history"][1][1]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Values and summary come back; tensors can be written to, and outlive the files."""
    path = tmp_path / "a" / "b" / "state"
    write_checkpoint(str(path), _parts(), summary(note="x", loss=0.5, best=None))

    state = load(str(path))
    shutil.rmtree(path)

    assert state.path == path
    assert state.summary == summary(note="x", loss=0.5, best=None)
    assert list(state.parts) == ["model", "optimizer", "history"]
    assert state.parts["model"]["weight"].equal(torch.arange(12.0).reshape(3, 4))
    assert state.parts["model"]["weight"] is state.parts["model"]["tied"]
    assert state.parts["optimizer"]["state"][0]["step"] == 2
    assert state.parts["model"]["weight"].mul_(2).sum() == 132
    assert names_in(path.parent) == []


def test_a_state_may_have_no_tensors_and_no_parts(tmp_path: Path) -> None:
    """Only what is there needs a file."""
    write_checkpoint(tmp_path / "values", {"position": {"samples": 3}}, summary())
    write_checkpoint(tmp_path / "nothing", {}, summary())

    assert names_in(tmp_path / "values") == ["manifest.json", "state.json"]
    assert load(tmp_path / "values").parts == {"position": {"samples": 3}}
    assert load(tmp_path / "nothing").parts == {}


def test_the_library_reads_the_tensor_files(tmp_path: Path) -> None:
    """Each part with tensors is a file of safetensors, whatever the dtypes and layouts."""
    dtypes = [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    ]  # fmt: skip
    tensors = {str(dtype): torch.ones(2, 3).to(dtype) for dtype in dtypes}
    tensors |= {"scalar": torch.tensor(3), "empty": torch.empty(0, 2), "transposed": torch.arange(6.0).view(2, 3).T}
    tensors |= {"ünïcödé 'name'": torch.ones(1)}
    write_checkpoint(tmp_path / "state", {"model": tensors, "other": torch.ones(1)}, summary())

    path = tmp_path / "state" / "model.safetensors"
    loaded = load_file(path)

    assert loaded.keys() == {f"model/{name}" for name in tensors}
    for name, tensor in tensors.items():
        assert loaded[f"model/{name}"].dtype == tensor.dtype
        assert loaded[f"model/{name}"].double().equal(tensor.double())
    assert load_file(tmp_path / "state" / "other.safetensors")["other"] == 1
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    begins = {name: header[name]["data_offsets"][0] for name in loaded}
    assert size % 8 == 0
    assert all(begins[name] % tensor.element_size() == 0 for name, tensor in loaded.items()), "not aligned"


def test_a_state_can_be_verified_with_other_tools(tmp_path: Path) -> None:
    """The way that the documentation shows needs nothing of ours, and sees damage; whatever the summary says."""
    write_checkpoint(tmp_path / "state", _parts(), summary(commit="0" * 64))
    page = Path(__file__).parents[3] / "docs" / "maintainers" / "training-state-format.md"
    shown: dict[str, Any] = {}
    exec(page.read_text().split("```python\n")[1].split("```")[0], shown)

    manifest = shown["verify"](tmp_path / "state")
    (tmp_path / "state" / "state.json").write_bytes(b"{}")

    assert (manifest["format"], manifest["version"]) == ("pa-core training state", 3)
    assert manifest["summary"] == summary(commit="0" * 64)
    assert sorted(manifest["files"]) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    with pytest.raises(AssertionError):
        shown["verify"](tmp_path / "state")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state to be damaged and repaired by each test."""
    path = tmp_path_factory.mktemp("damaged") / "state"
    _write(path)
    return path


_FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def _expect_damage(path: Path, name: str) -> None:
    for lazy in (False, True):
        with pytest.raises(CheckpointError, match="damaged") as caught:
            load(path, lazy=lazy)
        assert str(path / name) in caught.value.given


def _flipped(whole: bytes) -> Iterator[bytes]:
    for position in range(len(whole)):
        yield whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :]


def _of_another_length(whole: bytes) -> Iterator[bytes]:
    yield whole + b"\n"
    yield from (whole[:length] for length in [*range(0, len(whole), 7), len(whole) - 1])


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("contents", [_flipped, _of_another_length])
def test_damage_to_any_byte_of_any_file_is_seen(
    damaged: Path, name: str, contents: Callable[[bytes], Iterator[bytes]]
) -> None:
    """Flipped, cut off anywhere, appended or gone: the file is named, and lengths are seen without digests, too."""
    whole = (damaged / name).read_bytes()
    for content in contents(whole):
        (damaged / name).write_bytes(content)
        _expect_damage(damaged, name)
        if len(content) != len(whole):
            with pytest.raises(CheckpointError, match="damaged"):
                load(damaged, verify=False)
    (damaged / name).unlink()
    _expect_damage(damaged, name)
    (damaged / name).write_bytes(whole)
    load(damaged)


def test_an_additional_file_is_seen(damaged: Path) -> None:
    """What does not belong there is named; hidden files, which file managers leave behind, do no harm."""
    (damaged / ".DS_Store").touch()
    load(damaged)

    (damaged / "other.safetensors").touch()
    _expect_damage(damaged, "other.safetensors")
    (damaged / "other.safetensors").unlink()


def test_without_digests_only_sizes_are_compared(damaged: Path) -> None:
    """``verify=False`` is for states whose digests were verified a moment ago."""
    whole = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(whole[:-1] + b"\x00")

    assert load(damaged, verify=False).parts["optimizer"]["lr"] == 0.1
    _expect_damage(damaged, "model.safetensors")
    (damaged / "model.safetensors").write_bytes(whole)


def test_damage_to_a_tensor_that_stays_on_disk_is_seen_before_it_is_read(tmp_path: Path) -> None:
    """Wherever it is, in whichever of the blocks that are read."""
    path = tmp_path / "state"
    write_checkpoint(path, {"model": torch.arange(1_000_000.0)}, summary())
    whole = bytearray((path / "model.safetensors").read_bytes())
    for position in (len(whole) - 1, len(whole) // 2, 1 << 20, (1 << 20) - 1, 200):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        (path / "model.safetensors").write_bytes(damaged)
        _expect_damage(path, "model.safetensors")


def test_a_state_of_digests_of_sha256_is_verified(tmp_path: Path) -> None:
    """As earlier versions wrote it; a digest of the other kind is none."""
    path = tmp_path / "state"
    _write(path)
    entries = {
        name: FileEntry(entry.bytes, hashlib.sha256((path / name).read_bytes()).hexdigest())
        for name, entry in read_manifest(path).files.items()
    }
    (path / "manifest.json").write_bytes(manifest_text(summary(), entries, version=1))
    assert _updates(path) == (1, 1)
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-1] + b"\x00")
    _expect_damage(path, "model.safetensors")
    (path / "manifest.json").write_bytes(manifest_text(summary(), entries))
    _expect_damage(path, "manifest.json")


def _with_digest(manifest: dict[str, Any]) -> bytes:
    manifest["manifest_sha256"] = "0" * 64
    text = json.dumps(manifest).encode()
    return text.replace(b"0" * 64, hashlib.sha256(text).hexdigest().encode())


def _with_files_of(path: Path, changes: dict[str, Any]) -> None:
    """Write a manifest that fits the files as they are now: what somebody could do who wants to be believed."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    for name, entry in manifest["files"].items():
        content = (path / name).read_bytes()
        entry.update(bytes=len(content), xxh3_128=xxhash.xxh3_128_hexdigest(content))
    (path / "manifest.json").write_bytes(_with_digest(manifest | changes))


def _file(**fields: Any) -> dict[str, Any]:
    return {"files": {"state.json": {"bytes": 10, "xxh3_128": "0" * 32} | fields}}


_NO_NAMES = ("../outside.safetensors", "/etc/hostname", "..", "", "a\x00b")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"version": "1"}, "TypeError"),
        ({"format": "recipe"}, "the format 'recipe'"),
        ({"summary": {"run": 1}}, "summary.run is 1"),
        ({"summary": summary() | {"sequence": "first"}}, "summary.sequence is 'first'"),
        ({"summary": summary() | {"sequence": -1}}, "summary.sequence is -1"),
        ({"summary": summary() | {"note": [1, 2]}}, "summary.note is [1, 2]"),
        ({"files": []}, "AttributeError"),
        ({"files": {"state.json": {"bytes": 10}}}, "KeyError: 'xxh3_128'"),
        *((_file(bytes=size), "state.json of") for size in ("10", -1)),
        *((_file(xxh3_128=digest), "with the digest") for digest in ("../../../other", "A" * 32)),
        *(({"files": {name: {"bytes": 0, "xxh3_128": "0" * 32}}}, f"a file called {name!r}") for name in _NO_NAMES),
    ],
)
def test_a_manifest_that_is_written_wrong_is_refused_by_the_path(
    tmp_path: Path, changes: dict[str, Any], found: str
) -> None:
    """Also if its digest is right. A listing names the state and continues, and nothing outside is looked at."""
    _write(tmp_path / "state")
    path = tmp_path / "state" / "manifest.json"
    path.write_bytes(_with_digest(json.loads(path.read_bytes()) | changes))

    with pytest.raises(CheckpointError, match="damaged") as caught:
        load(tmp_path / "state")
    assert str(path) in caught.value.given
    assert found in str(caught.value)
    if "format" not in changes:  # of which it is not known that it is a state
        (record,) = Folder(tmp_path).records()
        assert found in str(record.problem)


def test_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    """It says so, instead of looking damaged."""
    _write(tmp_path / "state")
    _with_files_of(tmp_path / "state", {"version": 4})
    with pytest.raises(
        CheckpointError, match=r"newer format[\s\S]*version 4[\s\S]*Install the version of pa-checkpoint"
    ):
        load(tmp_path / "state")


class _Poison:
    """Something that leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    @override
    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("save", [pickle.dump, torch.save])
def test_a_pickle_is_never_run(tmp_path: Path, name: str, save: Callable[..., None]) -> None:
    """A poisoned pickle in place of any file, with a manifest that fits, is refused and not run."""
    trace, path = tmp_path / "trace", tmp_path / "state"
    pickle.loads(pickle.dumps(_Poison(trace)))
    assert trace.exists(), "the poison works"
    trace.unlink()
    _write(path)
    with (path / name).open("wb") as file:
        save(_Poison(trace), file)
    if name != "manifest.json":
        _with_files_of(path, {})

    _expect_damage(path, name)
    write_checkpoint(tmp_path / "other", {"x": pickle.dumps(_Poison(trace))}, summary())
    assert isinstance(load(tmp_path / "other").parts["x"], bytes)

    assert not trace.exists()


def test_documents_of_another_kind_are_refused(tmp_path: Path) -> None:
    """A list in place of the documents, with a manifest that fits, is refused like any other damage."""
    _write(tmp_path / "state")
    (tmp_path / "state" / "state.json").write_bytes(b"[]")
    _with_files_of(tmp_path / "state", {})

    _expect_damage(tmp_path / "state", "state.json")


@given(
    content=st.binary(max_size=200)
    | st.binary(max_size=200).map(lambda tail: (len(tail) // 2).to_bytes(8, "little") + tail)
)
def test_any_bytes_in_place_of_a_tensor_file_are_one_kind_of_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """A file that is none, with a manifest that fits, is refused like any other damage."""
    path = tmp_path_factory.getbasetemp() / "any_bytes"
    if not path.exists():
        _write(path)
    (path / "model.safetensors").write_bytes(content)
    _with_files_of(path, {})

    with pytest.raises(CheckpointError):
        load(path)


_WRONG_ENTRIES: list[dict[str, Any]] = [
    {"data_offsets": [4, 8]},
    {"shape": [2]},
    {"shape": [-1, -1]},
    {"shape": [10**18], "data_offsets": [0, 4 * 10**18]},
    {"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]},
    *({"shape": shape} for shape in ([1] * 65, [1.0], [True], ["1"], 1, None)),
    *({"dtype": dtype} for dtype in (["F32"], "F33")),
]
_ENTRY: dict[str, Any] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
_WRONG_HEADERS: list[dict[str, Any]] = [
    *({"model/weight": _ENTRY | wrong} for wrong in _WRONG_ENTRIES),
    {"model/weight": {"dtype": "F32", "data_offsets": [0, 4]}},
    {"model/weight": []},
    {"another": _ENTRY},
]


@pytest.mark.parametrize("header", _WRONG_HEADERS)
def test_a_wrong_header_of_a_tensor_file_is_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    """Nothing is allocated for sizes that the file does not have, and no gap or overlap is read."""
    write_checkpoint(tmp_path / "state", {"model": {"weight": torch.ones(1)}}, summary())
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + b"\x00" * 4
    (tmp_path / "state" / "model.safetensors").write_bytes(content)
    _with_files_of(tmp_path / "state", {})

    with pytest.raises(CheckpointError):
        load(tmp_path / "state")


def test_a_state_is_replaced_by_a_whole_one(tmp_path: Path) -> None:
    """Under the same path there is always one state, and nothing is left beside it; an empty folder is no obstacle."""
    (tmp_path / "state").mkdir()
    for update in (1, 2, 3):
        _write(tmp_path / "state", update)
        assert _updates(tmp_path / "state") == (update, update)

    assert names_in(tmp_path) == ["state"]


def test_the_state_that_was_set_aside_is_found(tmp_path: Path) -> None:
    """After a crash between setting the old state aside and publishing the new one, the old one is there."""
    path = tmp_path / "state"
    _write(path, 1)
    path.rename(tmp_path / ".state.set_aside")

    assert is_checkpoint(path)
    assert _updates(path) == (1, 1)

    _write(path, 2)
    assert _updates(path) == (2, 2)
    assert names_in(tmp_path) == ["state"]


def test_a_crash_before_the_old_state_was_removed_does_no_harm(tmp_path: Path) -> None:
    """Where both are there, the new state is read, and the old one goes with the next write."""
    path = tmp_path / "state"
    _write(path, 1)
    path.rename(tmp_path / ".state.set_aside")
    shutil.copytree(tmp_path / ".state.set_aside", tmp_path / "copy")
    _write(path, 2)
    (tmp_path / "copy").rename(tmp_path / ".state.set_aside")

    assert _updates(path) == (2, 2)
    _write(path, 3)
    assert _updates(path) == (3, 3)
    assert names_in(tmp_path) == ["state"]


@contextlib.contextmanager
def _failing_at(step: int, error: BaseException) -> Generator[list[str]]:
    """Let the call to the system with this number fail; list the calls."""
    calls: list[str] = []

    def failing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == step:
                raise error
            return function(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for name in ("mkdir", "fsync", "rename", "unlink", "rmdir"):
            patched.setattr(os, name, failing(name, getattr(os, name)))
        yield calls


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_whatever_fails_the_old_or_the_new_state_is_there(tmp_path: Path, error: BaseException) -> None:
    """Each call to the system fails once: the state under the path is whole, and what is left over can be removed."""
    path = tmp_path / "state"
    _write(path, 1)
    found: list[str] = []
    for step in itertools.count(1):
        with _failing_at(step, error) as calls, contextlib.suppress(CheckpointError, KeyboardInterrupt):
            _write(path, 2)
        if len(calls) < step:
            break
        assert path.is_dir(), "what was set aside was not put back"
        assert _updates(path) in {(1, 1), (2, 2)}
        found.append(f"{calls[step - 1]}: {_updates(path)[0]}")
        _write(path, 1)
        Folder(tmp_path).remove_leftovers("first")
        assert names_in(tmp_path) == ["state"]
    assert {"mkdir: 1", "fsync: 1", "rename: 1", "fsync: 2", "unlink: 2", "rmdir: 2"} <= set(found)


def test_content_reaches_the_disk_before_it_takes_the_name(tmp_path: Path) -> None:
    """The order that survives a power cut: four files, their folder, the name, the folder above."""
    with _failing_at(0, OSError()) as calls:
        _write(tmp_path / "state", 1)
    assert calls == ["mkdir", "mkdir", *["fsync"] * 5, "rename", "fsync"]

    with _failing_at(0, OSError()) as calls:
        _write(tmp_path / "state", 2)
    replacing = ["mkdir", "mkdir", *["fsync"] * 5, "rename", "rename", "fsync"]
    removing = ["rename", *["unlink"] * 4, "rmdir"]
    assert calls == replacing + removing


def test_a_reader_finds_a_whole_state_while_it_is_replaced(tmp_path: Path) -> None:
    """Who reads while the state is replaced again and again reads one of them."""
    path = tmp_path / "state"
    _write(path, 1)
    end = threading.Event()

    def write() -> None:
        update = 1
        while not end.is_set():
            update += 1
            _write(path, update)

    writer = threading.Thread(target=write)
    writer.start()
    found: set[tuple[object, object]] = set()
    try:
        while len(found) < 10:
            found.add(_updates(path))
    finally:
        end.set()
        writer.join()

    assert all(first == second for first, second in found)
    assert names_in(tmp_path) == ["state"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    """A link from the project to a large disk keeps its meaning."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "state"
    link.symlink_to(tmp_path / "disk" / "state")

    _write(link, 1)
    _write(link, 2)

    assert link.is_symlink()
    assert _updates(tmp_path / "disk" / "state") == _updates(link) == (2, 2)


def test_something_else_is_never_replaced(tmp_path: Path) -> None:
    """A file, a folder of the user's, and one with a manifest of something else stay as they are."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("x")
    (tmp_path / "extension").mkdir()
    (tmp_path / "extension" / "manifest.json").write_text('{"format": "web extension"}')

    for name, found in [("file", "a file"), ("folder", "not a checkpoint"), ("extension", "not a checkpoint")]:
        with pytest.raises(CheckpointError, match="something else") as caught:
            _write(tmp_path / name)
        assert found in caught.value.given
        assert not is_checkpoint(tmp_path / name)
    with pytest.raises(CheckpointError, match="could not be written"):
        _write(tmp_path / "file" / "state")
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "notes.txt").read_text() == "x"


def test_a_path_without_a_state_says_so(tmp_path: Path) -> None:
    """Nothing, a file, and a folder without a state are three different answers."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(CheckpointError, match="where nothing is"):
        load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="file, a file"):
        load(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"manifest\.json: nothing"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("parts", "change", "given"),
    [
        ({"a/b": 1}, {}, "'a/b'"),
        ({"": 1}, {}, "''"),
        ({"naïve": 1}, {}, "'naïve'"),
        ({"model": 1, "Model": 2}, {}, "'Model'"),
        ({"model": {"layer": len}}, {}, "model['layer']"),
        ({}, {"run": 3}, "run=3"),
        ({}, {"update": 1.5}, "update=1.5"),
        ({}, {"complete": 1}, "complete=1"),
        ({}, {"loss": float("nan")}, "loss=nan"),
        ({}, {"losses": [1]}, "losses=[1]"),
    ],
)
def test_what_could_not_be_read_again_is_refused_before_anything_is_written(
    tmp_path: Path, parts: dict[str, object], change: Any, given: str
) -> None:
    """Names become names of files on every system, values must be storable, and a listing relies on summaries."""
    with pytest.raises(CheckpointError) as caught:
        write_checkpoint(tmp_path / "state", parts, summary() | change)

    assert given in caught.value.given
    assert names_in(tmp_path) == []


def _expect_failure(path: Path, advice: str) -> None:
    """A state cannot be written; the error says what to do."""
    with pytest.raises(CheckpointError) as caught:
        _write(path, 2)
    assert str(path) in caught.value.given
    assert advice in caught.value.do


def test_a_disk_that_is_full_at_any_byte_costs_nothing(tmp_path: Path) -> None:
    """The old state stays, nothing is left over, and there is room for the next one once there is."""
    path = tmp_path / "state"
    _write(path)
    largest = max(file.stat().st_size for file in path.iterdir())
    for limit in [*range(0, 200, 20), *range(200, largest, 50)]:
        with full_disk(limit):
            _expect_failure(path, "Free some space")
        assert _updates(path) == (1, 1)
        assert names_in(tmp_path) == ["state"]
    _write(path, 3)
    assert _updates(path) == (3, 3)


@contextlib.contextmanager
def _obeyed_permissions() -> Generator[Path]:
    """A folder, and somebody whom permissions stop."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        try:
            yield Path(folder)
        finally:
            os.seteuid(before)


def _be_nobody() -> None:
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


def test_a_folder_that_may_not_be_written_to_keeps_what_it_has() -> None:
    """The error says what to do."""
    with _obeyed_permissions() as folder:
        _write(folder / "state")
        folder.chmod(0o555)
        _be_nobody()
        for path in (folder / "state", folder / "other" / "state"):
            _expect_failure(path, "choose another folder")
        assert _updates(folder / "state") == (1, 1)
        assert names_in(folder) == ["state"]


def test_a_state_that_may_not_be_read_is_skipped_with_its_reason() -> None:
    """It keeps its place in the order."""
    with _obeyed_permissions() as folder:
        paths = [save(folder / f"state_{sequence}_update_1", sequence) for sequence in (1, 2, 3)]
        (paths[1] / "model.safetensors").chmod(0)
        paths[2].chmod(0)
        _be_nobody()
        state, skipped = Folder(folder).newest_readable(load)
        assert state is not None
        assert state.path == paths[0]
        assert [entry.path for entry in skipped] == [paths[2], paths[1]]
        assert all("Permission denied" in entry.reason for entry in skipped), skipped
        assert Folder(folder).next_sequence() == 4


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak of the memory of a program")
def test_writing_needs_no_second_copy_of_the_tensors(launch: Launch, tmp_path: Path) -> None:
    """Whoever trains a model that just fits into memory can save it, and load it into its tensors or as much again."""
    script = """
import re, sys
import torch
import xxhash
from pa_checkpoint import load
from pa_checkpoint._checkpoint import write_checkpoint

def peak():
    return int(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1]) // 1024

parts = {"model": {number: torch.ones(5_000_000) for number in range(8)}}
summary = {"run": "first", "sequence": 1, "update": 1, "epoch": 1, "complete": False}
write_checkpoint(sys.argv[1], {"model": torch.ones(3)}, summary)
before = peak()
write_checkpoint(sys.argv[1], parts, summary)
print("written with", peak() - before, "MiB more")
assert peak() - before < 30
before = peak()
for name, tensor in load(sys.argv[1], lazy=True)["model"].items():
    tensor.read_into(parts["model"][name])
print("read into the tensors with", peak() - before, "MiB more")
assert peak() - before < 16
state = load(sys.argv[1])
print("read with", peak() - before, "MiB more")
assert peak() - before < 160 + 30
"""
    assert launch(script, str(tmp_path / "state"), fresh=True).status == 0  # its memory is its own


USES: dict[str, Callable[[str | Path], object]] = {
    "save": lambda url: pa_checkpoint.save(url, {"step": 1}),
    "load": load,
    "verify": verify,
    "FolderLock": FolderLock,
    "atomic_write": lambda url: atomic_write(url, lambda file: file.write(b"")),
    "Writer": lambda url: Writer().save(url, {"step": 1}),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("url", ["s3://me:secret@bucket/step_1", Path("gs://bucket/step_1")], ids=str)
def test_a_url_is_not_taken_for_a_path(
    use: str, url: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a folder called `s3:` would keep what its user believes to be in a store."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="not in an object store") as raised:
        USES[use](url)
    assert "secret" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
