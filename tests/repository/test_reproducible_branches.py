"""What a reproducible run does in another way is in two files of the engine: the exchange and the preparation."""

from __future__ import annotations

import ast
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "packages" / "pa-core" / "src" / "pa_core" / "engine"
ALLOWED = {"exchange.py", "prepare.py"}
NAMES = {"reproducible", "is_reproducible", "is_exact"}


def branches(source: str) -> list[int]:
    """Return the lines of the conditions that read whether a run is reproducible."""
    conditions = [
        node.test
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert)
    ]
    read = [(part, condition) for condition in conditions for part in ast.walk(condition)]
    return [
        condition.lineno
        for part, condition in read
        if (isinstance(part, ast.Attribute) and part.attr in NAMES) or (isinstance(part, ast.Name) and part.id in NAMES)
    ]


def test_only_the_exchange_and_the_preparation_ask_whether_a_run_is_reproducible() -> None:
    """Whoever reads an update meets no branch of a feature that has its own implementation of the exchange."""
    found = {path.name: lines for path in ENGINE.rglob("*.py") if (lines := branches(path.read_text()))}
    assert {name: lines for name, lines in found.items() if name not in ALLOWED} == {}
    assert found.keys() == ALLOWED


def test_branches_are_found_in_every_form() -> None:
    """A statement, an expression, and a part of a condition."""
    source = "if a.is_exact and b:\n    pass\nc = 1 if not reproducible else 2\nis_exact = True\nf(d.is_exact)\n"
    assert branches(source) == [1, 3]
