"""The pictures are kept as files; they show what is drawn today, in colours for light and for dark pages."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs.pictures.__main__ import DRAWN, draw_all
from docs.pictures.curves import CURVES, svg_of_curve
from docs.pictures.drawing import STYLE

PICTURES = [*DRAWN.parent.glob("*.svg"), *DRAWN.iterdir()]


def test_kept_pictures_show_what_is_drawn_today(tmp_path: Path) -> None:
    """Else draw them again: `python -m docs.pictures`."""
    draw_all(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in DRAWN.iterdir()
    }


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_pictures_look_alike_and_are_on_a_page(picture: Path) -> None:
    """Those that are written by hand have the style of the drawn ones, and each is shown."""
    assert STYLE in picture.read_text()
    assert ET.parse(picture).getroot().get("viewBox", "").startswith("0 0 360 ")
    pages = [*DRAWN.parents[1].glob("*.md"), DRAWN.parents[2] / "README.md"]
    assert any(f"{picture.relative_to(DRAWN.parent).as_posix()}" in page.read_text() for page in pages)


def test_each_curve_is_drawn_where_a_page_names_it() -> None:
    """With two colours for each that a light page has, and with words as text, which keep their size."""
    pages = "".join(page.read_text() for page in DRAWN.parents[1].glob("*.md"))
    assert {*re.findall(r"^<!-- curve (\w+): ", pages, re.MULTILINE)} == {*CURVES}
    curve = svg_of_curve("wsd")
    assert "optimizer updates" in [element.text for element in ET.fromstring(curve).iter()]
    assert not re.search(r"(fill|stroke): #", curve)


def test_only_pictures_that_exist_can_be_drawn() -> None:
    """A name that is misspelt on a page is answered with those that there are."""
    with pytest.raises(ValueError, match=r"There is no curve 'histry'; there are .*history, "):
        svg_of_curve("histry")


def test_the_picture_of_the_distributions_says_what_they_require() -> None:
    """An arrow leads to each that a distribution declares, and that no other one brings along."""
    packages = DRAWN.parents[2] / "packages"
    declared = {path.parent.name: path.read_text() for path in packages.glob("*/pyproject.toml")}
    required = {
        name: set(re.findall(r'"(pa-[\w-]+)>=', text.partition("[project.optional-dependencies]")[0]))
        for name, text in declared.items()
    }
    arrows = re.findall(r"<title>(\S+) requires (\S+)</title>", (DRAWN.parent / "distributions.svg").read_text())
    assert {*arrows} == {
        (name, other) for name, those in required.items() for other in those.difference(*(required[a] for a in those))
    }
