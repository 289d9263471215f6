"""The lines about types in CONTRIBUTING.md: `python -m tests.typing.scores` writes it, from what the checkers say."""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.typing.checkers import (
    PACKAGES,
    PYTHON_VERSIONS,
    ROOT,
    Completeness,
    TypedEnvironment,
    built_wheels,
    version_of,
)
from tests.typing.open_types import find_open_types

PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"(?<=<!-- typing scores, written by nox -s typing_score -->\n).*?(?=<!-- end -->)", flags=re.DOTALL)
TESTS = ROOT / "tests" / "typing"


def describe_scores(completeness: Mapping[str, Completeness], environment: TypedEnvironment) -> str:
    """Return what there is to count, for what is installed in an environment."""
    num_symbols = sum(found.num_symbols for found in completeness.values())
    scores = {f"{found.score:.1%}" for found in completeness.values()}
    if len(scores) > 1:
        scores = {", ".join(f"{found.score:.1%} (`{name}`)" for name, found in completeness.items())}
    num_open = len(find_open_types(environment.site_packages / package for package in PACKAGES.values()))
    num_types, num_failing = _count("must_pass", "assert_type("), _count("must_fail", "  # type: ignore[")
    *versions, last = PYTHON_VERSIONS
    text = (
        f"Everything is typed: {scores.pop()} of {num_symbols} public symbols by `pyright --verifytypes` on the built "
        f"wheels. {version_of('mypy')} in its strict mode and {version_of('pyright')} in its own agree on {num_types} "
        f"types and on {num_failing} lines that must fail, on Python {', '.join(versions)} and {last}. Public "
        f"signatures say `Any` or `object` in {num_open} places, each with [its reason](tests/typing/open_types.txt)."
    ).replace(".0%", " %")
    return "\n".join([*textwrap.wrap(text, width=115, break_on_hyphens=False), ""])


def written_scores() -> str:
    """Return what the page says.

    Raises:
        LookupError: It has no place for the scores.
    """
    found = BLOCK.search(PAGE.read_text())
    if found is None:
        message = f"{PAGE.name} has no lines that match {BLOCK.pattern}"
        raise LookupError(message)
    return found[0]


def without_counts(text: str) -> tuple[str, list[int]]:
    """Return a text in one line with its counts taken out, and these: percentages and versions stay."""
    counts = r"(?<=\s)\d+(?=\s(?:public|types|lines|places))"
    return " ".join(re.sub(counts, "N", text).split()), [int(count) for count in re.findall(counts, text)]


def _count(folder: str, text: str) -> int:
    return sum(path.read_text().count(text) for path in (TESTS / folder).glob("*.py"))


def write_scores(wheels: Mapping[str, Path], folder: Path) -> None:
    """Write the scores of wheels into the PAGE."""
    written_scores()  # no need to measure anything for a page without a place for it
    environment = TypedEnvironment.make(folder, wheels.values())
    completeness = {name: environment.completeness(package) for name, package in PACKAGES.items()}
    scores = describe_scores(completeness, environment)
    PAGE.write_text(BLOCK.sub(lambda _: scores, PAGE.read_text()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_scores(built_wheels(Path(name, "wheels")), Path(name, "environment"))
