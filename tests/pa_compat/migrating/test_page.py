"""What docs/migrating.md and the page with the other differences say is held to the tests beside this file."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs"
PAGE = DOCS / "migrating.md"
OTHER_DIFFERENCES = DOCS / "maintainers" / "differences-from-pytorch-accelerated.md"


def test_each_row_has_a_test_of_its_name_and_each_test_a_row() -> None:
    """A difference cannot be written down without a test, nor a test be removed from under it."""
    text = PAGE.read_text() + OTHER_DIFFERENCES.read_text()
    rows = re.findall(r"^\| <!-- (\w+) -->", text, re.MULTILINE)
    others = sorted(set(HERE.glob("test_*.py")) - {Path(__file__)})
    tests = [name for path in others for name in re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE)]
    assert sorted(rows) == sorted(tests)


def test_both_sides_of_the_shown_diff_import_the_same_objects() -> None:
    """The lines that are gone and those that are new give a script the same names, for the same objects."""
    lines = PAGE.read_text().partition("```diff\n")[2].partition("```")[0].splitlines()
    gone, new = (
        {name: thing for line in lines if line[0] == sign for name, thing in _imported(line[1:])} for sign in "-+"
    )
    assert len(gone) == 5
    assert gone == new


def _imported(line: str) -> list[tuple[str, object]]:
    (statement,) = ast.parse(line).body
    assert isinstance(statement, ast.ImportFrom)
    module = importlib.import_module(str(statement.module))
    return [(alias.name, getattr(module, alias.name)) for alias in statement.names]
