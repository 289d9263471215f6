"""The loop of a run, as the docstring of the trainer writes it down, and its events alone."""

from __future__ import annotations

import inspect
import re
from textwrap import wrap

from docs.pictures.drawing import WIDTH, Picture
from pa_core import Trainer

__all__ = ["draw_events", "draw_loop"]

ROW, INDENT = 18, 10


def draw_loop(picture: Picture) -> None:
    """Methods and events."""
    picture.text(8, 18, "methods of the trainer", "bold")
    picture.text(352, 18, "events of callbacks", "one bold end")
    add_lines(picture, 30, r"\w+_\w+")


def draw_events(picture: Picture) -> None:
    """The events alone."""
    add_lines(picture, 4, r"on_\w+")


def add_lines(picture: Picture, y: float, shown: str) -> None:
    """Draw a line for each name that matches, in boxes around what is repeated."""
    written = inspect.cleandoc(str(Trainer.__doc__))
    loop = re.findall(r"^ {4}( *)(.*)", written[written.index("::") : written.index("Args:")], re.MULTILINE)
    open_boxes: list[tuple[int, float]] = []
    for spaces, words in [*loop, ("", "")]:
        while open_boxes and len(spaces) <= open_boxes[-1][0]:
            inset = 4 + INDENT * len(open_boxes)
            picture.box(inset, open_boxes[-1][1], WIDTH - 2 * inset, y + 6 - open_boxes.pop()[1], "line faint")
            y += 5
        if words.endswith(":"):
            y += 7
            open_boxes.append((len(spaces), y))
            for line in wrap(words.removeprefix("for ").rstrip(":"), 34):
                y += 16
                picture.text(INDENT * len(open_boxes) + 12, y, line, "bold faint")
            continue
        for name in re.findall(rf"(?<!\w){shown}", words.rpartition("= ")[2]):
            is_event = name.startswith("on_")
            y += ROW
            picture.text(
                INDENT * len(open_boxes) + (24 if is_event else 12), y, name, f"code {'one' * is_event}".strip()
            )
