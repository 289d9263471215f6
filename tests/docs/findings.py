"""The tables of what a check finds, made from their registry and the planted mistakes.

``python -m tests.docs.findings`` writes them into ``docs/before-you-train.md``.
"""

from __future__ import annotations

from pathlib import Path

from pa_preflight._registry import REGISTRY
from tests.support.pa_preflight.corpus import NOT_FOUND, PLANTED

__all__ = ["PAGE", "with_tables"]

PAGE = Path(__file__).parents[2] / "docs" / "before-you-train.md"

_BEGIN, _END = "<!-- what is found, written by python -m tests.docs.findings -->\n", "<!-- end -->\n"


def with_tables(page: str) -> str:
    """Return the page with the tables of today."""
    begin, rest = page.split(_BEGIN)
    _, end = rest.split(_END)
    return "".join([begin, _BEGIN, *(f"\n{table}\n" for table in map(_table, REGISTRY)), _END, end])


def _table(part: str) -> str:
    rows: dict[str, list[str]] = {}
    for name, kind in REGISTRY[part].items():
        rows.setdefault(kind.wrong, []).append(name)
    lines = [f"| {', '.join(map(_counted, names))} | {wrong} |" for wrong, names in rows.items()]
    return "\n".join([f"| findings about the {part} | what is wrong |", "|---|---|", *lines])


def _counted(name: str) -> str:
    """Return a name, with how many of the planted mistakes are found."""
    planted = [case for case, one in PLANTED.items() if one.finding == name]
    missed = len(NOT_FOUND.intersection(planted))
    return f"`{name}` ({f'{len(planted) - missed} of ' if missed else ''}{len(planted)})"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
