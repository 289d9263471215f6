"""Pages are in idiomatic English: phrases that earlier versions had and readers stumbled over do not come back."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.docs.pages import ROOT, Page, all_pages
from tests.docs.test_plain_markdown import prose_of

ADVICE: dict[str, str] = tomllib.loads((ROOT / "tests" / "docs" / "plain_english.toml").read_text())

_GENERATED = r"cost|cost-figures|goodput-figures|planned-memory-figures|modules"
_READ = re.compile(rf"(packages/[\w-]+/|examples/)?[A-Z]+\.md|docs/(?!maintainers/({_GENERATED})\.md|api/).*")
_BEGINS = re.compile(r"[#|>]|[-*] |\d+\. ")
PAGES = [page for page in all_pages() if _READ.fullmatch(str(page))]


def paragraphs_of(text: str) -> list[str]:
    """Return paragraphs, items of lists, headings and rows of tables, each in one line."""
    found: list[str] = []
    is_open = False
    for line in re.sub(r"<!--.*?-->", "", prose_of(text)).splitlines():
        words = line.strip()
        if is_open and words and not _BEGINS.match(words):
            found[-1] += f" {words}"
        elif words:
            found.append(words)
        is_open = bool(words) and words[0] not in "#|"
    return found


def phrases_in(page: Page) -> list[str]:
    """Return what a page says in a way that `ADVICE` knows better."""
    return [
        f"{page}: {found[0]!r} in {paragraph[max(0, found.start() - 40) : found.end() + 40]!r}: {advice}"
        for paragraph in paragraphs_of(page.text)
        for pattern, advice in ADVICE.items()
        for found in re.finditer(rf"(?<![\w-])({pattern})(?![\w-])", paragraph, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_is_in_plain_english(page: Page) -> None:
    """Outside of code, no phrase is translated word by word from another language, or private to this project."""
    assert phrases_in(page) == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("A killed run goes\non mid-epoch.", "goes on"),
        ("- That is no error.", "is no"),
        ("See it. What differs is shown.", "What differs is shown."),
        ("| a loop of your own | b |", "of your own"),
        ("## By hand", "By hand"),
        ("Kill it, also in an evaluation.", "also in"),
        ("Pass the argument `seed`.", "the argument code"),
        ("It counts the calls of a model.", "calls of a"),
        ("It is new. As with a loader, it resumes.", "As with"),
    ],
)
def test_a_phrase_is_found(text: str, phrase: str) -> None:
    """In paragraphs over several lines, lists, tables and headings."""
    (found,) = phrases_in(Page(ROOT / "docs/new.md", text))
    assert found.startswith(f"docs/new.md: {phrase!r} in ")
