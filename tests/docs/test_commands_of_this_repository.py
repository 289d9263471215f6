"""What pages tell contributors to type names sessions, cells and tests that there are."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.cells import CELLS
from tests.docs.pages import ROOT, all_pages
from tests.launching import run_command
from tests.plugin import DISTRIBUTIONS
from tests.support.noxfile import sessions

SESSION = re.compile(r"(?P<nox>nox|python3?(?:\.\d+)? noxfile\.py) -s (?P<named>\"[^\"]+\"|\w+)")
PYTEST = re.compile(r"\$ (?P<typed>(?:[A-Z_0-9]+=\S+ )*(?:python|torchrun \S.*?) -m pytest [^#\n]*)")

NAMED = sorted(
    {(str(page), *found.group("nox", "named")) for page in all_pages() for found in SESSION.finditer(page.text)}
)
CONSOLES = [block.code for page in all_pages() for block in page.blocks() if block.language == "console"]
LINES = sorted({found["typed"].strip() for code in CONSOLES for found in PYTEST.finditer(code)})


@pytest.mark.parametrize(("page", "_nox", "named"), NAMED)
def test_a_session_that_a_page_names_exists(page: str, _nox: str, named: str) -> None:
    """With its distribution and its cell."""
    session, _, parameters = named.strip('"').rstrip(")").partition("(")
    assert session in sessions(), page
    known = {*DISTRIBUTIONS, "together", *CELLS}
    assert {one for one in parameters.split(", ") if one} <= known


def test_blocks_start_sessions_where_nox_is_not_installed() -> None:
    """A reader types them as they are; the file installs nox itself."""
    assert len(NAMED) > 20
    assert [code for code in CONSOLES if re.search(r"^\$ nox ", code, re.MULTILINE)] == []


@pytest.mark.more_cases
@pytest.mark.parametrize("line", LINES)
def test_tests_that_a_page_names_are_found(line: str, tmp_path: Path) -> None:
    """A line with another folder, option or word would run none."""
    typed = line.replace("TESTS", "packages/pa-schedulers/tests")
    found = run_command(["bash", "-c", f"cd {ROOT}; {typed} --collect-only -q"], folder=tmp_path, env={"PATH": _path()})
    assert found.status == 0
    assert re.search(r"\d+(/\d+)? tests collected", found.output)


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
