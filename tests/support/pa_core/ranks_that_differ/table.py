"""Prints the table of the ways in which processes can differ, for `docs/maintainers/failures.md`."""

from __future__ import annotations

import sys

from tests.support.pa_core.ranks_that_differ.cases import Door
from tests.support.pa_core.ranks_that_differ.rows import ROWS

DOORS: dict[Door, str] = {"train": "`train()`", "evaluate": "`evaluate()`", "Run": "`Run`"}


def table() -> str:
    """The rows as Markdown."""
    lines = ["| what differs | in | is shown as | when |", "|---|---|---|---|"]
    for row in ROWS:
        doors = ", ".join(DOORS[door] for door in row.doors)
        lines.append(f"| {row.what} | {doors} | `{row.shows}` | {row.when} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
