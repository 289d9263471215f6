"""Docstrings and messages are in idiomatic English: phrases that earlier versions had do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"

_KINDS = "argument|attribute|class|event|function|method|module|parameter|variable"
ADVICE = {
    r"go(es|ing)? on|went on": "resume, continue",
    r"to the last bit|same bits": "bit-for-bit identical",
    r"in mid-\w+": "mid-epoch",
    r"another number of": "a different number of",
    r"in silence|without a word|signs? of life": "without an error message; a heartbeat",
    r"by hand": "manually, in plain PyTorch",
    r"of (your|its|their|our|his|one's) own|the user's own": "a custom ..., your ..., its own ...",
    r"(take|takes|taken|took|taking) over": "carry over, acquire, load",
    r"pass(ed|es|ing)? over": "skip",
    r"(?<!there )(is|are|was|were) no(?! (longer|matter))": "is not a ..., has no ...",
    r"not to be": "must not be, is not",
    r"(that|those) of": "repeat the noun",
    r"whatever|however(?!,)": "any; no matter how",
    r"if asked|ask(s|ed|ing)? (for|to)": "request, require",
    r"(?<=, )also (after|at|before|by|for|from|if|in|of|on|those|to|when|where|while|with|without)": "even, including",
    r"refus(e|es|ed|ing)|honou?r(s|ed|ing)?": "raise an error; is supported",
    r"warn(s|ed|ing)? of": "warn about",
    r"beside": "next to, besides, with",
    r"likewise|alike|anew|once more": "the same, both, again",
    r"in vain|at hand|under way": "forever; available; in progress",
    rf"(the|an?) ({_KINDS}) ``[\w.]+(\(\))?``": "the ``x`` argument, not the argument ``x``",
    r"(calls?|changes?) of (an?|each|its|the|this|that|their)": "calls to ..., changes to ..., changes in ...",
    r"but for|such as (at|by|for|from|in|on|to|when|with)": "except; for example",
    r"(?-i:(^|(?<=[.!?] ))As (after|at|before|for|in|on|with)(?= ))": "Like ..., In the same way as ...",
    r"travels?|travelled|meanwhile": "is sent; while ..., within ...",
    r"(is|are|was|were) to be(?! able)": "must be, should be, has to be",
    r"(?<!you )what (was|were|had)": "a noun: the saved values, the result",
}
"""Patterns of whole words, in capitals or not, and what to write."""

EXCEPTIONS = {
    ("passes over", "pa_core/custom_loop/update.py"): "passes over a batch, a noun",
}
"""A phrase that is right in a file, and why."""

_OF_A_DOCTEST = re.compile(r"^ *(>>>|\.\.\.) .*$", re.MULTILINE)


def texts_of(source: str) -> Iterator[str]:
    """Yield the strings of a module, docstrings among them, each in one line and without code."""
    nodes = list(ast.walk(ast.parse(source)))
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts_of_formatted = {id(part) for node in formatted for part in node.values}
    plain = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in parts_of_formatted]
    strings: list[Sequence[ast.expr]] = [*(node.values for node in formatted), *((node,) for node in plain)]
    for parts in strings:
        found = [part.value if isinstance(part, ast.Constant) else "{}" for part in parts]
        text = "".join(part for part in found if isinstance(part, str))
        if " " in text:  # not a name
            yield " ".join(_OF_A_DOCTEST.sub("", text).split())


def phrases_in(source: str) -> Iterator[tuple[str, str]]:
    """Yield each phrase that `ADVICE` knows better, and where it stands and what to write."""
    for text in texts_of(source):
        for pattern, advice in ADVICE.items():
            for found in re.finditer(rf"(?<![\w-])({pattern})(?![\w-])", text, re.IGNORECASE):
                yield found[0].lower(), f"{text[max(0, found.start() - 40) : found.end() + 40]!r}: {advice}"


@pytest.mark.parametrize(
    "package", sorted(path.name for path in PACKAGES.glob("*/src/*") if path.is_dir() and path.suffix == "")
)
def test_docstrings_and_messages_are_in_plain_english(package: str) -> None:
    """No docstring, error, warning or console line has a phrase that was translated word by word."""
    root = PACKAGES / package.replace("_", "-") / "src"
    paths = sorted(root.rglob("*.py"))
    found = [(path.relative_to(root).as_posix(), *one) for path in paths for one in phrases_in(path.read_text())]
    assert [f"{path}: {line}" for path, phrase, line in found if (phrase, path) not in EXCEPTIONS] == []


def test_each_exception_is_needed() -> None:
    """An exception whose phrase is gone would hide the next one."""
    for phrase, path in EXCEPTIONS:
        package = path.partition("/")[0].replace("_", "-")
        assert phrase in {found for found, _ in phrases_in((PACKAGES / package / "src" / path).read_text())}, path


@pytest.mark.parametrize(
    ("source", "phrase"),
    [
        ('"""The run goes\non."""', "goes on"),
        ('print(f"{name} is refused")', "refused"),
        ('raise ValueError("Pass it " "beside the model.")', "beside"),
        ('"""Return the argument ``seed``."""', "the argument ``seed``"),
        ('"""Count the calls of a model."""', "calls of a"),
        ('"""As with a loader, nothing is read."""', "as with"),
    ],
    ids=["docstring", "console line", "message", "argument", "calls", "as"],
)
def test_a_phrase_is_found(source: str, phrase: str) -> None:
    """It is found across lines, in formatted strings and in joined ones."""
    assert [found for found, _ in phrases_in(source)] == [phrase]
