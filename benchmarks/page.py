"""The table on the page about costs, which can be written as a whole or in parts, also on several days."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import groupby
from pathlib import Path

from benchmarks.comparisons import COMPARISONS
from benchmarks.processes import ROOT
from benchmarks.report import HEADER, Row

__all__ = ["TABLE", "as_page", "heading", "machine"]

COLUMNS = (*HEADER, "rounds, day")

TABLE = ROOT / "docs" / "maintainers" / "cost-figures.md"


def heading() -> str:
    """Where and with what the figures of a table were measured: those of another machine do not belong into it."""
    return f"Measured on {machine()}; medians. This table is written by `nox -s benchmark -- --write`."


def machine() -> str:
    """What computes, and with which versions."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "accelerate"))
    return f"{_processor()}, one thread a process, Python {platform.python_version()}, {versions}"


def as_page(measured: Mapping[str, tuple[int, Sequence[Row]]], before: str = "") -> str:
    """The table in Markdown.

    Args:
        measured: By the name of the comparison, how often each variant had its turn, and the rows.
        before: The page with the rows of other comparisons, which are kept.
    """
    lines = [line for line in before.splitlines() if line.startswith("| ")][1:]
    of_comparison = {name: list(rows) for name, rows in groupby(lines, lambda line: line.split(" | ")[0][2:])}
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    for name, (rounds, rows_of_comparison) in measured.items():
        of_comparison[name] = [f"| {' | '.join((*row.cells, f'{rounds}, {today}'))} |" for row in rows_of_comparison]
    ordered = [line for one in COMPARISONS for line in of_comparison.get(one.name, ())]
    return "\n".join([heading(), "", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *ordered]) + "\n"


def _processor() -> str:
    """What computes, as Linux names it, and how many cores of it there are."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.machine()
