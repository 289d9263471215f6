"""Measures everything that `docs/maintainers/cost.md` shows, and prints the table.

`python -m benchmarks` runs all comparisons, `python -m benchmarks "epoch"` those with this word in their
name. In each round the variants take turns in fresh processes, in another order than in the round before, and are
compared with the reference of the same round: a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.comparisons import COMPARISONS, Comparison
from benchmarks.page import TABLE, as_page, heading
from benchmarks.processes import ROOT, measure
from benchmarks.report import HEADER, Row, rows

PEERS: tuple[str, ...] = ("pytorch_accelerated", "lightning", "ignite", "transformers")
"""Other trainers, by the names of their files in `loops`."""


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("words", nargs="*", help="measure what has one of these words in its name; by default all")
    parser.add_argument("--rounds", type=int, default=5, help="how often each variant has its turn, at least once")
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.relative_to(ROOT)}")
    parser.add_argument("--peers", action="store_true", help=f"measure {', '.join(PEERS)} too, with $PEERS_PYTHON")
    arguments = parser.parse_args()
    before = TABLE.read_text() if arguments.write and arguments.words else ""
    if before and not before.startswith(heading()):
        parser.error(
            "the table is of another machine or of other versions than this, so that no part of it can be written:\n"
            f"{before.splitlines()[0]}\n{heading()}\nLeave the words out to measure all of it"
        )
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: each variant needs at least one turn")
    python = os.environ.get("PEERS_PYTHON", "")
    if arguments.peers and not Path(python).is_file():
        parser.error(f"no interpreter at PEERS_PYTHON={python!r}: nox -s peer_libraries installs the other trainers")
    chosen = [one for one in COMPARISONS if not arguments.words or any(word in one.name for word in arguments.words)]
    if not chosen:
        names = "\n  ".join(one.name for one in COMPARISONS)
        parser.error(f"none of {arguments.words} is in the name of a comparison. There are:\n  {names}")
    peers = dict.fromkeys(PEERS, python) if arguments.peers else {}
    measured: dict[str, tuple[int, list[Row]]] = {}
    print_row(HEADER)
    for comparison in chosen:
        rounds = min(arguments.rounds, comparison.rounds or arguments.rounds)
        of_comparison = rows(comparison, [run_round(comparison, peers, number) for number in range(rounds)])
        measured[comparison.name] = rounds, of_comparison
        for row in of_comparison:
            print_row(row.cells, "" if row.keeps_promise is None else ("kept" if row.keeps_promise else "MISSED"))
        if arguments.write:
            TABLE.write_text(as_page(measured, before))


def run_round(comparison: Comparison, peers: dict[str, str], number: int) -> dict[str, float]:
    """Measure each variant once; which of them begins changes from round to round."""
    if comparison.in_one_process:
        return measure(comparison, None)
    pythons = dict.fromkeys(comparison.variants, sys.executable) | (peers if comparison.with_peers else {})
    order = list(pythons)
    order = order[number % len(order) :] + order[: number % len(order)]
    figures: dict[str, float] = {}
    for variant in order:
        figures |= measure(comparison, variant, pythons[variant])
    return figures


def print_row(cells: tuple[str, ...], verdict: str = "") -> None:
    """Print one line of the table as soon as it is known."""
    widths = (54, 20, 13, 22, 10, 22, 9)
    print("".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + verdict, flush=True)


if __name__ == "__main__":
    main()
