"""Files that the documentation, the READMEs and the pages for contributors name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("packages/*/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_file_of_the_repository_that_a_page_names_exists(page: Path) -> None:
    """Whoever follows the name of a file finds it."""
    text = page.read_text()
    named = {ROOT / name for name in re.findall(r"`((?:docs|examples|packages|tests|tools)/[\w./-]+)`", text)}
    if not page.is_relative_to(ROOT / "docs"):  # links of the other pages are checked by Sphinx
        named |= {page.parent / link for link in re.findall(r"\]\((?!http)([^)#]+)", text)}
    assert [path.relative_to(ROOT).as_posix() for path in sorted(named) if not path.exists()] == []
