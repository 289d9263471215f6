"""What users look for has a heading that they can be sent to, and an answer below it."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT
from tests.docs.questions import QUESTIONS, Question
from tests.docs.test_plain_markdown import lines_of_prose, places_in

WORDS_OF_AN_ANSWER = 20


def section_of(text: str, anchor: str) -> str:
    """Return what stands below the heading with this anchor, the heading included, or the whole page without one."""
    if not anchor:
        return text
    lines = text.splitlines()
    headings = [
        (number, len(line) - len(line.lstrip("#")))
        for number, line in enumerate(lines)
        if line.startswith("#") and line in lines_of_prose(text)
    ]
    for start, level in headings:
        if anchor in places_in(lines[start]):
            ends = [number for number, other in headings if number > start and other <= level]
            return "\n".join(lines[start : min(ends, default=len(lines))])
    return ""


def problems_of(question: Question, text: str) -> list[str]:
    """Return why a page does not answer a question where the table says."""
    section = section_of(text, question.anchor)
    if not section:
        return [f"no heading of {question.page} has the anchor {question.anchor}"]
    found: list[str] = []
    if len(section.split()) < WORDS_OF_AN_ANSWER or not re.search(r"`|\]\(", section):
        found.append(f"{question.answer} has neither code nor a link, or fewer than {WORDS_OF_AN_ANSWER} words")
    stems = [word[:4].casefold() for word in re.findall(r"\w+", question.typed) if len(word) > 1]
    if not any(stem in section.casefold() for stem in stems):
        found.append(f"{question.answer} has none of the words {question.typed}")
    return found


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_question_has_an_answer(question: Question) -> None:
    """The page has the heading, and what is below it has words that were typed, and code or a link."""
    page = ROOT / "docs" / f"{question.page}.md"
    assert problems_of(question, page.read_text(encoding="utf-8")) == []
