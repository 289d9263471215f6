"""Docstrings, messages, comments and loop variables call each thing by its name, in packages that are `CLEAN`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository.test_docstring_words import texts_of

PACKAGES = Path(__file__).parents[2] / "packages"

CLEAN = [
    "pa_callbacks_extra",
    "pa_checkpoint",
    "pa_compat",
    "pa_core",
    "pa_data",
    "pa_distributed",
    "pa_finetuning",
    "pa_preflight",
    "pa_ray",
    "pa_schedulers",
    "pa_trial",
]
"""The packages that are checked. A package that was rewritten is added here."""

_AFTER_A_NOUN = (
    "that|which|who|whose|is|are|has|have|was|were|with|without|from|for|in|to|may|must|can|cannot|does|as|before|after"
)
_BEFORE_A_NOUN = "another|each|every|any|that|this|which|such|only|the [a-z]+|an? [a-z]+"

ADVICE = {
    r"ones": "repeat the noun",
    rf"one (?={_AFTER_A_NOUN})(?!(after|for|to|from) (the other|another|all|one))": "repeat the noun",
    rf"(?<!at )({_BEFORE_A_NOUN}) one(?! [a-z]+)": "repeat the noun",
    r"(?<!by )(?<!or )(?<!to )(?<!than )(?<!least )(?<!most )(?<!rank )one(?= ?([.,;:)!?]|$))": "repeat the noun",
    r"(?<!out )of (which|whom)": "a sentence with a subject and a verb",
    r"what (is|was|are|were|has|had|must|can|may|it|they|one|this|these|there)": "a noun, such as 'the saved values'",
    r"what (follows|differs|comes|came|remains|stands|stays|belongs)": "a noun, such as 'the differences'",
    r"(whoever|nobody|everybody|anybody|somebody)": "the process, the caller, the user, none",
    r"for ever": "forever",
    r"as (for|of) `.*?`+": "explain it here as well",
}
"""Patterns of whole words, in capitals or not, and what to write."""


def comments_in(source: str) -> Iterator[str]:
    """Yield the comments of a module without those that are for tools."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.removeprefix("#").strip()
        if token.type == tokenize.COMMENT and not re.match(r"(noqa|type|pyright|pragma)\b", text):
            yield text


def nameless_variables_in(source: str) -> Iterator[str]:
    """Yield the line of each variable and argument that is called `one`."""
    advice = "a variable `one`: the name of the thing, as in `for parameter in parameters`"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "one":
            yield f"line {node.lineno}: {advice}"
        if isinstance(node, ast.arg) and node.arg == "one":
            yield f"line {node.lineno}: {advice}"


def unnamed_in(source: str) -> Iterator[str]:
    """Yield each phrase of a module that leaves out a name, where it stands and what to write."""
    for text in (*texts_of(source), *comments_in(source)):
        for pattern, advice in ADVICE.items():
            for found in re.finditer(rf"(?<![\w-])({pattern})(?![\w-])", text, re.IGNORECASE):
                yield f"{text[max(0, found.start() - 40) : found.end() + 40]!r}: {advice}"
    yield from nameless_variables_in(source)


@pytest.mark.parametrize("package", CLEAN)
def test_each_thing_is_called_by_its_name(package: str) -> None:
    """No sentence of the package needs the code to tell what a word in it stands for."""
    root = PACKAGES / package.replace("_", "-") / "src"
    assert [
        f"{path.relative_to(root)}: {line}"
        for path in sorted(root.rglob("*.py"))
        for line in unnamed_in(path.read_text())
    ] == []


def test_tools_call_each_thing_by_its_name() -> None:
    """Scripts for maintainers are as plain as the packages."""
    root = PACKAGES.parent
    paths = [*sorted((root / "tools").rglob("*.py")), root / "noxfile.py", root / "do.py"]
    assert [f"{path.relative_to(root)}: {line}" for path in paths for line in unnamed_in(path.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Raise the error of the only one."""',
        '"""Remove a directory, of which half is never found."""',
        'print(f"what it is called: {name}")',
        "x = 1  # as nobody waits",
        "for one in tensors: ...",
        "add = lambda one, other: one + other",
    ],
    ids=["one", "of which", "what", "comment", "loop", "argument"],
)
def test_a_thing_without_a_name_is_found(source: str) -> None:
    """It is found in docstrings, messages, comments and variables."""
    assert list(unnamed_in(source)) != []


@pytest.mark.parametrize(
    "text", ["One of the ranks.", "One process ends.", "Merge them one after the other.", "At least one.", "one by one"]
)
def test_the_number_one_is_allowed(text: str) -> None:
    """Where it counts, *one* is the right word."""
    assert list(unnamed_in(f'"""{text}"""')) == []
