"""Measures everything that `docs/maintainers/cost.md` shows, or `docs/maintainers/gpu.md`, and prints the table.

`python -m benchmarks` runs all comparisons on the CPU, `python -m benchmarks "epoch"` those with this word in their
name. In each round the variants take turns in fresh processes, in another order than in the round before, and are
compared with the reference of the same round: a machine that slows down slows all of them. A comparison that fails, or
has no time left, is a row of the table, and the rest is measured. What is known so far is on the disk at any moment.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from benchmarks.comparisons import COMPARISONS, Comparison
from benchmarks.processes import Figures, measure
from benchmarks.report import HEADER, TABLES, Row, as_page, failed, heading, peers_of, rows

__all__ = ["main"]

PEERS: Mapping[str, str] = {
    "pytorch_accelerated": "pytorch-accelerated",
    "lightning": "lightning",
    "fabric": "lightning",
    "ignite": "pytorch-ignite",
    "transformers": "transformers",
    "torchtnt": "torchtnt",
}
"""The distributions of other trainers, by the names of their files in `loops`."""


def main(command_line: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; the status is 1 if something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("words", nargs="*", help="measure what has one of these words in its name; by default all")
    parser.add_argument("--device", choices=list(TABLES), default="cpu", help="what computes")
    parser.add_argument("--rounds", type=int, default=5, help="how often each variant has its turn, at least once")
    parser.add_argument("--seconds", type=float, default=24 * 3600.0, help="the time for everything")
    parser.add_argument("--dry-run", action="store_true", help="take the smallest sizes, on any machine")
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks"), help="the folder of all figures")
    parser.add_argument("--write", action="store_true", help="write the table of the page in docs/maintainers too")
    parser.add_argument("--peers", action="store_true", help=f"measure {', '.join(PEERS)} too, with $PEERS_PYTHON")
    options = parser.parse_args(command_line)
    page = TABLES[options.device]
    before = page.read_text() if options.write and options.words else ""
    if before and not before.startswith(heading(options.device)):
        parser.error(
            "the table is of another machine or of other versions than this, so that no part of it can be written:\n"
            f"{before.splitlines()[0]}\n{heading(options.device)}\nLeave the words out to measure all of it"
        )
    python = os.environ.get("PEERS_PYTHON", "")
    if options.peers and not Path(python).is_file():
        parser.error(f"no interpreter at PEERS_PYTHON={python!r}: nox -s peer_libraries installs the other trainers")
    versions = versions_of_peers(python) if options.peers else peers_of(before)
    if before and peers_of(before) not in {"", versions}:
        parser.error(f"the table is of other trainers than these: {peers_of(before)}\n{versions}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: each variant needs at least one turn")
    of_device = [comparison for comparison in COMPARISONS if comparison.device == options.device]
    chosen = [
        comparison
        for comparison in of_device
        if not options.words or any(word in comparison.name for word in options.words)
    ]
    if not chosen:
        names = "\n  ".join(comparison.name for comparison in of_device)
        parser.error(f"none of {options.words} is in the name of a comparison. There are:\n  {names}")
    if options.device == "cuda" and not options.dry_run and not has_cuda():
        parser.error("there is no CUDA device here. --dry-run tries everything out with the smallest sizes")
    peers = dict.fromkeys(PEERS, python) if options.peers else dict[str, str]()
    measuring = Measuring(options.rounds, peers, options.dry_run, time.monotonic() + options.seconds)
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    print_row(HEADER)
    for _, group in groupby(chosen, Comparison.processes):
        measuring.measure(list(group))
        written = as_page(options.device, measuring.measured, before, versions)
        (folder / f"{options.device}.md").write_text(written, "utf-8")
        (folder / f"{options.device}.json").write_text(json.dumps(measuring.figures, indent=1) + "\n", "utf-8")
        if options.write:
            page.write_text(written)
    return 1 if any(row.has_failed for _, of_comparison in measuring.measured.values() for row in of_comparison) else 0


def has_cuda() -> bool:
    """Whether there is a CUDA device."""
    import torch  # for which others do not wait

    return torch.cuda.is_available()


def versions_of_peers(python: str) -> str:
    """The versions of the other trainers that an interpreter has."""
    names = list(dict.fromkeys(PEERS.values()))
    program = f"from importlib.metadata import version\nprint(', '.join(f'{{n}} {{version(n)}}' for n in {names}))"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Measuring:
    """Measures comparisons, and keeps what is known.

    Attributes:
        rounds: How often each variant has its turn, unless a comparison says otherwise.
        peers: The interpreters of other trainers.
        is_dry: Whether the smallest sizes are enough.
        end: When no time is left.
        measured: By the name of a comparison, the number of rounds, and the rows.
        figures: By the name of a comparison, the figures of each round.
    """

    rounds: int
    peers: dict[str, str]
    is_dry: bool
    end: float
    measured: dict[str, tuple[int, list[Row]]] = field(default_factory=dict[str, tuple[int, list[Row]]])
    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict[str, list[dict[str, float]]])

    def measure(self, group: list[Comparison]) -> None:
        """Measure what the same processes measure, and print it."""
        rounds = min(self.rounds, group[0].rounds or self.rounds)
        try:
            found = [self._run_round(group[0], number) for number in range(rounds)]
        except RuntimeError as error:
            print(error, file=sys.stderr)
            of_group = {comparison.name: failed(comparison, error) for comparison in group}
        else:
            self.figures |= {
                comparison.name: [of_round[comparison.figure] for of_round in found] for comparison in group
            }
            of_group = {comparison.name: rows(comparison, self.figures[comparison.name]) for comparison in group}
        for name, of_comparison in of_group.items():
            self.measured[name] = rounds, of_comparison
            for row in of_comparison:
                print_row(row.cells, row.verdict)

    def _run_round(self, comparison: Comparison, number: int) -> Figures:
        """Measure each variant once; which of them begins changes from round to round."""
        if not comparison.separately:
            return self._run(comparison)
        peers = self.peers if comparison.with_peers else {}
        pythons = dict.fromkeys(comparison.variants, sys.executable) | peers
        order = list(pythons)
        order = order[number % len(order) :] + order[: number % len(order)]
        figures: Figures = {}
        for variant in order:
            for figure, of_variant in self._run(comparison, variant, pythons[variant]).items():
                figures.setdefault(figure, {}).update(of_variant)
        return figures

    def _run(self, comparison: Comparison, variant: str | None = None, python: str = sys.executable) -> Figures:
        left = self.end - time.monotonic()
        if left <= 0:
            raise RuntimeError("no time was left")
        return measure(comparison, variant, python, is_dry=self.is_dry, seconds=left)


def print_row(cells: tuple[str, ...], verdict: str = "") -> None:
    """Print one line of the table as soon as it is known."""
    widths = (54, 20, 13, 22, 10, 22, 9)
    print(" ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + verdict, flush=True)


if __name__ == "__main__":
    sys.exit(main())
