"""The first entry in which two checkpoints differ, from Python and on the command line."""

from __future__ import annotations

import collections
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pa_checkpoint import CheckpointError, CheckpointNotFoundError, Difference, compare, save
from pa_checkpoint.__main__ import main
from tests.launching import Launch
from tests.support.states import flip, with_attribute

NAN, OTHER_NAN = torch.tensor([[0x7FC00000], [0x7FC00001]], dtype=torch.int32).view(torch.float32)


def parts(**changes: Any) -> dict[str, Any]:
    """A checkpoint with values of all kinds; the changes are made to the last part."""
    return {
        "model": {"layers.0.weight": torch.arange(6.0).reshape(2, 3), "nothing": torch.empty(0, 2), "nan": NAN},
        "optimizer": {"state": {0: {"exp_avg": torch.ones(4), "step": torch.tensor(3.0)}}, "betas": (0.9, 0.999)},
        "last": {"set": {3, "a"}, "numbers": [1, -0.0, math.nan], **changes},
    }


def difference(folder: Path, first: object, second: object) -> str:
    """What is said of two values; the names of the checkpoints have nothing to do with it."""
    save(folder / "one", {"model": 1, "value": first})
    save(folder / "other", {"model": 1, "value": second}, summary={"run": "another"})
    return str(compare(folder / "one", folder / "other"))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (torch.zeros(3, 2), torch.tensor([[0, 0], [0, 0.5], [-2, 0]]), ": 2 of 6 elements differ, by 2 at most"),
        (torch.zeros(3), torch.tensor([0, -0.0, 0]), ": 1 of 3 elements differs, by 0 at most"),
        (NAN, OTHER_NAN, ": 1 of 1 elements differs, by nan at most"),
        (torch.tensor(1 + 1j), torch.tensor(1 - 2j), ": 1 of 1 elements differs, by 3 at most"),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), ": 2 of 2 elements differ, by 1"),
        (torch.tensor([True, False]), torch.tensor([True, True]), ": 1 of 2 elements differs, by 1 at most"),
        (np.arange(3), np.arange(3) * 2, ": 2 of 3 elements differ, by 2 at most"),
        (torch.ones(2), torch.ones(2, 1), ": Tensor of float32 and shape (2,) in the first, Tensor of float32 and"),
        (torch.ones(2), torch.ones(2).double(), ": Tensor of float32 and shape (2,) in the first, Tensor of float64"),
        (torch.ones(2), np.ones(2, np.float32), ": Tensor of float32 and shape (2,) in the first, ndarray of"),
        (0.0, -0.0, ": 0.0 in the first, -0.0 in the second"),
        (1, True, ": 1 in the first, True in the second"),
        (1, 1.0, ": 1 in the first, 1.0 in the second"),
        ({1, 2}, {2, 3}, ": {1, 2} in the first, {2, 3} in the second"),
        ([1, 2], (1, 2), ": list in the first, tuple in the second"),
        ({"a": 1}, collections.Counter({"a": 1}), ": dict in the first, Counter in the second"),
        ([1, [2]], [1, [2, [3]]], ".1.1: nothing in the first, list in the second"),
        ({"a": None}, {}, ".a: None in the first, nothing in the second"),
        ({"a": [5, {7: "x"}]}, {"b": 1, "a": [5, {7: "y"}]}, ".a.1.7: 'x' in the first, 'y' in the second"),
        (
            with_attribute(collections.OrderedDict(a=1), "x"),
            with_attribute(collections.OrderedDict(a=1), "y"),
            ".attribute: 'x' in the first, 'y' in the second",
        ),
    ],
)
def test_the_first_entry_that_differs_is_named(first: object, second: object, said: str, tmp_path: Path) -> None:
    """By its path, with both values, or with the number of elements that differ and the largest difference."""
    assert difference(tmp_path, first, second).startswith(f"value{said}")


def test_the_same_values_are_the_same_whoever_saved_them(tmp_path: Path) -> None:
    """To the last bit, NaN as well; the order of keys, the layout in memory and the summary do not count."""
    one, other = tmp_path / "one", tmp_path / "other"
    save(one, parts())
    turned = parts(numbers=[1, -0.0, math.nan], set={"a", 3})
    turned["model"]["layers.0.weight"] = turned["model"]["layers.0.weight"].t().contiguous().t()
    save(other, dict(reversed(turned.items())), summary={"run": "another"})
    assert compare(one, other) is None


