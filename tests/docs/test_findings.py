"""The page about checks has what they find, and how many planted mistakes show it."""

from __future__ import annotations

import ast

from pa_preflight._registry import KINDS
from tests.docs.findings import PAGE, with_tables
from tests.docs.pages import ROOT
from tests.support.pa_preflight.corpus import PLANTED

SOURCES = ROOT / "packages" / "pa-preflight" / "src" / "pa_preflight"


def _findings_in(source: str) -> set[str]:
    """Return the names of findings that a module makes."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    made = [one.args[0] for one in calls if isinstance(one.func, ast.Name) and one.func.id == "noticed"]
    constants = [one for name in made for one in ast.walk(name) if isinstance(one, ast.Constant)]
    return {one.value for one in constants if isinstance(one.value, str)}


def test_the_tables_are_the_ones_of_today() -> None:
    """Run ``python -m tests.docs.findings`` after a change of the planted mistakes."""
    page = PAGE.read_text()
    assert with_tables(page) == page


def test_each_finding_is_in_the_registry() -> None:
    """What a check can find has a row, of which the tables are made, and nothing else has one."""
    made = set[str]().union(*(_findings_in(path.read_text()) for path in SOURCES.glob("*.py")))
    assert made == KINDS.keys()


def test_each_finding_is_planted() -> None:
    """At least one script shows it."""
    assert {one.finding for one in PLANTED.values()} == KINDS.keys()
