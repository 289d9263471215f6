"""The table of docs/maintainers/failures.md of the events that fire when a run ends."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "maintainers" / "failures.md"


def table() -> dict[str, dict[str, str]]:
    """The rows of the table by their first cell: for each column, what is said there."""
    _, start, after = PAGE.read_text().partition("| the run ends because of |")
    lines = (start + after.partition("\n\n")[0]).splitlines()
    head, _, *rows = [line.strip("| ").split(" | ") for line in lines]
    columns = [name.strip("`") for name in head[1:]]
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}
