"""How costs grow with the size of a run, in curves: their figures are from `python -m benchmarks.growth --write`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.pictures.drawing import Picture

__all__ = [
    "draw_growth_callbacks",
    "draw_growth_parameters",
    "draw_growth_processes",
    "draw_growth_samples",
    "draw_growth_steps",
]

FIGURES = Path(__file__).with_name("growth.json")
LEFT, RIGHT, TOP, BOTTOM = 36, 252, 34, 144
COLOURS = ("one", "two", "three")
NAMES = {
    "0 ms": "no delay",
    "silent": "no event",
    "listening": "one event",
    "ours over by hand": "",
}
TOPS = tuple(digit * 10.0**power for power in range(-1, 6) for digit in (1, 1.5, 2, 3, 5))


def draw_growth_processes(picture: Picture) -> None:
    """A curve for each delay of the network."""
    _draw(picture, "processes", "Time of a step, relative to plain PyTorch", "processes, by the delay of a packet")


def draw_growth_parameters(picture: Picture) -> None:
    """A step with ever larger networks."""
    _draw(picture, "parameters", "Time of a step, relative to plain PyTorch", "parameters of the network")


def draw_growth_samples(picture: Picture) -> None:
    """The first batch of an epoch, and of its second half."""
    _draw(picture, "samples", "Milliseconds to a first batch, shuffled", "samples, from the start or the middle")


def draw_growth_callbacks(picture: Picture) -> None:
    """An update with callbacks that implement nothing, and with those that do."""
    _draw(picture, "callbacks", "Microseconds of an update", "callbacks that implement no event, or one")


def draw_growth_steps(picture: Picture) -> None:
    """A step of a run with ever longer epochs."""
    _draw(picture, "steps", "Time of a run, relative to plain PyTorch", "steps in an epoch")


def _draw(picture: Picture, what: str, title: str, sizes: str) -> None:
    """A curve for each variant: the medians of the rounds, and their ranges as lines."""
    curves: dict[str, list[dict[str, Any]]] = json.loads(FIGURES.read_text())[what]["curves"]
    points = next(iter(curves.values()))
    highest = max(point["most"] for curve in curves.values() for point in curve)
    is_ratio = "medians" in points[0]
    top = next(top for top in TOPS if top >= (max(highest, 1.5) if is_ratio else highest))

    def height(figure: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * figure / top

    picture.text(8, 18, title, "bold")
    for figure in (0, top / 2, top):
        picture.line((LEFT, height(figure)), (RIGHT, height(figure)), kind="dotted faint")
        picture.text(LEFT - 6, height(figure) + 4, f"{figure:,g}", "faint end")
    if is_ratio:
        picture.line((LEFT, height(1)), (RIGHT, height(1)), kind="ink")
    places = [LEFT + 12 + (RIGHT - LEFT - 24) * number / (len(points) - 1) for number in range(len(points))]
    for x, point in zip(places, points, strict=True):
        picture.text(x, BOTTOM + 18, _short(point["size"]), "faint middle")
    picture.text((LEFT + RIGHT) / 2, BOTTOM + 36, sizes, "faint middle")
    lowest_name = BOTTOM + 100.0
    for (name, curve), colour in sorted(
        zip(curves.items(), COLOURS, strict=False), key=lambda one: one[0][1][-1]["median"]
    ):
        ends = [(x, height(point["median"])) for x, point in zip(places, curve, strict=True)]
        picture.line(*ends, kind=colour)
        for (x, y), point in zip(ends, curve, strict=True):
            picture.line((x, height(point["least"])), (x, height(point["most"])), kind=colour)
            picture.box(x - 2.5, y - 2.5, 5, 5, f"{colour} solid")
        lowest_name = min(ends[-1][1] + 4, lowest_name - 14)
        last = curve[-1]["median"]
        said = f"{last:.2f}" if last < 10 else f"{last:,.0f}"  # noqa: PLR2004  # three digits
        picture.text(RIGHT + 4, lowest_name, f"{NAMES.get(name, name)} {said}".strip(), colour)


def _short(size: int) -> str:
    """A number of at most four characters."""
    for unit, sign in ((1_000_000, "M"), (1_000, "k")):
        if size >= unit:
            return f"{size // unit:,}{sign}"
    return str(size)
