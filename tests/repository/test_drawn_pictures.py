"""The pictures are kept as files; they show what is drawn today."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from docs.pictures.drawing import draw_picture, names_of_pictures

DRAWN = Path(__file__).parents[2] / "docs" / "pictures" / "drawn"
CURVE = re.compile(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; stroke: (#\w+)')
OF_THE_WIDTH = 0.01


class Shown(NamedTuple):
    """What a reader of a picture sees: its words, and its curves with their colours."""

    words: list[str]
    curves: list[tuple[str, np.ndarray]]


def shown_in(picture: Path) -> Shown:
    """Read a picture that matplotlib drew: each text stands in a comment before its outlines."""
    svg = picture.read_text()
    points = [(colour, np.array(re.findall(r"[ML] (\S+) (\S+)", path), float)) for path, colour in CURVE.findall(svg)]
    return Shown(re.findall(r"<!-- (.*?) -->", svg), points)


def heights(points: np.ndarray) -> np.ndarray:
    """How high a curve is at each hundredth of its way, wherever its points are."""
    at: np.ndarray = np.interp(np.linspace(points[0, 0], points[-1, 0], 101), points[:, 0], points[:, 1])
    return at


@pytest.mark.parametrize("name", names_of_pictures())
def test_a_kept_picture_shows_what_is_drawn_today(name: str, tmp_path: Path) -> None:
    """Else draw them again: `python -m docs.pictures docs/pictures/drawn`."""
    for drawn in draw_picture(name, tmp_path):
        kept, now = shown_in(DRAWN / drawn.name), shown_in(drawn)
        assert kept.words == now.words
        assert [colour for colour, _ in kept.curves] == [colour for colour, _ in now.curves]
        for (_, before), (_, after) in zip(kept.curves, now.curves, strict=True):
            assert np.abs(before[[0, -1]] - after[[0, -1]]).max() < OF_THE_WIDTH * 700
            assert np.abs(heights(before) - heights(after)).max() < OF_THE_WIDTH * 700


def test_only_pictures_that_exist_can_be_drawn(tmp_path: Path) -> None:
    """A name that is misspelt is answered with those that there are."""
    with pytest.raises(ValueError, match="There is no picture 'histry'; there are cost, distributions, "):
        draw_picture("histry", tmp_path)
    assert {path.stem.rpartition("-")[0] for path in DRAWN.iterdir()} <= set(names_of_pictures())
