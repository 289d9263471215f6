"""The tables of docs/maintainers/differences-from-determined.md are held to the tests beside this file."""

from __future__ import annotations

import re
from pathlib import Path

import pa_trial

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs"
PAGE = DOCS / "migrating-from-determined.md"
ALL_DIFFERENCES = DOCS / "maintainers" / "differences-from-determined.md"


def test_each_row_has_a_test_of_its_name_and_each_test_a_row() -> None:
    """A difference cannot be written down without a test, nor a test be removed from under it."""
    rows = re.findall(r"^\| <!-- (\w+) -->", ALL_DIFFERENCES.read_text(), re.MULTILINE)
    others = sorted(set(HERE.glob("test_*.py")) - {Path(__file__)})
    tests = [name for path in others for name in re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE)]
    assert sorted(rows) == sorted(tests)


def test_each_import_that_the_page_names_works() -> None:
    """What takes the place of a name of Determined's is there."""
    named = set(re.findall(r"`pa_trial\.(\w+)", PAGE.read_text()))
    assert {"DistributedContext", "InvalidHP", "get_cluster_info"} <= named <= {*pa_trial.__all__, "errors"}
