"""Pictures as SVG: one file for light and for dark pages, as wide as a phone, with text of 12 pixels."""

from __future__ import annotations

from math import atan2, degrees
from xml.sax.saxutils import escape

from pa_core.tracking.plot_style import DARK, LIGHT

__all__ = ["WIDTH", "Picture", "both_colours"]

WIDTH = 360
ROW = 16
WORDS = "system-ui,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif"
CODE = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
COLOURS = {
    "ground": (LIGHT.ground, DARK.ground),
    "ink": (LIGHT.text, DARK.text),
    "faint": (LIGHT.faint_text, DARK.faint_text),
    **dict(zip(("one", "two", "three", "four"), zip(LIGHT.curves, DARK.curves, strict=True), strict=False)),
}


def both_colours(attribute: str, light: str, dark: str) -> str:
    """A declaration for light and dark pages, after that of the light ones for programs that know no other."""
    return f"{attribute}:{light};{attribute}:light-dark({light},{dark})"


STYLE = "\n".join(
    [
        "svg:root{color-scheme:light dark}",  # within a page, the page says which it is
        f".drawing text{{font:12px {WORDS};stroke-width:0}}",
        f".drawing .code{{font-family:{CODE};white-space:pre}}.drawing .bold{{font-weight:600}}",
        ".drawing .middle{text-anchor:middle}.drawing .end{text-anchor:end}",
        *(
            f".drawing .{name}{{{both_colours('fill', *c)};{both_colours('stroke', *c)}}}"
            for name, c in COLOURS.items()
        ),
        ".drawing rect{fill-opacity:.16}.drawing .ground,.drawing .solid{fill-opacity:1;stroke-width:0}",
        ".drawing .line{fill:none}.drawing .dotted{fill:none;stroke-dasharray:2 3}",
    ]
)


class Picture:
    """Shapes and words, from top to bottom; as high as what is drawn needs."""

    def __init__(self) -> None:
        self._elements: list[str] = []
        self._bottom = 0.0

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Write words on a line; `kind` may have a colour, `code`, `bold`, `middle` and `end`."""
        colour = "" if {*kind.split()} & {*COLOURS} else "ink "
        self._elements.append(f'<text x="{x:g}" y="{y:g}" class="{(colour + kind).strip()}">{escape(words)}</text>')
        self._bottom = max(self._bottom, y + 8)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "faint", *lines: str) -> None:
        """Draw a rectangle, with lines in its middle."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._elements.append(f'<rect {place} rx="3" class="{kind}"/>')
        first = y + height / 2 + 4 - ROW / 2 * (len(lines) - 1)
        for number, words in enumerate(lines):
            self.text(x + width / 2, first + ROW * number, words, "middle")
        self._bottom = max(self._bottom, y + height + 4)

    def line(self, *points: tuple[float, float], kind: str = "faint", tip: bool = False) -> None:
        """Draw a line, with the tip of an arrow at its end."""
        way = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._elements.append(f'<path d="M{way}" class="line {kind}"/>')
        if tip:
            (x, y), (before_x, before_y) = points[-1], points[-2]
            turn = f"translate({x:g} {y:g}) rotate({degrees(atan2(y - before_y, x - before_x)):.0f})"
            self._elements.append(
                f'<path d="M0 0l-7-3.5v7z" transform="{turn}" class="{kind.rsplit(maxsplit=1)[-1]}"/>'
            )
        self._bottom = max(self._bottom, *(y + 4 for _, y in points))

    def svg(self) -> str:
        """The file."""
        size = f'viewBox="0 0 {WIDTH} {self._bottom:g}" width="440" height="{self._bottom * 440 / WIDTH:g}"'
        ground = f'<rect width="{WIDTH}" height="{self._bottom:g}" class="ground"/>'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="drawing" role="img">'
        return "\n".join([opening, f"<style>{STYLE}</style>", ground, *self._elements, "</svg>\n"])
