"""A recorded terminal session as an animated SVG: its lines appear in the order and at the pace of the session."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal

__all__ = ["Line", "animate", "shorten_waits"]

_COLUMNS, _ROW = 48, 17
_WIDTH, _MARGIN, _TITLE_BAR = 360, 6, 34
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_COLOURS = {"command": "#f0f3f6", "output": "#b7c0cc", "signal": "#ff9492", "result": "#7ce38b"}


@dataclass(frozen=True)
class Line:
    """One line of a session.

    Attributes:
        seconds: When it appeared, counted from the start of the session.
        text: What it says; of a command, with its prompt.
        kind: What it is, which decides its colour.
    """

    seconds: float
    text: str
    kind: Literal["command", "output", "signal", "result"] = "output"


def shorten_waits(lines: Sequence[Line], longest: float, after_command: float) -> list[Line]:
    """Return the session with its waits shortened, so that nobody watches an import.

    Args:
        lines: The session.
        longest: What a longer wait becomes, in seconds.
        after_command: How long a command is seen before its output, at least.

    Example:
        >>> recorded = [Line(0.0, "$ python train.py", "command"), Line(4.0, "epoch 1"), Line(4.1, "epoch 2")]
        >>> [round(line.seconds, 1) for line in shorten_waits(recorded, longest=1.0, after_command=0.5)]
        [0.0, 1.0, 1.1]
    """
    seconds, shortened = 0.0, [Line(0.0, lines[0].text, lines[0].kind)]
    for before, line in pairwise(lines):
        shortest = after_command if before.kind == "command" or line.kind != "output" else 0.0
        seconds += max(min(line.seconds - before.seconds, longest), shortest)
        shortened.append(Line(seconds, line.text, line.kind))
    return shortened


def animate(lines: Sequence[Line], title: str, description: str, hold: float = 8.0) -> str:
    """Return the SVG: a terminal as wide as a phone, in which the lines appear, hold for a while, and begin again.

    Readers who prefer reduced motion, and programs that draw no animation, see the whole session.

    Args:
        lines: The session, from its first line at 0 seconds.
        title: What the window is called.
        description: What the picture shows, for those who do not see it.
        hold: How many seconds the last line stays before the session begins again.
    """
    duration = lines[-1].seconds + hold
    rules, texts, y = "", "", _TITLE_BAR + 8
    for number, line in enumerate(lines):
        if line.seconds:
            frames = f"0% {{ opacity: 0 }} {100 * line.seconds / duration:.2f}%, 100% {{ opacity: 1 }}"
            rules += f".l{number} {{ animation-name: a{number} }} @keyframes a{number} {{ {frames} }}\n"
        texts += f'<text class="l l{number}" fill="{_COLOURS[line.kind]}">'
        for row in textwrap.wrap(line.text, _COLUMNS, drop_whitespace=False):
            y += _ROW
            texts += f'<tspan x="{_MARGIN}" y="{y}">{escape(row)}</tspan>'
        texts += "</text>\n"
    height = y + 14
    dots = "".join(
        f'<circle cx="{18 + 18 * number}" cy="17" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH * 1.5:g}" \
height="{height * 1.5:g}" role="img" aria-label="{escape(description)}">
<title>{escape(description)}</title>
<style>
text {{ font: 12px {_FONT}; white-space: pre; }}
@media (prefers-reduced-motion: no-preference) {{
.l {{ animation-duration: {duration:g}s; animation-iteration-count: infinite; animation-timing-function: step-end; }}
{rules}}}
</style>
<rect width="100%" height="100%" rx="9" fill="#151b23"/>
<path d="M0 9 a9 9 0 0 1 9 -9 h{_WIDTH - 18} a9 9 0 0 1 9 9 v{_TITLE_BAR - 9} h-{_WIDTH} z" fill="#262c36"/>
{dots}
<text x="{_WIDTH - 12}" y="21" fill="#9198a1" text-anchor="end">{escape(title)}</text>
{texts}</svg>
"""
