"""What the documentation and the READMEs name is there, all of it, and what they install can be."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import pa_callbacks_extra
import pa_core
import pa_schedulers
from pa_core import DEFAULT_CALLBACKS, TrainerCallback

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("packages/*/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_file_of_the_repository_that_a_page_names_exists(page: Path) -> None:
    """Whoever follows the name of a file finds it."""
    text = page.read_text()
    named = {ROOT / name for name in re.findall(r"`((?:docs|examples|packages|tests|tools)/[\w./-]+)`", text)}
    if not page.is_relative_to(ROOT / "docs"):  # links of the other pages are checked by Sphinx
        named |= {page.parent / link for link in re.findall(r"\]\((?!http)([^)#]+)", text)}
    assert [path.relative_to(ROOT).as_posix() for path in sorted(named) if not path.exists()] == []


CALLBACKS = Path(__file__).parents[2] / "docs" / "callbacks.md"


def test_the_page_lists_each_callback_and_whether_it_is_a_default() -> None:
    """A callback that can be imported can be found on the page."""
    rows = re.findall(r"^\| `(\w+)` \|(?: (yes|no) \|)?", CALLBACKS.read_text(), re.MULTILINE)
    offered = {
        name: kind in DEFAULT_CALLBACKS
        for package in (pa_core, pa_callbacks_extra, pa_schedulers)
        for name in package.__all__
        if isinstance(kind := getattr(package, name), type) and issubclass(kind, TrainerCallback)
    }
    del offered["TrainerCallback"]
    assert {name: default == "yes" for name, default in rows if name.endswith("Callback")} == offered


READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]


def required_siblings(name: str) -> set[str]:
    """The distributions of this repository that one of them needs, directly or not."""
    project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
    direct = {found[0] for one in project["dependencies"] if (found := re.match(r"pa-[a-z-]+", one))}
    return direct.union(*map(required_siblings, direct))


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_a_line_that_installs_from_a_checkout_names_all_that_is_needed(readme: Path) -> None:
    """Nothing is published yet: pip finds a distribution that another one needs only if the same line names it."""
    lines = re.findall(r"pip install ((?:\"?\./packages/[^ `\n]+ ?)+)", readme.read_text())
    assert lines != []
    for line in lines:
        named = set(re.findall(r"\./packages/([a-z-]+|\*)", line))
        if "*" not in named:
            assert named.union(*map(required_siblings, named)) == named, line
    if readme.parent != ROOT:
        assert re.search(rf"\./packages/({readme.parent.name}\b|\*)", lines[0])


def test_the_lines_of_the_pages_that_install_from_a_checkout_name_all_that_is_needed() -> None:
    """As above, for a reader who is somewhere else than in the checkout."""
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    lines = re.findall(r"pip install .*/packages/.*", pages)
    assert len(lines) > 5
    for line in lines:
        braces = re.search(r"packages/pa-\{([a-z,]+)\}", line)
        inside = [] if braces is None else braces[1].split(",")
        named = {*re.findall(r"packages/(pa-[a-z-]*[a-z])", line), *(f"pa-{name}" for name in inside)}
        assert "/packages/*" in line or named.union(*map(required_siblings, named)) == named, line
