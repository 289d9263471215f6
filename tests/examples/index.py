"""The index of the examples, made from their docstrings.

``python -m tests.examples.index`` writes it into ``examples/README.md``.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.examples.shared_launches import LAUNCHES

__all__ = ["ORDER", "PAGE", "with_list"]

PAGE = Path(__file__).parents[2] / "examples" / "README.md"
ORDER = tuple(LAUNCHES)
"""From the first steps to special tasks."""

_BEGIN, _END = "<!-- the examples, written by python -m tests.examples.index -->\n", "<!-- end -->\n"


def with_list(page: str) -> str:
    """Return the page with the list of today."""
    begin, rest = page.split(_BEGIN)
    _, end = rest.split(_END)
    rows = [f"- [{name}.py]({name}.py): {teaches(name)}\n" for name in ORDER]
    return "".join([begin, _BEGIN, *rows, _END, end])


def teaches(name: str) -> str:
    """Return the first line of the docstring of an example."""
    docstring = ast.get_docstring(ast.parse((PAGE.parent / f"{name}.py").read_text())) or ""
    return docstring.splitlines()[0].removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(with_list(PAGE.read_text()))
