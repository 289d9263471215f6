"""Two commits are compared: what has grown is found, and noise is not mistaken for it."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from benchmarks import regressions
from benchmarks.regressions import ROWS, Change, compare, report
from benchmarks.ten_rows import MEASURED

Factor = Callable[[str, str, str], float]


class Measuring:
    """Returns figures of 100, times a factor, and notes which rows it has measured by time."""

    def __init__(self, factor: Factor) -> None:
        self.factor = factor
        self.timed: list[str] = []

    def __call__(self, side: str, figure: str, rows: Sequence[str]) -> dict[str, float]:
        """As a process that measures rows of a side."""
        self.timed += rows if figure == "time" else []
        return {row: 100 * self.factor(side, figure, row) for row in rows}


def grown(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """The rows and figures that have grown."""
    return [(change.row, change.figure) for change in changes if change.is_regression]


@pytest.mark.parametrize("figure", ["time", "calls"])
@pytest.mark.parametrize("row", ROWS)
def test_what_has_grown_by_a_tenth_is_found(row: str, figure: str) -> None:
    """It alone, in each row; it is measured twice, and the report says how to find out why."""

    def factor(side: str, of_figure: str, of_row: str) -> float:
        if side == "before":
            return 1
        return 1.1 if (of_figure, of_row) == (figure, row) else 1.04

    measuring = Measuring(factor)
    changes = compare(measuring, ROWS, rounds=2)
    assert grown(changes) == [(row, figure)]
    assert {one: measuring.timed.count(one) for one in ROWS} == {one: 12 if one == row else 4 for one in ROWS}
    written = report(changes, "1a2b3c4")
    assert written.count("REGRESSION") == 1
    assert f"-m benchmarks.ten_rows time {row}\n" in written


def test_a_busy_machine_is_no_regression() -> None:
    """What was slow in the first measurement alone has not grown, nor what was slow in some rounds."""
    measured: list[str] = []

    def factor(side: str, figure: str, row: str) -> float:
        if (side, figure) != ("now", "time"):
            return 1
        measured.append(row)
        number = measured.count(row)
        return 2 if (row == "step" and number <= 3) or (row == "edge" and number > 1) else 1

    changes = compare(Measuring(factor), ROWS, rounds=3)
    assert grown(changes) == []
    assert measured.count("step") == 9
    assert {change.ratio for change in changes} == {1.0}


def test_a_row_that_fails_now_is_a_regression() -> None:
    """A row that failed with the sources of before has nothing to compare with."""
    failing = {("now", "load"), ("before", "save")}
    changes = compare(Measuring(lambda side, _, row: math.nan if (side, row) in failing else 1), ROWS, rounds=1)
    assert grown(changes) == [("load", "time"), ("load", "calls")]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A repository with a package of two commits, in which the function that is returned runs git."""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    source = tmp_path / "packages" / "one" / "src" / "one.py"
    source.parent.mkdir(parents=True)
    git("init", "--quiet")
    for number in range(2):
        source.write_text(f"NUMBER = {number}\n")
        git("add", "packages")
        git("commit", "--quiet", "--message", f"Commit {number}")
    monkeypatch.setattr(regressions, "ROOT", tmp_path)
    return git


@pytest.mark.parametrize(("slower", "status"), [(1.0, 0), (1.1, 1)])
def test_sources_of_both_commits_are_measured(
    repository: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slower: float,
    status: int,
) -> None:
    """Those of before are in a folder that is removed; the status says whether anything has grown."""

    def figures_of(folders: dict[str, Path], side: str, _figure: str, rows: Sequence[str]) -> dict[str, float]:
        source = folders[side] / "packages" / "one" / "src" / "one.py"
        is_now = source.read_text() == "NUMBER = 1\n"
        assert is_now == (side == "now")
        return dict.fromkeys(rows, slower if is_now else 1.0)

    monkeypatch.setattr(regressions, "figures_of", figures_of)
    assert regressions.main(["--rounds", "1"]) == status
    assert f"{slower:.2f}" in capsys.readouterr().out
    assert len(repository("worktree", "list").splitlines()) == 1


def test_equal_sources_are_not_measured(
    repository: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A commit that changes only pages takes no time."""
    repository("commit", "--quiet", "--allow-empty", "--message", "Commit 2")
    monkeypatch.delattr(regressions, "figures_of")
    assert regressions.main([]) == 0
    assert "nothing to measure" in capsys.readouterr().out


def test_each_row_is_measured() -> None:
    """Numbers of calls, with which every row can be told to work, are the same each time."""
    assert set(MEASURED) == set(ROWS)
    of_sample = partial(MEASURED["sample"], "calls")
    assert 1 < of_sample() == of_sample() < 100
