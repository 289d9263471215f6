"""The site's search shows the page that answers a question among the first hits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.questions import QUESTIONS, Question
from tests.docs_site.search import Hit, search

FIRST = 3
NAMES = {
    "Trainer": "api/pa_core/Trainer",
    "pa_core.Run": "api/pa_core/Run",
    "plot_run_history": "api/pa_core",
    "KeyedDataLoader": "api/pa_data/KeyedDataLoader",
    "EarlyStoppingCallback": "api/pa_callbacks_extra/EarlyStoppingCallback",
}


@pytest.fixture(scope="module")
def hits(site: Path) -> dict[str, list[Hit]]:
    """What every search of the tests shows."""
    return search(site, [*(words for question in QUESTIONS for words in question.searches), *NAMES, "xyzzy"])


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_search_finds_the_answer(question: Question, hits: dict[str, list[Hit]]) -> None:
    """The page of the answer is among the first three hits, whichever of the words are typed."""
    shown = {words: [hit.page for hit in hits[words]][:FIRST] for words in question.searches}
    assert {words: pages for words, pages in shown.items() if question.page not in pages} == {}


@pytest.mark.parametrize(("name", "page"), NAMES.items())
def test_the_name_of_a_class_or_function_leads_to_the_reference_first(
    name: str, page: str, hits: dict[str, list[Hit]]
) -> None:
    """Pages that mention the name follow."""
    assert hits[name][0].page == page


def test_pages_for_maintainers_come_last(hits: dict[str, list[Hit]]) -> None:
    """A page for users is never below one of them, and searches do find them."""
    found = 0
    for shown in hits.values():
        for_maintainers = [hit.page.startswith("maintainers/") for hit in shown]
        assert for_maintainers == sorted(for_maintainers)
        found += any(for_maintainers)
    assert found > 10


def test_what_is_on_no_page_is_not_found(hits: dict[str, list[Hit]]) -> None:
    """The searches that the tests make can come out empty."""
    assert hits["xyzzy"] == []