def test_entries_that_may_differ_are_left_out_with_all_in_them(tmp_path: Path) -> None:
    """By their paths or by patterns of paths, several or one; an entry that one of the two lacks, too."""
    one, other = tmp_path / "one", tmp_path / "other"
    save(one, parts(clock={"seconds": 1.0, "epoch": 1}, seconds=[1.0], ranks=[1]))
    save(other, parts(clock={"seconds": 2.0, "epoch": 1}, seconds=[2.0]))
    assert compare(one, other) == Difference("last.clock.seconds", "1.0 in the first, 2.0 in the second")
    assert compare(one, other, "*seconds") == Difference("last.ranks", "list in the first, nothing in the second")
    assert compare(one, other, ["last.clock", "last.seconds", "last.rank?"]) is None
    assert compare(one, other, ["clock", "seconds", "ranks"]) is not None


def test_a_folder_stands_for_its_newest_checkpoint(tmp_path: Path) -> None:
    """The newest one that can be read; a warning names those that cannot."""
    for step in (1, 2, 3):
        save(tmp_path / "run" / f"step_{step}", {"step": step})
    save(tmp_path / "alone", {"step": 3})
    assert compare(tmp_path / "run", tmp_path / "alone") is None
    flip(tmp_path / "run" / "step_3" / "state.json")
    with pytest.warns(UserWarning, match="Skipping the checkpoint .*step_3"):
        assert str(compare(tmp_path / "run", tmp_path / "alone")) == "step: 2 in the first, 3 in the second"
    with pytest.raises(CheckpointError, match="damaged"):
        compare(tmp_path / "run" / "step_3", tmp_path / "alone")


def test_where_no_checkpoint_is_an_error_says_so(tmp_path: Path) -> None:
    """A path of nothing, an empty folder and a file are told apart."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, found in (("none", "where nothing is"), ("empty", "a folder without one"), ("file", "a file")):
        with pytest.raises(CheckpointNotFoundError, match=rf"There is no checkpoint.*\n.*{name}, {found}"):
            compare(tmp_path / name, tmp_path)


def test_the_command_line_says_whether_they_are_the_same(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit status of `diff`: 0 if they are the same, 1 if they differ, and 2 for an error, without a trace."""
    for name, rate in (("one", 0.1), ("other", 0.2)):
        save(tmp_path / name, {"model": torch.ones(2), "lr": rate, "seconds": rate})
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    for arguments, status, printed in (
        ([one, one], 0, "The same: 3 entries\n"),
        ([one, other], 1, "lr: 0.1 in the first, 0.2 in the second\n"),
        ([one, other, "--ignore", "lr", "--ignore", "sec*"], 0, "The same: 1 entries\n"),
    ):
        assert (main(arguments), capsys.readouterr().out) == (status, printed)
    shutil.rmtree(other)
    launched = launch("import runpy; runpy.run_module('pa_checkpoint', run_name='__main__')", one, other)
    expected = f"There is no checkpoint.\n  given:    {other}, where nothing is\n  do:       Check the path.\n"
    assert (launched.status, launched.output) == (2, expected)


def test_what_follows_clock_and_processes_is_known_of_training_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock is left out unless `--clock` asks for it, and `--any-processes` leaves out both, but no other entry."""

    def state(seconds: float, processes: int, value: float) -> dict[str, Any]:
        metrics = {name: {"value": [value], "seconds": [seconds]} for name in ("loss", "seconds")}
        return {
            "model": {"seconds": 1, "ranks": 1},
            "history": {"clock": {"seconds": seconds}, "metrics": metrics},
            "run": {"position": {"steps": processes}, "settings": {"num_processes": processes}},
            "ranks": [1] * processes,
        }

    one, other, worse = (str(tmp_path / name) for name in ("one", "other", "worse"))
    for path, processes, value in ((one, 1, 0.5), (other, 2, 0.5), (worse, 2, 0.75)):
        save(path, state(processes / 2, processes, value))
    later = str(tmp_path / "later")
    save(later, state(99.0, 1, 0.5))
    assert main([one, later]) == 0, "the clock says nothing of what two runs have computed"
    assert main([one, later, "--clock"]) == 1
    assert main([one, other]) == 1, "the number of processes does"
    assert main([one, other, "--any-processes", "--clock"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("history.clock.seconds: 0.5 in the first, 99.0")
    assert main([one, other, "--any-processes"]) == 0
    assert main([one, worse, "--any-processes", "--ignore", "*loss*"]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("history.metrics.seconds.value.0: 0.5 in the first")
