"""Values that are spelt as the words of the format are, and files that are not what their name promises."""

from __future__ import annotations

import collections
import inspect
import json
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pa_checkpoint import CheckpointError, CheckpointInfo, Folder, compare, load, save, verify
from pa_checkpoint.torch_states import ensure_plain
from tests.support.states import names_in, with_attribute

_ZEROS = "0" * 64

_SUMMARIES: list[dict[str, Any]] = [
    {"commit": _ZEROS},
    {"run": _ZEROS},
    {"note": f"{'0' * 70} and {_ZEROS}"},
    {"number": 10**70},
    {_ZEROS: 1, "": "", "a/b.c": None, "$tensor": "$x"},
    {"manifest_sha256": "a" * 64, "files": "{}", "format": "", "version": 3},
    {"note": '"manifest_sha256": "' + "b" * 64 + '"'},
    {"text": "\ud800 \0 \u2028", "\udc80": 5e-324},
    {"number": 2**2047, "least": -(2**2047), "zero": -0.0},
]


@pytest.mark.parametrize("summary", _SUMMARIES, ids=range(len(_SUMMARIES)))
def test_a_summary_may_be_spelt_as_the_manifest_is(tmp_path: Path, summary: dict[str, Any]) -> None:
    """A checkpoint that was saved without an error is read, with the summary as it was."""
    save(tmp_path / "step_1", {"weight": torch.ones(2)}, summary=summary)
    found = load(tmp_path / "step_1")
    assert found.summary == {**summary, "sequence": 1}
    assert verify(tmp_path / "step_1") == found.digest
    info = CheckpointInfo.at(tmp_path / "step_1")
    assert info is not None
    assert (info.problem, info.run) == (None, summary.get("run", ""))


@pytest.mark.parametrize("summary", [{"commit": _ZEROS}, {"number": 10**70}])
def test_what_earlier_versions_wrote_of_such_a_summary_is_read(tmp_path: Path, summary: dict[str, Any]) -> None:
    """They put the digest in place of all zeros, so that no version could read it."""
    save(tmp_path / "step_1", {"weight": torch.ones(2)}, summary=summary)
    manifest = tmp_path / "step_1" / "manifest.json"
    own = str(json.loads(manifest.read_text())["manifest_sha256"])
    text = manifest.read_text().replace(own, _ZEROS).replace(_ZEROS, own)
    assert text != manifest.read_text()
    manifest.write_text(text)
    assert load(tmp_path / "step_1").summary == {**summary, "sequence": 1}


def test_a_manifest_is_read_back_before_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that could not be read does not replace one that can: here, one with too many files."""
    save(tmp_path / "step_1", {"step": 1})
    monkeypatch.setattr("pa_checkpoint._manifest.MOST_BYTES", 1000)
    with pytest.raises(CheckpointError, match="not read as it was written") as caught:
        save(tmp_path / "step_1", {f"part_{number}": torch.ones(1) for number in range(9)})
    assert "more than 1,000 bytes" in caught.value.given
    assert load(tmp_path / "step_1")["step"] == 1
    assert names_in(tmp_path) == ["step_1"]


@pytest.mark.parametrize(
    ("summary", "given"),
    [({"number": 10**5000}, "number=<int with"), ({3: "three"}, "3='three'"), ({"loss": float("inf")}, "loss=inf")],
)
def test_a_summary_that_could_not_be_read_again_is_refused(tmp_path: Path, summary: Any, given: str) -> None:
    """Before anything is written: Python reads no number of thousands of digits, and JSON has texts for names."""
    with pytest.raises(CheckpointError, match="cannot be stored") as caught:
        save(tmp_path / "step_1", {}, summary=summary)
    assert given in caught.value.given
    assert names_in(tmp_path) == []


def test_a_manifest_of_any_size_takes_little_memory(tmp_path: Path) -> None:
    """A file of a terabyte is refused after its first bytes, also in a listing."""
    save(tmp_path / "step_1", {"step": 1})
    os.truncate(tmp_path / "step_1" / "manifest.json", 1 << 40)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"manifest\.json: more than 67,108,864 bytes"):
        load(tmp_path / "step_1")
    (record,) = Folder(tmp_path).records()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "more than" in str(record.problem)
    assert peak < 1 << 28


_VALUES: list[Any] = [
    {"$tensor": "model/weight", "$dict": []},
    {"": 1, "a.b": 2, "a/b": 3, "a": {"b": 4, "": {"": 5}}},
    {10**5000: [1, torch.ones(1)], (10**5000,): {"x": torch.ones(2)}},
    with_attribute(collections.OrderedDict({"attribute": 1, "attributes": 2}), {"$int": "many"}),
    {"\ud800": {"\udc80": [torch.ones(1)]}, "__metadata__": torch.ones(3), "\\ud800": {"\\udc80": [torch.ones(4)]}},
    {"a/b": torch.ones(1), "a": {"b": torch.ones(2), "b#1": torch.ones(3)}, "a/b#1": torch.ones(4)},
    {"nan": "nan", "$float": float("nan"), "inf": float("-inf"), "none": [None, "null", True, 1, 1.0]},
]


@pytest.mark.parametrize("value", _VALUES, ids=range(len(_VALUES)))
def test_parts_may_be_spelt_as_the_documents_are(tmp_path: Path, value: Any) -> None:
    """Keys, texts and names of tensors come back, whatever they are; two checkpoints of them are the same."""
    for name in ("one", "other"):
        save(tmp_path / name, {"model": value, "__metadata__": torch.ones(2), "state": 1, "manifest": 2})
    assert compare(tmp_path / "one", tmp_path / "other") is None
    found, digits = load(tmp_path / "one")["model"], sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert repr(found) == repr(value)
    finally:
        sys.set_int_max_str_digits(digits)


@pytest.mark.parametrize("name", ["$tensor", "\ud800"])
def test_an_attribute_of_a_dictionary_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Also a name that begins as the words of the format do, or that UTF-8 cannot encode."""
    value = collections.OrderedDict({"weight": 1})
    vars(value)[name] = "of the dictionary"
    save(tmp_path / "state", {"model": value})
    assert vars(load(tmp_path / "state")["model"]) == {name: "of the dictionary"}


