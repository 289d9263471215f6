"""The page about the matrix names what there is, and the paths of noxfile.py exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cells import CELLS
from tests.support.noxfile import sessions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "maintainers" / "matrix.md").read_text()


def test_each_cell_has_a_row() -> None:
    """Its first table lists the cells, in order, and says what each proves."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", PAGE.partition("## What runs when")[0], re.MULTILINE)
    assert rows == list(CELLS)


def test_each_session_is_named() -> None:
    """Whoever adds a session says on the page when it runs and what it shows."""
    assert sessions() - set(re.findall(r"`(\w+)`", PAGE)) == set()


def test_each_test_that_floors_runs_exists() -> None:
    """A test file that was renamed is not left out of the run with the oldest versions."""
    (listed,) = re.findall(r"^BESIDE_OTHERS = \((.*?)^\)", (ROOT / "noxfile.py").read_text(), re.DOTALL | re.MULTILINE)
    paths: list[str] = re.findall(r'"([^"]+)"', listed)
    assert paths
    assert [path for path in paths if not (ROOT / "packages" / path).exists()] == []
