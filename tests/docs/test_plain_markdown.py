"""Pages read well where a forge shows plain Markdown: links have texts and targets, and no markup of Sphinx shows."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import Page, all_pages

OF_DIRECTIVES = {
    "docs/changelog.md",
    "docs/index.md",
    "docs/maintainers/cost.md",
    "docs/maintainers/gpu.md",
    "docs/maintainers/decisions/index.md",
    "docs/maintainers/index.md",
}
"""Pages for the site; the reference, `docs/api`, is made of directives as well."""

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]*)\)")
_MARKUP = re.compile(r"\{[\w:-]+\}`|^\([\w-]+\)=$|^(?:`{3,}|:{3,})\{", re.MULTILINE)


def lines_of_prose(text: str) -> list[str]:
    """Return the lines of a page that are in no block of code, and those that begin a directive."""
    lines: list[str] = []
    end = ""
    for line in text.splitlines():
        fence = re.match(r" *(`{3,}|~{3,}|:{3,})(.*)", line)
        if end:
            end = "" if line.strip() == end else end
        elif fence:
            end = fence[1]
            lines += [line] if fence[2].startswith("{") else [""]
        else:
            lines.append(line)
    return lines


def prose_of(text: str) -> str:
    """Return a page without its blocks of code and its spans of code, which may show anything."""
    return re.sub(r"(?<![}`])(`+)(?![`{]).+?(?<!`)\1(?!`)", "code", "\n".join(lines_of_prose(text)), flags=re.DOTALL)


def places_in(text: str) -> set[str]:
    """Return the anchors that a forge gives to the headings of a page."""
    places: set[str] = set()
    counts: dict[str, int] = {}
    for line in lines_of_prose(text):
        if heading := re.match(r"#{1,6} (.+)$", line):
            shown = re.sub(r"[`*]", "", _LINK.sub(r"\1", heading[1])).strip().lower()
            place = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
            places.add(f"{place}-{counts[place]}" if counts.get(place) else place)
            counts[place] = counts.get(place, 0) + 1
    return places


def problems_of(page: Page) -> list[str]:
    """Return what a reader of the plain page would stumble over."""
    prose = prose_of(page.text)
    found = [f"{page}: markup of Sphinx, {one!r}" for one in _MARKUP.findall(prose)]
    for text, target in _LINK.findall(prose):
        path, _, place = target.partition("#")
        if not text:
            found.append(f"{page}: a link without a text, to {target}")
        if re.match(r"[a-z]+:", target):
            continue
        file = Path(os.path.normpath(page.path.parent / path)) if path else page.path
        if not file.exists():
            found.append(f"{page}: a link to nothing, {target}")
        elif place and file.suffix == ".md" and place not in places_in(file.read_text()):
            found.append(f"{page}: no heading has the anchor of {target}")
    return found


@pytest.mark.parametrize("page", all_pages(), ids=str)
def test_a_page_reads_well_as_plain_markdown(page: Page) -> None:
    """Links have texts and lead to files and headings that exist, and no role, label or directive shows."""
    if str(page) in OF_DIRECTIVES or str(page).startswith("docs/api/"):
        pytest.skip("made of directives, for the site alone")
    assert problems_of(page) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("see [](there.md)", "a link without a text, to there.md"),
        ("see [there](nowhere.md)", "a link to nothing, nowhere.md"),
        ("see [there](there.md#below)", "no heading has the anchor of there.md#below"),
        ("a {py:class}`pa_core.Trainer`", "markup of Sphinx, '{py:class}`'"),
        ("(label)=\n# Heading", "markup of Sphinx, '(label)='"),
        ("```{note}\nLook.\n```", "markup of Sphinx, '```{'"),
    ],
)
def test_what_a_reader_would_stumble_over_is_found(tmp_path: Path, text: str, problem: str) -> None:
    """Each kind of fault that plain Markdown has shown on a forge."""
    (tmp_path / "there.md").write_text("# There\n\n## A `name`, and more\n")
    page = tmp_path / "page.md"
    sound = "[there](there.md#a-name-and-more), `[](code)`\n\n```md\n[](nothing.md)\n```\n\n"
    assert problems_of(Page(page, sound)) == []
    assert problems_of(Page(page, sound + text)) == [f"page.md: {problem}"]


def test_the_readmes_lead_to_no_page_that_is_for_the_site_alone() -> None:
    """Whoever follows the links of a README on a forge finds pages that can be read there."""
    pages = {page.path: page for page in all_pages()}
    reached = [page for page in pages.values() if page.path.name == "README.md"]
    for page in reached:
        for _, target in _LINK.findall(prose_of(page.text)):
            other = pages.get(Path(os.path.normpath(page.path.parent / target.partition("#")[0])))
            if other is not None and other not in reached:
                reached.append(other)
    shown = {str(page) for page in reached}
    assert len(shown) > 30
    assert [name for name in shown if name.startswith("docs/api/") or name == "docs/index.md"] == []
