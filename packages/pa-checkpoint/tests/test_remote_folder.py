"""Training states in an object store: what is sent, what stays, and what comes back whatever goes wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pa_checkpoint
from pa_checkpoint import CheckpointError, CheckpointNotFoundError, load
from pa_checkpoint import _remote_folder as state_store
from pa_checkpoint._checkpoint import write_checkpoint
from pa_checkpoint._manifest import manifest_text, read_manifest
from pa_checkpoint._remote_folder import ObjectStore, ObjectStoreError, RemoteCheckpoint, RemoteFolder
from tests.support.faulty_store import KINDS, Faults, fault_rates, store_url, use_faults
from tests.support.states import summary


@pytest.fixture
def faults() -> Iterator[Faults]:
    """What goes wrong in the stores of a test: nothing, unless it says so."""
    yield use_faults(Faults())
    use_faults(Faults())


@pytest.fixture
def store(tmp_path: Path, faults: Faults) -> RemoteFolder:
    """A store, in the folder of the test."""
    return RemoteFolder(store_url(tmp_path / "store"))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again at once."""
    monkeypatch.setattr("pa_checkpoint._remote_folder.PAUSES", (0.0,) * 8)


def save(folder: Path, update: int, run: str = "first", trained: float | None = None) -> Path:
    """Save a state of which one part is as in all others, and another one is not, unless its value is given."""
    frozen, weight = torch.arange(100.0), torch.full((10,), float(update) if trained is None else trained)
    path = folder / f"step_{update}"
    parts = {"frozen": {"base": frozen}, "trained": {"weight": weight}, "position": update}
    write_checkpoint(path, parts, summary(update * 10, update, run=run))
    return path


def blobs(store: Path) -> set[str]:
    """The names of all files in a store."""
    return {path.name for path in store.glob("files/*/*") if not path.name.startswith(".")}


def test_what_is_there_is_not_sent_again_and_the_manifest_is_sent_last(
    tmp_path: Path, faults: Faults, store: RemoteFolder
) -> None:
    """A second state sends its changed files only; a state is seen once all of its files are there."""
    for update, num_files in ((1, 3), (2, 2)):  # with the documents
        faults.sent.clear()
        path = save(tmp_path / "states", update)
        store.upload(path)
        *files, manifest = [name for name in faults.sent if name.endswith(".json") or len(name) == 32]
        assert len(files) == num_files
        assert manifest.endswith(f"step_{update}.json")
    assert [state.name for state in store.states()] == ["step_1", "step_2"]

    faults.sent.clear()
    store.upload(tmp_path / "states" / "step_2")
    assert len(faults.sent) == 1  # the manifest


def test_a_checkpoint_without_a_summary_can_be_sent(tmp_path: Path, store: RemoteFolder) -> None:
    """The summary is optional, so a checkpoint that says nothing of its run or its update is sent and fetched."""
    pa_checkpoint.save(tmp_path / "best", {"step": 50})
    store.upload(tmp_path / "best")
    assert pa_checkpoint.load(store.download(store.states()[-1], tmp_path / "fetched"))["step"] == 50


