"""Pages are in idiomatic English: phrases that earlier versions had and readers stumbled over do not come back."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, Page, all_pages
from tests.docs.test_plain_markdown import prose_of

ADVICE = {
    # runs and results
    r"go(es|ing)? on|went on": "resume, continue",
    r"to the last bit|same bits|bit for bit": "bit-for-bit identical",
    r"in mid-\w+": "mid-epoch, mid-run",
    r"another number of": "a different number of",
    r"makes? room for another|(machine|node|process) (that )?goes": "is preempted; fails",
    r"for good": "permanently",
    r"(take|takes|taken|took|holds?|held) [\w ]{1,20} for (gone|safe|none)|taken for": "consider, treat as",
    r"in silence|without a word|last words|signs? of life|ends? in order": (
        "without an error message; the final message; a heartbeat; exits cleanly"
    ),
    # how something is done
    r"by hand": "hand-written, manually, in plain PyTorch",
    r"by the clock": "time-based",
    r"of (your|its|their|our|his|one's) own|the user's own": "a custom ..., your ..., its own ...",
    r"(is|are) (yours|theirs)( to)?": "you have to ..., you control ...",
    r"goes round|go round": "bypass",
    r"(take|takes|taken|took|taking) over": "carry over, acquire",
    r"pass(ed|es) over": "skip",
    r"mends?|mended": "fix",
    r"holds? (nobody|nothing) up": "does not block",
    r"deals? out|dealt out": "shard, divide",
    r"look(s|ing)? for garbage": "collect garbage",
    r"puts? back|sets? aside": "restore; save and restore",
    # what something is
    r"(?<!there )(is|are|was|were) no(?! longer)": "is not a ..., has no ...",
    r"not to be": "must not be, is not",
    r"(has|have) not(?=[.,;:|]| *$)": "does not have, is not supported",
    r"(that|those) of": "repeat the noun",
    r"behaves? otherwise": "differences in behaviour",
    r"is the case anyway|computes? anyway": "already",
    r"stays? what (it|they)": "stays unchanged",
    r"(?-i:(^|(?<=[.!?-] ))What) [^.?]*\.(?= |$)": "name the subject: values that ..., options that ...",
    # conditions
    r"whatever|whichever|whoever|however(?!,)": "any, every; no matter how; if you",
    r"where (nobody|possible|needed|necessary|that is possible)": "if, when; by default",
    r"if need be": "if needed",
    r"if asked|ask(s|ed|ing)? for": "requested, required; can; if you pass ...",
    r"(?<=, )also (after|at|before|by|for|from|if|in|of|on|over|those|to|when|while|with|without)": "even, including",
    # errors and options
    r"refus(e|es|ed|ing)": "raise an error, fail",
    r"honou?r(s|ed|ing)?": "is supported",
    r"warn(s|ed|ing)? of": "is ignored with a warning; warns that",
    r"came up": "was raised",
    # words
    r"beside": "next to, besides, as well as",
    r"likewise|alike|anew|once more": "the same, both, again",
    r"in vain|at hand|under way|hardly": "for nothing; available; in progress; almost not",
    r"siblings?": "the other packages",
    r"keyed": "seeded per sample",
    r"ours": "pa-core's",
}
"""Patterns of whole words, in capitals or not, and what to write."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""A page and a phrase that is right there, and why."""

_READ = re.compile(r"(packages/[\w-]+/|examples/)?[A-Z]+\.md|docs/(?!maintainers/|api/).*")
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
        if (str(page), found[0]) not in EXCEPTIONS
    ]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_is_in_plain_english(page: Page) -> None:
    """Outside of code, no phrase is translated word by word from another language, or private to this project."""
    assert phrases_in(page) == []


def test_each_exception_is_needed() -> None:
    """An exception goes with the phrase that it is for."""
    texts = {str(page): " ".join(paragraphs_of(page.text)) for page in PAGES}
    assert [key for key in EXCEPTIONS if key[1] not in texts.get(key[0], "")] == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("A killed run goes\non mid-epoch.", "goes on"),
        ("- That is no error.", "is no"),
        ("See it. What differs is shown.", "What differs is shown."),
        ("| a loop of your own | b |", "of your own"),
        ("## By hand", "By hand"),
        ("Kill it, also in an evaluation.", "also in"),
    ],
)
def test_a_phrase_is_found(text: str, phrase: str) -> None:
    """In paragraphs over several lines, lists, tables and headings."""
    (found,) = phrases_in(Page(ROOT / "docs/new.md", text))
    assert found.startswith(f"docs/new.md: {phrase!r} in ")
