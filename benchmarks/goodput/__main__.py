"""Measures how much of its throughput a run keeps that is killed every 15 seconds and started again at once.

`python -m benchmarks.goodput` measures all variants and prints the tables of `docs/maintainers/cost.md`; `--write`
writes them into it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.goodput.report import FIGURES, VARIANTS, Measured, as_page
from benchmarks.goodput.runs import disturb, rate_of, train_undisturbed
from benchmarks.processes import ROOT

SECONDS_FOR_THE_RATE = 15.0
SECONDS_TO_LISTEN = 2.0
MOST_IN_USE = 0.1


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goodput", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="about how often each run is killed")
    parser.add_argument("--every", type=float, default=15.0, help="seconds from one kill to the next")
    parser.add_argument("--write", action="store_true", help=f"write the tables to {FIGURES.relative_to(ROOT)}")
    arguments = parser.parse_args()
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for task in dict.fromkeys(variant.task for variant in VARIANTS):
            measured += measure(task, Path(folder), arguments.kills, arguments.every)
    page = as_page(measured, arguments.every)
    print(page)
    if not all(one.is_identical for one in measured):
        raise SystemExit("A run that was killed did not end bit for bit as the one that nothing disturbed.")
    in_use = max(one.in_use for one in measured)
    if arguments.write and in_use > MOST_IN_USE:
        raise SystemExit(f"Not written: other programs used {in_use:.0%} of the cores, which changes all figures.")
    if arguments.write:
        FIGURES.write_text(page)


def measure(task: str, folder: Path, kills: int, every: float) -> list[Measured]:
    """Run the variants of a task, and compare each with a run that nothing disturbs."""
    in_use = busy_share(SECONDS_TO_LISTEN)
    rate = rate_of(folder / "rate", [task], SECONDS_FOR_THE_RATE)
    updates = f"--updates={round(rate * 0.8 * every * kills)}"
    reference = train_undisturbed(folder / "undisturbed", [task, updates])
    measured: list[Measured] = []
    for variant in VARIANTS:
        if variant.task == task:
            in_use = max(in_use, busy_share(SECONDS_TO_LISTEN))
            run = disturb(folder / "disturbed", [task, updates, *variant.arguments], every, variant.starter)
            measured.append(Measured(variant, reference, run, in_use))
            print(measured[-1].describe(), flush=True)
            shutil.rmtree(folder / "disturbed")
    for name in ("rate", "undisturbed"):
        shutil.rmtree(folder / name)
    return measured


def busy_share(seconds: float) -> float:
    """Return the share of all cores that is in use, by the figures of Linux, while this process waits."""
    busy, passed = _used()
    time.sleep(seconds)
    busy_later, passed_later = _used()
    return (busy_later - busy) / (passed_later - passed)


def _used() -> tuple[float, float]:
    """Seconds of all cores that were used, and all that there were, since the machine was started."""
    numbers = [int(number) for number in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, low_priority, system = numbers[:3]
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + low_priority + system) / ticks, sum(numbers[:8]) / ticks


if __name__ == "__main__":
    main()