def test_a_state_comes_back_byte_for_byte(tmp_path: Path, faults: Faults) -> None:
    """What is downloaded is the directory that was sent, whatever its name."""
    path = save(tmp_path / "states", 7).rename(tmp_path / "states" / "a name/of%its own".replace("/", " "))
    RemoteFolder(store_url(tmp_path / "store")).upload(path)
    (state,) = RemoteFolder(store_url(tmp_path / "store")).states()
    fetched = RemoteFolder(store_url(tmp_path / "store")).download(state, tmp_path / "elsewhere")
    assert fetched.name == path.name
    assert {file.name: file.read_bytes() for file in fetched.iterdir()} == {
        file.name: file.read_bytes() for file in path.iterdir()
    }


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "manifest flipped", "manifest of another"])
def test_a_damaged_state_is_refused(tmp_path: Path, store: RemoteFolder, damage: str) -> None:
    """Nothing is left on the disk of a state that is not as it was sent."""
    (first, second) = (save(tmp_path / "states", update) for update in (1, 2))
    store.upload(first)
    state = store.upload(second)
    manifest = tmp_path / "store" / "states" / state.object_name
    digest = json.loads(manifest.read_text())["files"]["trained.safetensors"]["xxh3_128"]
    (target,) = (tmp_path / "store" / "files").glob(f"*/{digest}")
    if damage == "missing":
        target.unlink()
    elif damage == "manifest of another":
        shutil.copyfile(manifest.with_name(next(one for one in sorted(manifest.parent.iterdir())).name), manifest)
    else:
        target = manifest if damage == "manifest flipped" else target
        content = bytearray(target.read_bytes())
        content[-10] ^= 1
        target.write_bytes(content[:-5] if damage == "truncated" else content)
    fresh = RemoteFolder(store.url)
    with pytest.raises(CheckpointError):
        fresh.download(fresh.states()[-1], tmp_path / "elsewhere")
    assert [*(tmp_path / "elsewhere").glob("*")] == []


def test_files_of_a_manifest_lead_nowhere_else(tmp_path: Path, store: RemoteFolder) -> None:
    """Whoever can write to the store can write nowhere else."""
    path = save(tmp_path / "states", 1)
    manifest = read_manifest(path)
    files = {("../../outside" if name == "state.json" else name): entry for name, entry in manifest.files.items()}
    state = store.upload(path)
    (tmp_path / "store" / "states" / state.object_name).write_bytes(manifest_text(manifest.summary, files))
    fresh = RemoteFolder(store.url)
    with pytest.raises(CheckpointError, match="outside"):
        fresh.download(fresh.states()[-1], tmp_path / "elsewhere")
    assert not (tmp_path / "outside").exists()


def test_the_newest_states_of_a_run_stay_and_all_of_other_runs(tmp_path: Path, faults: Faults) -> None:
    """Files go with the last state that needs them; every state that is left comes back."""
    other, store = RemoteFolder(store_url(tmp_path / "store")), RemoteFolder(store_url(tmp_path / "store"))
    other.upload(save(tmp_path / "other", 1, run="other"))
    for update in range(2, 6):
        store.upload(save(tmp_path / "states", update))
        store.keep(2, "first")
    assert [state.name for state in store.states()] == ["step_1", "step_4", "step_5"]
    assert len(blobs(tmp_path / "store")) == 1 + 4 + 2  # the base of both runs is the same file, once in each run
    for state in store.states():
        assert load(store.download(state, tmp_path / "elsewhere")).parts["position"] == int(state.name[5:])


def test_a_state_that_lacks_a_file_does_not_count_as_one_that_stays(tmp_path: Path, store: RemoteFolder) -> None:
    """The newest whole ones stay."""
    for update in range(1, 4):
        store.upload(save(tmp_path / "states", update))
    newest = tmp_path / "store" / "states" / store.states()[-1].object_name
    digest = json.loads(newest.read_text())["files"]["trained.safetensors"]["xxh3_128"]
    next((tmp_path / "store" / "files").glob(f"*/{digest}")).unlink()
    store.keep(1, "first")
    assert [state.name for state in store.states()] == ["step_2", "step_3"]


def test_a_state_that_is_saved_again_under_its_name_counts_once(tmp_path: Path, store: RemoteFolder) -> None:
    """As on the disk, where it takes the place of the one before: a preempted run often saves an update twice."""
    for update in range(1, 4):
        store.upload(save(tmp_path / "states", update))
    write_checkpoint(tmp_path / "states" / "step_3", {"position": 4}, summary(30, 4))
    store.upload(tmp_path / "states" / "step_3")
    store.keep(2, "first")
    assert [(state.name, state.sequence) for state in store.states()] == [("step_2", 2), ("step_3", 4)]
    fetched = [load(store.download(state, tmp_path / "elsewhere")) for state in store.states()]
    assert [state.parts["position"] for state in fetched] == [2, 4]


