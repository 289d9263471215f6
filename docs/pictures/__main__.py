"""Draws what follows from code and figures into files: `python -m docs.pictures`."""

from __future__ import annotations

from pathlib import Path

from docs.pictures import bars, diagrams, growth, loop
from docs.pictures.drawing import Picture

__all__ = ["DRAWN", "draw_all"]

DRAWN = Path(__file__).with_name("drawn")


def draw_all(folder: Path) -> None:
    """Write a file for each function `draw_NAME`."""
    for name, draw in {**vars(bars), **vars(diagrams), **vars(growth), **vars(loop)}.items():
        if name.startswith("draw_"):
            picture = Picture()
            draw(picture)
            (folder / f"{name.removeprefix('draw_')}.svg").write_text(picture.svg())


if __name__ == "__main__":
    draw_all(DRAWN)