def test_an_attribute_and_an_entry_of_the_same_name_are_both_compared(tmp_path: Path) -> None:
    """So are keys of different types that are equal."""
    for name, entry, key in (("first", 1, 1), ("entry", 2, 1), ("key", 1, True)):
        value = with_attribute(collections.OrderedDict({"attribute": entry}), 0)
        save(tmp_path / name, {"model": value, "other": {key: 0}})
    assert str(compare(tmp_path / "first", tmp_path / "entry")) == "model.attribute: 1 in the first, 2 in the second"
    assert str(compare(tmp_path / "first", tmp_path / "key")) == "other.1: 0 in the first, nothing in the second"


def test_integers_of_thousands_of_digits_are_compared_and_named(tmp_path: Path) -> None:
    """Python refuses to write them out, which is no reason to fail."""
    for name, number in (("one", 10**5000), ("other", 10**5000 + 1)):
        save(tmp_path / name, {"number": number})
    assert str(compare(tmp_path / "one", tmp_path / "other")).startswith("number: 0x")
    with pytest.raises(CheckpointError, match="cannot be stored") as caught:
        save(tmp_path / "third", {"numbers": {10**5000: frozenset({10**5000})}})
    assert "thousands of digits" in caught.value.given
    with pytest.raises(CheckpointError, match="not safely loaded again"):
        ensure_plain({10**5000: [len]}, "checkpoint")


_MOMENTS = [np.datetime64(1, "ns"), np.timedelta64(1, "ns"), np.timedelta64(1, "D"), np.datetime64("NaT", "ns")]


@pytest.mark.parametrize("moment", [*_MOMENTS, np.datetime64("2020-01-01", "D")], ids=repr)
def test_moments_are_refused_in_every_unit(tmp_path: Path, moment: np.generic) -> None:
    """Python has no nanoseconds, and numpy makes integers of them: a checkpoint would lose what they are."""
    with pytest.raises(CheckpointError, match="cannot be stored") as caught:
        save(tmp_path / "step_1", {"started": [moment]})
    assert f"started[0]: {type(moment).__name__}" in caught.value.given
    assert "Store" in caught.value.do


