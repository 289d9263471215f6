"""Draws a picture twice, for light and for dark pages: `draw` of the module of its name writes both files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

__all__ = ["DrawnPicture", "draw_picture", "names_of_pictures"]

NOT_PICTURES = {"__main__", "digits", "drawing", "measured", "pairs"}


class DrawnPicture(NamedTuple):
    """The two files of a picture."""

    light: Path
    dark: Path


def names_of_pictures() -> list[str]:
    """What can be drawn: the modules beside this one that have a `draw`."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - NOT_PICTURES)


def draw_picture(name: str, folder: Path) -> DrawnPicture:
    """Draw a picture into a folder.

    Args:
        name: One of `names_of_pictures`.
        folder: Where `NAME-light.svg` and `NAME-dark.svg` are to be; it is made if it is missing.
    """
    if name not in names_of_pictures():
        message = f"There is no picture {name!r}; there are {', '.join(names_of_pictures())}."
        raise ValueError(message)
    draw: Callable[[Path, Path], None] = importlib.import_module(f"docs.pictures.{name}").draw
    drawn = DrawnPicture(folder / f"{name}-light.svg", folder / f"{name}-dark.svg")
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context():  # pyright: ignore[reportUnknownMemberType]  # matplotlib types it in part
        mpl.rcParams["svg.hashsalt"] = "docs"  # the same file each time
        draw(*drawn)
    return drawn
