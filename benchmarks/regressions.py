"""Compares the sources of this folder with those of another commit, and fails if training has become slower.

`python -m benchmarks.regressions COMMIT` measures ten parts of a training script with both: their processor time, and
the number of functions that they call. The two take turns in new processes, in the same environment. A time is the
least of all rounds. What has grown by more than 5 % is measured a second time, in twice as many rounds, and is a
regression if it has grown in both measurements.
"""

from __future__ import annotations

import argparse
import compileall
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from benchmarks.comparisons import Comparison
from benchmarks.processes import ROOT, measure

__all__ = ["LIMIT", "ROWS", "Change", "checked_out", "compare", "figures_of", "main", "report"]

LIMIT = 1.05
SIDES = ("before", "now")


class Row(NamedTuple):
    """A part of a training script.

    Attributes:
        title: What the table calls it.
        group: Rows of the same group are measured in the same process.
        ranks: How many processes train together; None for a single one without torchrun.
    """

    title: str
    group: str = "training"
    ranks: int | None = None


ROWS = {
    "import": Row("importing pa_core, after torch", "start"),
    "first_trainer": Row("the first trainer", "start"),
    "step": Row("a step, default callbacks"),
    "step_of_two": Row("a step, two processes", "two processes", 2),
    "own_loop": Row("a step, a loop of your own"),
    "trial_step": Row("a step of a trial"),
    "edge": Row("the epoch boundary"),
    "sample": Row("a sample of a Python dataset"),
    "save": Row("saving a state of 32 MB"),
    "load": Row("loading a state of 32 MB"),
}
"""By the names that `benchmarks.ten_rows` has for them."""

Measure: TypeAlias = Callable[[str, str, Sequence[str]], dict[str, float]]
"""Called with a side, `time` or `calls`, and rows; returns a figure for each row, NaN if the row failed."""


@dataclass(frozen=True)
class Change:
    """A figure of a row on both sides; NaN where it could not be measured."""

    row: str
    figure: str
    before: float
    now: float

    @property
    def ratio(self) -> float:
        """The figure now, divided by that before; infinity if the row fails now."""
        return math.inf if math.isnan(self.now) else self.now / self.before

    @property
    def is_regression(self) -> bool:
        """Whether the figure has grown beyond the limit; a row that failed before has nothing to compare with."""
        return self.ratio > LIMIT


def compare(measure_rows: Measure, rows: Iterable[str], rounds: int) -> list[Change]:
    """Return how each figure of each row has changed, after a second measurement of what seems to have grown."""
    changes = {(change.row, change.figure): change for change in _measured(measure_rows, list(rows), rounds)}
    grown = {change.row: change for change in changes.values() if change.is_regression}
    if grown:
        print(f"Measuring again what seems to have grown: {', '.join(grown)}", flush=True)
    for again in _measured(measure_rows, list(grown), 2 * rounds):
        first = changes[again.row, again.figure]
        if first.is_regression and not again.ratio > first.ratio:
            changes[again.row, again.figure] = again
    return list(changes.values())


def _measured(measure_rows: Measure, rows: Sequence[str], rounds: int) -> list[Change]:
    """Measure both sides in turn; calls are the same each time, so that once is enough."""
    groups = dict.fromkeys(ROWS[row].group for row in rows)
    found: dict[tuple[str, str, str], list[float]] = {}
    for figure, number in [("calls", 0), *(("time", number) for number in range(rounds))]:
        for group in groups:
            of_group = [row for row in rows if ROWS[row].group == group]
            for side in SIDES[:: 1 if number % 2 == 0 else -1]:
                for row, value in measure_rows(side, figure, of_group).items():
                    found.setdefault((row, figure, side), []).append(value)
    least = {
        key: min((one for one in values if not math.isnan(one)), default=math.nan) for key, values in found.items()
    }
    return [
        Change(row, figure, *(least[row, figure, side] for side in SIDES))
        for row in rows
        for figure in ("time", "calls")
    ]


def figures_of(folders: dict[str, Path], side: str, figure: str, rows: Sequence[str]) -> dict[str, float]:
    """Measure rows of the same group with the sources below the folder of a side, in new processes."""
    sources = os.pathsep.join(str(path) for path in sorted(folders[side].glob("packages/*/src")))
    command = f"ten_rows {figure} {' '.join(rows)}"
    env = {"PYTHONPATH": sources, "PYTHONHASHSEED": "0"}
    return measure(Comparison(figure, command, ranks=ROWS[rows[0]].ranks, env=env))[figure]


@contextmanager
def checked_out(commit: str) -> Generator[Path]:
    """Within the context, the files of a commit are in a folder."""
    kept = ROOT / ".nox"
    kept.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="regressions-", dir=kept) as parent:
        folder = Path(parent, "before")
        _git("worktree", "prune")
        _git("worktree", "add", "--quiet", "--detach", str(folder), commit)
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def report(changes: Sequence[Change], commit: str) -> str:
    """Lay out the table, and below it what has grown and how to find out why."""
    lines = [f"{'measured':34}{'':20}{'before':>12}{'now':>12}{'ratio':>8}"]
    for change in changes:
        kind = "processor time, us" if change.figure == "time" else "function calls"
        before, now = (f"{value:,.1f}" for value in (change.before, change.now))
        verdict = "  REGRESSION" if change.is_regression else ""
        lines.append(f"{ROWS[change.row].title:34}{kind:20}{before:>12}{now:>12}{change.ratio:8.2f}{verdict}")
    grown = dict.fromkeys(change.row for change in changes if change.is_regression)
    if not grown:
        return "\n".join([*lines, f"Nothing has grown by more than {LIMIT - 1:.0%} since {commit}."])
    return "\n".join(
        [
            *lines,
            f"{len(grown)} of {len(ROWS)} rows failed, or have grown by more than {LIMIT - 1:.0%} since {commit}.",
            "To see where the time is spent, run for example, here and with the packages of that commit,",
            *(f"  python -m cProfile -s tottime -m benchmarks.ten_rows time {row}" for row in grown),
            f"To measure these rows again: python -m benchmarks.regressions {commit} --rows {' '.join(grown)}",
        ]
    )


def main(command_line: Sequence[str] | None = None) -> int:
    """Compare, and print the table; the status is 1 if there is a regression."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regressions", description=__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD~1", help="what to compare with (default: HEAD~1)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each commit has its turn (default: 3)")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), help="what to measure")
    options = parser.parse_args(command_line)
    commit = _git("rev-parse", "--short", f"{options.commit}^{{commit}}")
    if not _git("diff", "--name-only", commit, "--", ":(glob)packages/*/src/**"):
        print(f"The packages have the same sources as in {commit}: there is nothing to measure.")
        return 0
    with checked_out(commit) as before:
        folders = {"before": before, "now": ROOT}
        for folder in folders.values():
            for sources in folder.glob("packages/*/src"):
                compileall.compile_dir(sources, quiet=2)  # nobody pays for it in the first round
        changes = compare(partial(figures_of, folders), options.rows, options.rounds)
    print(report(changes, commit))
    return 1 if any(change.is_regression for change in changes) else 0


if __name__ == "__main__":
    sys.exit(main())
