"""The table on the page about costs, which can be written as a whole or in parts."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from importlib import metadata
from itertools import groupby
from pathlib import Path

from tests.benchmarks.comparisons import COMPARISONS
from tests.benchmarks.processes import ROOT
from tests.benchmarks.report import HEADER, Row

__all__ = ["TABLE", "as_page", "heading"]

TABLE = ROOT / "docs" / "maintainers" / "cost-figures.md"


def heading(rounds: int) -> str:
    """Where and when the figures of a table were measured: those of another day or machine do not belong into it."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "accelerate"))
    return (
        f"Measured on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}: {_processor()}, one thread a process, Python "
        f"{platform.python_version()}, {versions}; medians of {rounds} rounds. This table is written by "
        "`nox -s benchmark -- --write`."
    )


def as_page(measured: Sequence[Row], rounds: int, before: str = "") -> str:
    """The table in Markdown.

    Args:
        measured: The rows that were measured.
        rounds: How often each variant had its turn.
        before: The page with the rows of other comparisons, which are kept.
    """
    lines = [line for line in before.splitlines() if line.startswith("| ")][1:]
    lines += [f"| {' | '.join(row.cells)} |" for row in measured]
    of_comparison = {name: list(rows) for name, rows in groupby(lines, lambda line: line.split(" | ")[0][2:])}
    ordered = [line for one in COMPARISONS for line in of_comparison.get(one.name, ())]
    return "\n".join([heading(rounds), "", f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}", *ordered]) + "\n"


def _processor() -> str:
    """What computes, as Linux names it, and how many cores of it there are."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()
