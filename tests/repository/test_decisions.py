"""The pages of decisions say when each was made and whether it holds, and name only code that is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from tests.support.noxfile import sessions

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "maintainers" / "decisions"
DECISIONS = sorted(path for path in FOLDER.glob("*.md") if path.stem != "index")

OF_OTHERS = {
    *("torch", "randperm", "distributed", "algorithms", "join", "Join", "DistributedDataParallel", "SyncBatchNorm"),
    *("broadcast_buffers", "TensorDataset", "PlateauLRScheduler", "nox", "session", "install"),
    *("Any", "object", "int", "except", "finally", "atexit", "SystemExit", "ValueError", "True"),
}
"""Names of Python and of libraries, which the sources need not define."""

_STATUS = re.compile(r"# .+\n\n(\d{4}-\d{2}-\d{2}), \*(?:holds|replaced by \[.+\]\((.+\.md)\))\*\n\n")
_NAME = re.compile(r"[A-Za-z_][\w./-]*(?=(?:\(.*\)|=\S+)?$)")


def _defined_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


@cache
def _ours() -> set[str]:
    """Return what the sources define, and the names of modules, packages, distributions and their files."""
    sources = [ROOT / "noxfile.py", *ROOT.glob("packages/*/src/**/*.py")]
    defined = sessions() | {name for path in sources for name in _defined_in(ast.parse(path.read_text()))}
    paths = [*sources, *ROOT.glob("packages/*"), *ROOT.glob("packages/*/src/*/**/"), *ROOT.glob("packages/*/src/*/*")]
    return defined | {name for path in paths for name in (path.name, path.stem)}


def missing_names(text: str, ours: set[str]) -> list[str]:
    """Return the names in backticks that are neither a path of the repository, nor defined in it, nor of others."""
    spans = (span for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text) if (span := _NAME.match(code)))
    names = {span[0] for span in spans}
    unknown = {name for name in names if name not in ours and not (ROOT / name).exists()}
    return sorted(name for name in unknown if "/" in name or not {*name.split(".")} <= ours | OF_OTHERS)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_a_date_and_a_status(page: Path) -> None:
    """Below the title of a decision is the day when it was made, and whether it holds or what has replaced it."""
    found = _STATUS.match(page.read_text())
    assert found is not None, "write the day and the status below the title: 2026-11-20, *holds*"
    date.fromisoformat(found[1])  # raises an error for a day that does not exist
    assert found[2] is None or (FOLDER / found[2]).exists()


@pytest.mark.parametrize("page", DECISIONS, ids=lambda path: path.stem)
def test_the_code_that_a_decision_names_exists(page: Path) -> None:
    """Renaming or removing code shows the decisions that describe it."""
    assert missing_names(page.read_text(), _ours()) == []


def test_code_that_is_gone_is_noticed() -> None:
    """A name, a member, an argument and a file are each looked for; what is not a name is left alone."""
    text = "`Gone`, `Run.gone`, `gone=2`, `gone(1)`, `tools/gone.py`, `Run`, `x += 1`, `torch.randperm`, `README.md`"
    assert missing_names(text, {"Run"}) == ["Gone", "Run.gone", "gone", "tools/gone.py"]
