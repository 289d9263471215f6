"""Each page for users stays within a number of words, so that all of them can be read."""

from __future__ import annotations

import re
import tomllib
from itertools import groupby

import pytest

from tests.docs.pages import ROOT, Page, all_pages
from tests.docs.test_plain_markdown import lines_of_prose

BUDGETS = tomllib.loads((ROOT / "tests" / "docs" / "word_budgets.toml").read_text())

_FOR_USERS = re.compile(r"README\.md|docs/(coming-from/)?[\w-]+\.md|packages/[\w-]+/README\.md|examples/README\.md")
PAGES = {
    str(page): page for page in all_pages() if _FOR_USERS.fullmatch(str(page)) and page.path.name != "changelog.md"
}


def words_of(page: Page) -> int:
    """Count words as `wc -w` does."""
    return len(page.text.split())


def longest_table_of(page: Page) -> int:
    """Return the rows of the longest table, without its header."""
    runs = groupby(lines_of_prose(page.text), key=lambda line: line.lstrip().startswith("|"))
    return max((len(list(lines)) - 2 for is_table, lines in runs if is_table), default=0)


def problems_of(page: Page) -> list[str]:
    """Return how a page goes beyond its budget, and what to do."""
    folder = "packages" if str(page).startswith("packages/") else str(page).rpartition("/")[0]
    kind = BUDGETS["kinds"].get(str(page)) or BUDGETS["usual_kinds"][folder]
    allowed, most_rows = BUDGETS["words_of_pages"].get(str(page), BUDGETS["words"][kind]), BUDGETS["rows_of_a_table"]
    found: list[str] = []
    if (words := words_of(page)) > allowed:
        found.append(f"{page} has {words} words; {kind} may have {allowed}: cut what another page says, or divide it")
    if (rows := longest_table_of(page)) > most_rows:
        found.append(f"{page} has a table of {rows} rows; {most_rows} are enough: divide it, or keep what users hit")
    return found


@pytest.mark.parametrize("page", PAGES.values(), ids=str)
def test_a_page_is_within_the_budget_of_its_kind(page: Page) -> None:
    """A page for users has a kind, no more words than pages of its kind may have, and no table without end."""
    assert problems_of(page) == []


def test_all_pages_together_are_within_the_budget() -> None:
    """A user who reads everything reads no more than this."""
    assert sum(words_of(page) for page in PAGES.values()) <= BUDGETS["words_of_all"]


def test_only_pages_that_exist_have_a_kind() -> None:
    """A page that was renamed or removed leaves nothing behind in the table."""
    assert sorted({*BUDGETS["kinds"], *BUDGETS["words_of_pages"]} - PAGES.keys()) == []


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("docs/install.md", "word " * 1491, r"has 1491 words; how-to may have 1490"),
        ("docs/install.md", "| a |\n|---|\n" + "| b |\n" * 31, r"has a table of 31 rows"),
    ],
)
def test_what_goes_beyond_a_budget_is_found(path: str, text: str, problem: str) -> None:
    """A page with too many words and a table with too many rows are told apart."""
    (found,) = problems_of(Page(ROOT / path, text))
    assert re.search(problem, found)
