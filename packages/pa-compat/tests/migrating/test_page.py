"""What docs/migrating.md and the page with the other differences say is held to the tests beside this file."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE.parents[2]
DOCS = PACKAGES.parent / "docs"
PAGE = DOCS / "migrating.md"
OTHER_DIFFERENCES = DOCS / "maintainers" / "differences-from-pytorch-accelerated.md"

ROW = re.compile(r"^\| <!-- (?P<file>\S+)::(?P<test>test_\w+) -->", re.MULTILINE)


def test_each_row_names_its_test_and_each_test_beside_this_file_has_a_row() -> None:
    """A difference cannot be written down without a test, nor a test be renamed or removed from under it."""
    table = re.findall(r"^\| (?!what ).*", OTHER_DIFFERENCES.read_text(), re.MULTILINE)
    assert [row for row in table if not ROW.match(row)] == []
    rows = ROW.findall(PAGE.read_text() + OTHER_DIFFERENCES.read_text())
    assert [name for file, name in rows if f"\ndef {name}(" not in (PACKAGES / file).read_text()] == []
    others = sorted(set(HERE.glob("test_*.py")) - {Path(__file__)})
    tests = {(f"pa-compat/tests/migrating/{path.name}", name) for path in others for name in _tests_of(path)}
    assert tests <= {*rows}


def _tests_of(path: Path) -> list[str]:
    return re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)


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
