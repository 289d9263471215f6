"""Each page for users stays within a number of words, so that all of them can be read."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from tests.docs.pages import ROOT, Page, all_pages
from tests.docs.test_plain_markdown import lines_of_prose

WORDS = {
    "front page": 1080,
    "index": 420,
    "tutorial": 1560,
    "how-to": 1200,
    "scaling": 1200,
    "understanding": 840,
    "migration": 1020,
    "reference": 840,
    "package": 140,
    "library": 240,
}
"""How many words a page of each kind may have, as `wc -w` counts them."""

KINDS: dict[str, str | tuple[str, int]] = {
    "README.md": "front page",
    "docs/before-you-train.md": ("how-to", 1650),
    "docs/beyond-ddp.md": ("scaling", 1440),
    "docs/checkpoints-alone.md": ("how-to", 840),
    "docs/data-alone.md": ("how-to", 670),
    "docs/getting-started.md": "tutorial",
    "docs/glossary.md": "reference",
    "docs/guarantees.md": ("understanding", 860),
    "docs/how-do-i.md": ("how-to", 1190),
    "docs/hyperparameters.md": ("how-to", 480),
    "docs/index.md": "index",
    "docs/launching.md": "scaling",
    "docs/logging.md": ("how-to", 1260),
    "docs/migrating-from-determined.md": "migration",
    "docs/migrating.md": ("migration", 1320),
    "docs/object-stores.md": ("scaling", 720),
    "docs/own-loops.md": ("how-to", 1560),
    "docs/performance.md": "understanding",
    "docs/resuming-custom-data-loaders.md": ("scaling", 600),
    "docs/resuming.md": ("how-to", 1580),
    "docs/run.md": "understanding",
    "docs/same-bits.md": ("understanding", 1500),
    "docs/several-machines.md": "scaling",
    "docs/speed-and-memory.md": ("how-to", 1390),
    "docs/sharding.md": "scaling",
    "docs/training-states.md": "understanding",
    "docs/trials.md": ("migration", 1630),
    "docs/troubleshooting.md": ("how-to", 1920),
    "docs/typing.md": "reference",
    "docs/why.md": "understanding",
    "examples/README.md": "reference",
    "packages/pa-checkpoint/README.md": "library",
    "packages/pa-data/README.md": "library",
    "packages/pa-distributed/README.md": "library",
    "packages/pa-preflight/README.md": "library",
}
"""The kind of each page that is none of the usual ones of its folder, and the words of a page that needs others."""

USUAL_KINDS = {"docs": "how-to", "docs/coming-from": "migration", "packages": "package"}

WORDS_OF_ALL = 49_860
ROWS_OF_A_TABLE = 30

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
    kind = KINDS.get(str(page)) or USUAL_KINDS[folder]
    name, allowed = (kind, WORDS[kind]) if isinstance(kind, str) else kind
    found: list[str] = []
    if (words := words_of(page)) > allowed:
        found.append(f"{page} has {words} words; {name} may have {allowed}: cut what another page says, or divide it")
    if (rows := longest_table_of(page)) > ROWS_OF_A_TABLE:
        found.append(
            f"{page} has a table of {rows} rows; {ROWS_OF_A_TABLE} are enough: divide it, or keep what users hit"
        )
    return found


@pytest.mark.parametrize("page", PAGES.values(), ids=str)
def test_a_page_is_within_the_budget_of_its_kind(page: Page) -> None:
    """A page for users has a kind, no more words than pages of its kind may have, and no table without end."""
    assert problems_of(page) == []


def test_all_pages_together_are_within_the_budget() -> None:
    """A user who reads everything reads no more than this."""
    assert sum(words_of(page) for page in PAGES.values()) <= WORDS_OF_ALL


def test_only_pages_that_exist_have_a_kind() -> None:
    """A page that was renamed or removed leaves nothing behind in the table."""
    assert sorted(KINDS.keys() - PAGES.keys()) == []


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("docs/install.md", "word " * 1201, r"has 1201 words; how-to may have 1200"),
        ("docs/install.md", "| a |\n|---|\n" + "| b |\n" * 31, r"has a table of 31 rows"),
    ],
)
def test_what_goes_beyond_a_budget_is_found(path: str, text: str, problem: str) -> None:
    """A page with too many words and a table with too many rows are told apart."""
    (found,) = problems_of(Page(ROOT / path, text))
    assert re.search(problem, found)