def test_what_was_left_half_sent_goes_after_a_while(
    tmp_path: Path, store: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once: the state that needs it may not be listed yet."""
    store.upload(save(tmp_path / "states", 1))
    state = store.upload(save(tmp_path / "states", 2))
    (tmp_path / "store" / "states" / state.object_name).unlink()  # as if the process had been killed before
    again = RemoteFolder(store_url(tmp_path / "store"))
    again.upload(save(tmp_path / "states", 3))
    again.keep(1, "first")
    assert len(blobs(tmp_path / "store")) == 3 + 2
    monkeypatch.setattr(state_store, "SECONDS_TO_SETTLE", 0.0)
    again.keep(1, "first")
    assert len(blobs(tmp_path / "store")) == 3


def test_a_listing_that_lags_costs_no_file_that_a_state_needs(
    tmp_path: Path, faults: Faults, store: RemoteFolder
) -> None:
    """A state is whole though neither its files nor it are listed yet, and those that were removed still are."""
    faults.listing_lag = 12
    for update in range(1, 12):
        store.upload(save(tmp_path / "states", update))
        store.keep(1, "first")
        faults.listing_lag, lag = 0, faults.listing_lag
        newest = store.states()[-1]
        assert newest.name == f"step_{update}"
        store.download(newest, tmp_path / "elsewhere")
        faults.listing_lag = lag
    faults.listing_lag = 0
    store.keep(1, "first")
    assert [state.name for state in store.states()] == ["step_11"]


def test_the_process_that_begins_last_is_the_one_that_sends(tmp_path: Path, faults: Faults) -> None:
    """One that was believed dead sends no more states of the run, and removes none."""
    before, after = (RemoteFolder(store_url(tmp_path / "store")) for _ in range(2))
    before.upload(save(tmp_path / "states", 1))
    after.upload(save(tmp_path / "states", 2))
    with pytest.raises(CheckpointError, match="Another process sends checkpoints of this run"):
        before.upload(save(tmp_path / "states", 3))
    with pytest.raises(CheckpointError, match="Another process"):
        before.keep(1, "first")
    assert [state.name for state in after.states()] == ["step_1", "step_2"]


def test_a_state_that_is_replaced_meanwhile_is_not_mixed_with_its_successor(
    tmp_path: Path, store: RemoteFolder
) -> None:
    """Not even where the files have the same sizes."""
    path = save(tmp_path / "states", 1)
    content = {file.name: file.read_bytes() for file in path.iterdir()}

    def replace(*_: object) -> bytes:
        if path.stat().st_ino == inode:
            save(tmp_path / "states" / "new", 2).parent.joinpath("step_2").rename(tmp_path / "states" / "fresh")
            path.rename(tmp_path / "states" / "old")
            (tmp_path / "states" / "fresh").rename(path)
        return content["manifest.json"]

    inode = path.stat().st_ino
    send = store._store.send  # pyright: ignore[reportPrivateUsage]  # no other way to be between two requests

    def send_late(file: Path, name: str) -> None:
        replace()
        send(file, name)

    store._store.send = send_late  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]  # as above
    with pytest.raises(CheckpointNotFoundError, match="replaced or removed while it was sent"):
        store.upload(path)
    assert store.states() == []
    assert blobs(tmp_path / "store") == set()


def test_a_file_that_is_needed_again_stays_though_the_state_that_needs_it_is_not_listed_yet(
    tmp_path: Path, faults: Faults, store: RemoteFolder
) -> None:
    """What this process has sent is not forgotten."""
    for update, trained in ((1, 1.0), (2, 2.0), (3, 1.0)):
        faults.listing_lag = 100 if update == 3 else 0
        if update == 3:
            faults.changed.clear()
        store.upload(save(tmp_path / "states", update, trained=trained))
    assert [state.name for state in store.keep(1, "first")] == ["step_1"]
    faults.listing_lag = 0
    store.download(store.states()[-1], tmp_path / "elsewhere")


@pytest.mark.parametrize("kind", [*KINDS, "all of them"])
def test_what_was_sent_comes_back_whatever_goes_wrong(tmp_path: Path, kind: str) -> None:
    """With one request in eight failing in some way, each state that was sent is found, or a newer one."""
    kinds = KINDS if kind == "all of them" else (kind,)
    rate = 0.04 if kind == "all of them" else 0.12
    faults = use_faults(Faults(fault_rates(kinds, rate), random.Random(7), listing_lag=5))
    sent, found = 0, 0
    for start in range(3):
        store = RemoteFolder(store_url(tmp_path / "store"))  # on another machine, with another folder
        for update in range(4 * start + 1, 4 * start + 5):
            store.upload(save(tmp_path / f"states_{start}", update))
            store.keep(2, "first")
            sent = update
        faults.listing_lag = 0  # time passes
        machine = RemoteFolder(store_url(tmp_path / "store"))
        for state in reversed(machine.states()):
            try:
                found = load(machine.download(state, tmp_path / f"machine_{start}")).parts["position"]
            except (CheckpointError, CheckpointNotFoundError):
                continue
            break
        assert found == sent
        faults.listing_lag = 5
    assert faults.happened
    use_faults(Faults())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuchkind://bucket/states", "Check the URL"),
        ("s3://bucket/states", "Install pa-checkpoint[fsspec], and s3fs"),
    ],
)
def test_a_store_that_cannot_be_opened_is_explained(url: str, words: str) -> None:
    """The error says what to install or to correct."""
    if url.startswith("s3:") and importlib.util.find_spec("s3fs") is not None:
        pytest.skip("s3fs is installed")
    with pytest.raises(ObjectStoreError, match="object store") as caught:
        RemoteFolder(url).check()
    assert words in caught.value.do


def test_a_store_that_refuses_is_explained(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forbidden is not tried again; what may pass is, and the error says what came of it."""
    faults.broken = True
    with pytest.raises(ObjectStoreError, match="Refused: try again later"):
        RemoteFolder(store_url(tmp_path / "store")).check()
    assert faults.asked == 9

    def forbid(*_: object, **__: object) -> None:
        faults.asked += 1
        raise PermissionError("not yours")

    faults.asked = 0
    monkeypatch.setattr("tests.support.faulty_store.FaultyFileSystem.pipe_file", forbid)
    with pytest.raises(ObjectStoreError, match="credentials"):
        RemoteFolder(store_url(tmp_path / "store")).check()
    assert faults.asked == 1


def test_an_object_store_is_any_file_system_of_fsspec(tmp_path: Path) -> None:
    """Folders that are missing are made, in file systems that have any."""
    store = ObjectStore(f"file://{tmp_path}/not/there/yet")
    store.send_bytes(b"content", "files/one")
    assert store.sizes("files") == {"one": 7}
    store.remove("files/one")
    assert store.sizes("files") == {}


def test_the_newest_whole_checkpoint_is_fetched(tmp_path: Path, store: RemoteFolder) -> None:
    """A damaged one is passed over, and said; what is in the folder already is not downloaded."""
    for update in range(1, 4):
        store.upload(save(tmp_path / "states", update))
    damaged = json.loads((tmp_path / "states" / "step_3" / "manifest.json").read_text())["files"]["trained.safetensors"]
    (blob,) = (tmp_path / "store" / "files").glob(f"*/{damaged['xxh3_128']}")
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")

    said: list[str] = []
    path, skipped = store.fetch(tmp_path / "machine", say=said.append)
    assert (path.name, load(path)["position"], [one.path.name for one in skipped]) == ("step_2", 2, ["step_3"])
    assert store.fetch(tmp_path / "machine", say=said.append) == (path, skipped)
    assert [line.split()[1] for line in said] == ["step_3", "step_2", "step_3"]
    assert store.fetch(tmp_path / "machine", name="step_1")[0].name == "step_1"
    assert store.fetch(tmp_path / "other", digest=load(path).digest)[0].name == "step_2"


def test_a_newer_checkpoint_of_the_folder_is_taken_where_its_run_is_known(tmp_path: Path, store: RemoteFolder) -> None:
    """It was not uploaded before its process was killed; one of another run is none of the store's."""
    store.upload(save(tmp_path / "states", 1))
    newer = save(tmp_path / "states", 2)
    save(tmp_path / "states", 3, run="second")
    assert store.fetch(tmp_path / "states") == (newer, [])


def test_a_checkpoint_that_is_not_in_the_store_is_not_found(tmp_path: Path, store: RemoteFolder) -> None:
    """Neither in an empty one, nor by another name."""
    with pytest.raises(CheckpointNotFoundError, match="step_1, where nothing is"):
        store.upload(tmp_path / "states" / "step_1")
    with pytest.raises(CheckpointNotFoundError, match="no such checkpoint"):
        store.fetch(tmp_path / "machine")
    store.upload(save(tmp_path / "states", 1))
    with pytest.raises(CheckpointNotFoundError, match="without step_2"):
        store.fetch(tmp_path / "machine", name="step_2")


@pytest.mark.parametrize("name", ["../../outside", "/tmp/pa_outside/x", "..", ".in_use", "a/b", "a\0b", "x/../../y"])
def test_names_of_checkpoints_in_a_store_lead_nowhere_else(tmp_path: Path, store: RemoteFolder, name: str) -> None:
    """Whoever can write to the store chooses no place outside of the folder, and an honest checkpoint is taken."""
    older, newer = (save(tmp_path / "states", update) for update in (1, 2))
    store.upload(older)
    manifest = read_manifest(newer)
    state = store.upload(newer)
    states = tmp_path / "store" / "states"
    hostile = state_store._object_name(name, manifest)  # pyright: ignore[reportPrivateUsage]  # names that it would not write
    (states / state.object_name).rename(states / hostile)
    fresh, target = RemoteFolder(store.url), tmp_path / "deep" / "elsewhere"
    before = {path for path in tmp_path.rglob("*") if "store" not in path.parts}

    path, skipped = fresh.fetch(target)

    assert path == target / "step_1"
    assert [one.path for one in skipped] == [Path(name)]
    assert "cannot have this name" in skipped[0].reason
    made = {path for path in tmp_path.rglob("*") if "store" not in path.parts} - before
    assert all(path in (target.parent, target) or (target / "step_1") in (path, path.parent) for path in made)
    assert not Path("/tmp/pa_outside").exists()
    with pytest.raises(CheckpointError, match="cannot have this name"):
        fresh.download(RemoteCheckpoint(hostile, state.sequence, state.update, state.key, name), target)


def test_a_checkpoint_without_a_name_of_its_own_is_not_sent(
    tmp_path: Path, store: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would find it in the store."""
    monkeypatch.chdir(save(tmp_path / "states", 1))
    with pytest.raises(CheckpointError, match="cannot have this name"):
        store.upload(".")
    assert not (tmp_path / "store").exists()


def test_objects_of_another_size_are_not_downloaded(
    tmp_path: Path, store: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest, or a file, that somebody has made larger than the disk costs nothing."""
    state = store.upload(save(tmp_path / "states", 1))
    manifest = tmp_path / "store" / "states" / state.object_name
    digest = json.loads(manifest.read_text())["files"]["trained.safetensors"]["xxh3_128"]
    (target,) = (tmp_path / "store" / "files").glob(f"*/{digest}")
    whole = target.read_bytes()
    os.truncate(target, 1 << 40)
    with pytest.raises(CheckpointError, match=r"1,099,511,627,776 bytes at .*"):
        RemoteFolder(store.url).download(state, tmp_path / "elsewhere")
    target.write_bytes(whole)
    os.truncate(manifest, 1 << 40)
    with pytest.raises(CheckpointError, match=r"1,099,511,627,776 bytes instead of at most 67,108,864|at most"):
        RemoteFolder(store.url).fetch(tmp_path / "elsewhere")
    assert [*(tmp_path / "elsewhere").glob("*")] == []
