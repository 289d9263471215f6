"""Each code block of each page does what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Page, all_pages
from tests.docs.running import TIME_LIMIT, run_page

PAGES = all_pages()
EACH_NIGHT = {
    *("docs/launching.md", "docs/same-bits.md", "docs/sharding.md"),
    *("docs/hyperparameters.md", "docs/several-machines.md", "docs/trials.md"),
}
"""Pages that launch several times, most of them on several processes; `--more-cases` runs them."""


@pytest.mark.timeout(2 * TIME_LIMIT)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page), marks=[pytest.mark.more_cases] if str(page) in EACH_NIGHT else [])
        for page in PAGES
    ],
)
def test_the_page_does_what_it_shows(page: Page, tmp_path: Path) -> None:
    """From top to bottom, in an empty folder: what it runs works, and prints what it shows."""
    problems = page.problems() or run_page(page, tmp_path)
    assert not problems, "\n".join(problems)


def test_all_pages_are_found() -> None:
    """The README, those of the distributions and those of the documentation are among them."""
    names = {str(page) for page in PAGES}
    assert "README.md" in names
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/README.md")} < names
    assert "docs/maintainers/cost.md" in names
    assert names > EACH_NIGHT