_ONE_ELEMENT: list[Callable[[torch.dtype], torch.Tensor]] = [
    lambda dtype: torch.ones(1, 3).to(dtype)[:, 0],
    lambda dtype: torch.tensor(0.1).to(dtype).expand(1),
    lambda dtype: torch.ones(2, 3, 5).to(dtype)[1:, 1:2, ::7],
    lambda dtype: torch.ones(1).to(dtype).as_strided((1, 1), (0, 9)),
    lambda dtype: torch.ones(4, 1).to(dtype).T[:, 2:3],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("make", _ONE_ELEMENT, ids=range(len(_ONE_ELEMENT)))
def test_a_tensor_of_one_element_may_have_any_strides(
    tmp_path: Path, make: Callable[[torch.dtype], torch.Tensor], dtype: torch.dtype
) -> None:
    """It is saved, read, compared and, as it has not changed, linked."""
    tensor = make(dtype)
    for name in ("one", "other"):
        save(tmp_path / name, {"model": {"buffer": tensor}})
    found = load(tmp_path / "one")["model"]["buffer"]
    assert found.equal(tensor)
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert compare(tmp_path / "one", tmp_path / "other") is None


@pytest.mark.parametrize("array", [np.ones(1)[::-1], np.ones((3, 2))[:1, ::-2][::-1], np.ones((0, 3))[::-1]], ids=str)
def test_an_array_of_one_element_may_have_any_strides(tmp_path: Path, array: Any) -> None:
    """Also negative ones, which tensors do not have."""
    save(tmp_path / "one", {"array": array})
    found = load(tmp_path / "one")["array"]
    assert (found.tolist(), found.shape, found.dtype) == (array.tolist(), array.shape, array.dtype)


def _at_depth(depth: int, read: Callable[[], Any]) -> Any:
    return read() if depth == 0 else _at_depth(depth - 1, read)


def test_a_whole_checkpoint_is_never_called_damaged_for_the_stack_of_its_reader(tmp_path: Path) -> None:
    """Wherever it is read, it is read right, or the error is Python's own; no older one is taken."""
    deep: list[object] = []
    for _ in range(40):
        deep = [{"deeper": deep}]
    for step in (1, 2):
        save(tmp_path / f"step_{step}", {"model": {"weight": torch.ones(2)}, "step": step, "deep": deep})
    used = len(inspect.stack(0))
    outcomes: list[object] = []
    room = sys.getrecursionlimit() - used
    for depth in range(room - 330, room, 2):
        try:
            newest = _at_depth(depth, Folder(tmp_path).newest)
            outcomes.append(newest["step"])
        except RecursionError:
            outcomes.append("too deep")
    assert set(outcomes) == {2, "too deep"}
    assert outcomes.count("too deep") < 30


def test_what_is_nested_without_an_end_is_damage_wherever_it_is_read(tmp_path: Path) -> None:
    """No stack is enough for it, so that an older checkpoint is taken, with a warning."""
    for step in (1, 2):
        save(tmp_path / f"step_{step}", {"step": step})
    path = tmp_path / "step_2" / "manifest.json"
    path.write_text("[" * 200_000)
    with pytest.warns(UserWarning, match="Skipping the checkpoint .*nested too deeply"):
        newest = Folder(tmp_path).newest()
    assert newest is not None
    assert newest["step"] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="processes have no such limits there")
def test_a_process_without_room_for_files_calls_no_checkpoint_damaged(tmp_path: Path) -> None:
    """That it has too many files open says nothing of the newest one."""
    import resource

    for step in (1, 2):
        save(tmp_path / f"step_{step}", {"weight": torch.ones(2), "step": step})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken, outcomes = os.open(tmp_path, os.O_RDONLY), set[object]()
    try:
        for free in range(3):
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1 + free, hard))
            try:
                newest = Folder(tmp_path).newest()
                outcomes.add(newest and newest["step"])
            except (CheckpointError, OSError) as error:
                outcomes.add("Too many open files" if "Too many open files" in str(error) else str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(taken)
    assert outcomes <= {2, "Too many open files"}


@pytest.mark.parametrize("name", ["manifest.json", "folder"])
def test_what_cannot_be_listed_in_a_manifest_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    """A file that is called as the manifest is, or a folder, among files of any content."""
    folder = Folder(tmp_path)
    with pytest.raises(CheckpointError, match="has files alone") as caught, folder.writing("exported", "", {}) as at:
        (at / name).mkdir() if name == "folder" else (at / name).touch()
    assert name in caught.value.given
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "..", ".", "", ".in_use", "a/b", "a\0b"])
def test_names_in_a_folder_lead_nowhere_else(tmp_path: Path, name: str) -> None:
    """Neither to save nor to remove, and not to what is hidden."""
    folder = Folder(tmp_path / "states")
    (tmp_path / "outside").mkdir()
    with pytest.raises(CheckpointError, match="cannot have this name"):
        folder.path_for(name, "first")
    with pytest.raises(CheckpointError, match="cannot have this name"):
        folder.remove(name)
    with pytest.raises(CheckpointError, match="cannot have this name"), folder.writing(name):
        pass
    assert names_in(tmp_path) == ["outside"]
