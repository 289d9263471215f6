"""What the pages about coming from Determined say is held to the tests beside this file."""

from __future__ import annotations

import re
from pathlib import Path

import pa_trial

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs"
PAGE = DOCS / "migrating-from-determined.md"
ALL_DIFFERENCES = DOCS / "maintainers" / "differences-from-determined.md"


def test_each_row_names_a_test() -> None:
    """A difference cannot be written down without a test, nor a test be removed from under it."""
    rows = [line for line in ALL_DIFFERENCES.read_text().splitlines() if re.match(r"\| (?!what|---)", line)]
    named = {name for row in rows for name in re.findall(r"^\| <!-- (\w+) -->", row)}
    tests = {name for path in HERE.glob("test_*.py") for name in re.findall(r"def test_(\w+)", path.read_text())}
    assert all(row.startswith("| <!-- ") for row in rows)
    assert named - tests == set()


def test_each_import_that_the_page_names_works() -> None:
    """What takes the place of a name of Determined's is there."""
    named = set(re.findall(r"`pa_trial\.(\w+)", PAGE.read_text()))
    assert {"DistributedContext", "InvalidHP", "get_cluster_info"} <= named <= {*pa_trial.__all__, "errors"}
