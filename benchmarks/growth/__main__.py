"""Measures how costs grow with the size of a run.

`python -m benchmarks.growth` measures all of it in about a quarter of an hour, and `python -m benchmarks.growth steps`
one thing. With `--write`, the figures go to `docs/pictures/growth.json`, of which `python -m docs.pictures` draws.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.comparisons import Comparison
from benchmarks.growth.network import delayed_network, has_networks, run_on
from benchmarks.processes import ROOT, Figures, measure
from benchmarks.report import machine

__all__ = ["FIGURES", "main"]

FIGURES = ROOT / "docs" / "pictures" / "growth.json"
DELAYS = (0, 1, 10)
"""Milliseconds that a packet takes from one machine to another."""
SECONDS = 600.0


@dataclass(frozen=True)
class Growth:
    """What grows, and how it is measured.

    Attributes:
        sizes: From the smallest to the largest.
        rounds: How often each variant has its turn.
        is_ratio: Whether ours is compared with the loop by hand, or each variant is a curve.
    """

    sizes: tuple[int, ...]
    rounds: int
    is_ratio: bool = True


GROWTHS: Mapping[str, Growth] = {
    "processes": Growth((1, 2, 4), 5),
    "parameters": Growth((10_000, 100_000, 1_000_000, 10_000_000, 100_000_000), 5),
    "samples": Growth((10_000, 100_000, 1_000_000, 10_000_000, 100_000_000), 9, is_ratio=False),
    "callbacks": Growth((0, 1, 10, 100, 1_000), 5, is_ratio=False),
    "steps": Growth((10, 100, 1_000, 10_000), 5),
}


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("what", nargs="*", help=f"by default all: {', '.join(GROWTHS)}")
    parser.add_argument("--rounds", type=int, help="how often each variant has its turn")
    parser.add_argument("--dry-run", action="store_true", help="take the two smallest sizes, and one round")
    parser.add_argument("--output", type=Path, default=Path("outputs/growth.json"), help="the file of the figures")
    parser.add_argument("--write", action="store_true", help=f"write the figures to {FIGURES.relative_to(ROOT)} too")
    options = parser.parse_args(command_line)
    if unknown := {*options.what} - {*GROWTHS}:
        parser.error(f"nothing is measured by the name of {', '.join(sorted(unknown))}: there are {', '.join(GROWTHS)}")
    measured: dict[str, Any] = {}
    for what in options.what or GROWTHS:
        growth = GROWTHS[what]
        if options.dry_run:
            growth = Growth(growth.sizes[:2], 1, growth.is_ratio)
        rounds = options.rounds or growth.rounds
        curves = (curves_of_delays if what == "processes" else partial(curves_of, what))(
            growth, rounds, is_dry=options.dry_run
        )
        today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
        measured[what] = {"on": machine("cpu"), "day": today, "rounds": rounds, "curves": curves}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write(options.output, measured)
    if options.write:
        write(FIGURES, measured)


def write(path: Path, measured: Mapping[str, Any]) -> None:
    """Write the figures; those that were not measured again stay."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    together = {**kept, **measured}
    path.write_text(json.dumps({what: together[what] for what in GROWTHS if what in together}, indent=1) + "\n")


def curves_of(what: str, growth: Growth, rounds: int, *, is_dry: bool) -> dict[str, list[dict[str, Any]]]:
    """Measure each size in a fresh process."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for size in growth.sizes:
        command = f"growth.points {what} {size} {rounds}"
        figures = measure(Comparison(what, command), is_dry=is_dry, seconds=SECONDS)
        for name, point in points_of(growth, what, size, figures).items():
            curves.setdefault(name, []).append(point)
    return curves


def curves_of_delays(growth: Growth, rounds: int, *, is_dry: bool) -> dict[str, list[dict[str, Any]]]:
    """Measure each number of processes with each delay of their network; a single one has none."""
    if not has_networks():
        raise SystemExit(
            "Network namespaces with devices of their own are needed: as root, on Linux, with /dev/net/tun."
        )
    curves: dict[str, list[dict[str, Any]]] = {}
    alone = curves_of("processes", Growth((1,), rounds), rounds, is_dry=is_dry)
    for delay in DELAYS[:2] if is_dry else DELAYS:
        name, what = f"{delay} ms", f"processes, {delay} ms"
        curves[name] = list(alone["ours over by hand"])
        for size in growth.sizes[1:]:
            with delayed_network(size, delay / 1e3) as namespaces:
                comparison = Comparison(what, f"growth.points processes {delay} {rounds}")
                figures = run_on(namespaces, comparison, is_dry=is_dry, seconds=SECONDS)
            curves[name] += points_of(growth, what, size, figures).values()
    return curves


def points_of(growth: Growth, what: str, size: int, rounds: Figures) -> dict[str, dict[str, Any]]:
    """Summarise the rounds of one size: a point of each curve."""
    variants = {name: [of_round[name] for of_round in rounds.values()] for name in sorted(rounds["0"])}
    compared = variants
    if growth.is_ratio:
        ratios = [of_round["ours"] / of_round["by_hand"] for of_round in rounds.values()]
        compared = {"ours over by hand": ratios}
    medians = {name: round(statistics.median(taken), 4) for name, taken in variants.items()}
    points: dict[str, dict[str, Any]] = {}
    for name, taken in compared.items():
        summary = {"median": statistics.median(taken), "least": min(taken), "most": max(taken)}
        points[name] = {"size": size, **{of: round(figure, 4) for of, figure in summary.items()}}
        if growth.is_ratio:
            points[name] |= {"medians": medians}
        print(f"{what:24} {size:>11,} {name:18} {summary['median']:10.3f}", end="", flush=True)
        print(f"  ({summary['least']:.3f} to {summary['most']:.3f})  {medians if growth.is_ratio else ''}", flush=True)
    return points


if __name__ == "__main__":
    main()
