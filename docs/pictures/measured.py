"""The figures on the pages about cost, which pictures show and do not repeat."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["COST_PAGE", "Compared", "cells", "compared"]

PAGES = Path(__file__).parents[1] / "maintainers"
COST_PAGE = PAGES / "cost.md"


class Compared(NamedTuple):
    """How long something takes, as a multiple of the loop by hand: the median of the rounds, and their range."""

    variant: str
    median: float
    least: float
    most: float


def compared(comparison: str) -> list[Compared]:
    """The rows of a comparison in the table of the benchmark."""
    rows = [row for row in cells(PAGES / "cost-figures.md") if row[0] == comparison]
    if not rows:
        message = f"The benchmark has no comparison {comparison!r}."
        raise ValueError(message)
    return [Compared(row[1], float(row[4]), *map(float, row[5].split(" to "))) for row in rows]


def cells(page: Path) -> list[list[str]]:
    """The cells of each row of each table of a page, without bold."""
    rows = re.findall(r"^ *\| (.*) \|$", page.read_text(), re.MULTILINE)
    return [[cell.strip().strip("*") for cell in row.split(" | ")] for row in rows]
