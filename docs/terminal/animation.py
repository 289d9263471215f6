"""A recorded terminal session as an animated SVG: its lines appear in the order and at the pace of the session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

__all__ = ["Line", "animate", "shorten_waits"]

_CHARACTER, _ROW = 8.0, 20
_MARGIN, _TITLE_BAR = 16, 34
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
    shortened: list[Line] = []
    for line in lines:
        if not shortened:
            shortened.append(Line(0.0, line.text, line.kind))
            continue
        recorded_before = lines[len(shortened) - 1]
        shortest = after_command if recorded_before.kind == "command" or line.kind != "output" else 0.0
        wait = max(min(line.seconds - recorded_before.seconds, longest), shortest)
        shortened.append(Line(shortened[-1].seconds + wait, line.text, line.kind))
    return shortened


def animate(lines: Sequence[Line], title: str, description: str, hold: float = 8.0) -> str:
    """Return the SVG: a terminal window in which the lines appear, hold for a while, and begin again.

    Readers who prefer reduced motion, and programs that draw no animation, see the whole session.

    Args:
        lines: The session, from its first line at 0 seconds.
        title: What the window is called.
        description: What the picture shows, for those who do not see it.
        hold: How many seconds the last line stays before the session begins again.
    """
    width = 2 * _MARGIN + _CHARACTER * max(len(line.text) for line in lines)
    height = _TITLE_BAR + 2 * _MARGIN + _ROW * len(lines)
    duration = lines[-1].seconds + hold
    rules = "".join(_appearance(number, line.seconds / duration) for number, line in enumerate(lines))
    texts = "\n".join(
        f'<text class="l l{number}" x="{_MARGIN}" y="{_TITLE_BAR + _MARGIN + _ROW * number + 14}" '
        f'fill="{_COLOURS[line.kind]}">{escape(line.text)}</text>'
        for number, line in enumerate(lines)
    )
    dots = "".join(
        f'<circle cx="{18 + 18 * number}" cy="17" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" \
height="{height}" role="img" aria-label="{escape(description)}">
<title>{escape(description)}</title>
<style>
text {{ font: 13.3px {_FONT}; white-space: pre; }}
@media (prefers-reduced-motion: no-preference) {{
.l {{ animation-duration: {duration:g}s; animation-iteration-count: infinite; animation-timing-function: step-end; }}
{rules}}}
</style>
<rect width="100%" height="100%" rx="9" fill="#151b23"/>
<path d="M0 9 a9 9 0 0 1 9 -9 h{width - 18:g} a9 9 0 0 1 9 9 v{_TITLE_BAR - 9} h-{width:g} z" fill="#262c36"/>
{dots}
<text x="50%" y="21" fill="#9198a1" text-anchor="middle">{escape(title)}</text>
{texts}
</svg>
"""


def _appearance(number: int, share: float) -> str:
    """The rules that show a line after a share of the whole time."""
    if share == 0:
        return ""
    frames = f"0% {{ opacity: 0 }} {100 * share:.2f}% {{ opacity: 1 }} 100% {{ opacity: 1 }}"
    return f".l{number} {{ animation-name: a{number} }} @keyframes a{number} {{ {frames} }}\n"
