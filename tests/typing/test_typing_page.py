"""The page on types shows what both checkers say, and its code runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.typing.checkers import ROOT, TypedEnvironment

PAGE = ROOT / "docs" / "typing.md"
REFUSED = "  # error"


def script() -> list[str]:
    """The lines of all blocks of code on the page, one after the other."""
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == PAGE.read_text().count("```") // 2
    return "\n\n".join(blocks).splitlines()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_checker_refuses_the_lines_that_say_so_and_no_others(
    environment: TypedEnvironment, tmp_path: Path, checker: str
) -> None:
    """Each recipe is accepted as it stands, and each line that is said to be refused is."""
    lines = script()
    refused = {number for number, line in enumerate(lines, start=1) if line.endswith(REFUSED)}
    (tmp_path / "page.py").write_text("\n".join(lines) + "\n")

    output = {"mypy": environment.mypy, "pyright": environment.pyright}[checker](tmp_path).output

    assert {int(number) for number in re.findall(r"page\.py:(\d+)\S* (?:- )?error", output)} == refused
    assert len(refused) >= 10


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    """Without the statements that are refused, the page is a script, and what it asserts holds."""
    page = tmp_path / "page.py"
    runnable = [line for line in script() if not line.endswith(REFUSED) or line.lstrip().startswith("def ")]
    page.write_text("\n".join(runnable))
    runpy.run_path(str(page))
