"""The tree in which the gradients of an update are added up, and which process adds which nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from pa_core.tracking.plot_style import DARK, LIGHT, PlotStyle

__all__ = ["draw"]


@dataclass(frozen=True)
class Sum:
    """Gradients of one micro-batch or more: where they stand, who has them, and what they are the sum of."""

    label: str
    middle: int
    line: int
    process: int | None = None
    parts: tuple[Sum, ...] = ()


LEAVES = [Sum(str(index), 95 + 98 * index, 268, process=index // 3) for index in range(6)]
FIRST = Sum("0 + 1", 144, 206, 0, (LEAVES[0], LEAVES[1]))
LAST = Sum("4 + 5", 536, 206, 1, (LEAVES[4], LEAVES[5]))
ACROSS = Sum("2 + 3", 340, 142, None, (LEAVES[2], LEAVES[3]))
FOUR = Sum("0 ... 3", 242, 92, None, (FIRST, ACROSS))
ALL = Sum("0 ... 5", 389, 42, None, (FOUR, LAST))

WIDTH, HEIGHT, WIDE, HIGH, EXCHANGE = 680, 330, 76, 28, 174
WORDS = "system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


def draw(light: Path, dark: Path) -> None:
    """Draw the tree in both styles."""
    for path, style in ((light, LIGHT), (dark, DARK)):
        path.write_text(svg(style))


def svg(style: PlotStyle) -> str:
    """The whole picture."""
    sums = [*LEAVES, FIRST, LAST, ACROSS, FOUR, ALL]
    elements = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{style.ground}"/>',
        *(draw_block(process, style) for process in (0, 1)),
        f'<line x1="20" x2="660" y1="{EXCHANGE}" y2="{EXCHANGE}" stroke="{style.faint_text}" stroke-dasharray="2 4"/>',
        *(line for one in sums for line in draw_lines(one, style)),
        *(element for one in sums for element in draw_sum(one, style)),
        text(20, 30, "exchanged: process 0 adds up", style.faint_text),
        text(20, 46, "one half of the gradients,", style.faint_text),
        text(20, 62, "process 1 the other half", style.faint_text),
        *(
            text(193 + 294 * process, 310, f"process {process}: micro-batches {block}", style.text, "middle")
            for process, block in enumerate(("0, 1, 2", "3, 4, 5"))
        ),
    ]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    )
    return "\n".join([opening, f"<style>text {{ font: 13px {WORDS} }}</style>", *elements, "</svg>\n"])


def draw_block(process: int, style: PlotStyle) -> str:
    """The frame around what a process computes alone."""
    return (
        f'<rect x="{46 + 294 * process}" y="184" width="294" height="138" rx="7" fill="{style.curves[process]}"'
        f' fill-opacity="0.06" stroke="{style.curves[process]}" stroke-opacity="0.6"/>'
    )


def draw_lines(one: Sum, style: PlotStyle) -> Iterator[str]:
    """A line to each part."""
    for part in one.parts:
        yield (
            f'<line x1="{one.middle}" y1="{one.line}" x2="{part.middle}" y2="{part.line}" stroke="{style.faint_text}"/>'
        )


def draw_sum(one: Sum, style: PlotStyle) -> Iterator[str]:
    """A box in the colour of the process that has it, or in two halves."""
    left, top = one.middle - WIDE // 2, one.line - HIGH // 2
    yield f'<rect x="{left}" y="{top}" width="{WIDE}" height="{HIGH}" fill="{style.ground}"/>'
    for process in (0, 1) if one.process is None else (one.process,):
        width = WIDE // 2 if one.process is None else WIDE
        start = left + width * process if one.process is None else left
        yield (
            f'<rect x="{start}" y="{top}" width="{width}" height="{HIGH}" fill="{style.curves[process]}"'
            f' fill-opacity="0.25" stroke="{style.curves[process]}"/>'
        )
    yield text(one.middle, one.line + 5, one.label, style.text, "middle")


def text(left: int, line: int, words: str, colour: str, anchor: str = "start") -> str:
    """Some words, on a line."""
    return f'<text x="{left}" y="{line}" fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>'
