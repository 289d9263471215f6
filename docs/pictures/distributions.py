"""How the distributions stand on each other: arrows point to what pip installs with one, as its pyproject.toml says."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_core.tracking.plot_style import PlotStyle, plot_style

__all__ = ["draw"]

PACKAGES = Path(__file__).parents[2] / "packages"
ROWS = [
    ["pa-compat"],
    ["pa-callbacks-extra", "pa-preflight", "pa-schedulers"],
    ["pa-core", "pa-trial"],
    ["pa-checkpoint", "pa-data", "pa-finetuning"],
    ["pa-distributed"],
]
"""From top to bottom; what stands alone for users is at the bottom."""
HALF_HEIGHT, FARTHEST = 0.2, 0.35
"""Where arrows begin and end: above or below the middle of a box, and beside it."""


def draw(light: Path, dark: Path) -> None:
    """Draw a box for each distribution, and an arrow to each that it requires and that no other one brings along."""
    required = {name: requirements_of(name) for row in ROWS for name in row}
    for path, is_dark in ((light, False), (dark, True)):
        style = plot_style(dark=is_dark)
        figure = Figure(figsize=(9.4, 4.2), layout="constrained")
        draw_boxes(figure.subplots(), required, style)
        style.save(figure, path)


def requirements_of(name: str) -> set[str]:
    """The distributions of ours that one declares as its dependencies."""
    lines = (PACKAGES / name / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[0]
    return set(re.findall(r'"(pa-[\w-]+)>=', lines))


def draw_boxes(axes: Axes, required: dict[str, set[str]], style: PlotStyle) -> None:
    """Draw the rows, each in the middle."""
    places = {
        name: (2.2 * (column - (len(row) - 1) / 2), 1.2 * -depth)
        for depth, row in enumerate(ROWS)
        for column, name in enumerate(row)
    }
    for name, (x, y) in places.items():
        brought = set[str]().union(*(required[one] for one in required[name]))
        for one in sorted(required[name] - brought):
            below_x, below_y = places[one]
            beside = max(-FARTHEST, min(FARTHEST, 0.25 * (below_x - x)))
            axes.annotate(
                "",
                (below_x - beside, below_y + HALF_HEIGHT),
                xytext=(x + beside, y - HALF_HEIGHT),
                arrowprops={"arrowstyle": "-|>", "color": style.faint_text, "shrinkA": 0, "shrinkB": 0},
            )
        colour = style.curves[0] if name == "pa-core" else style.faint_text
        axes.text(
            x,
            y,
            name,
            ha="center",
            va="center",
            fontsize=11,
            color=style.text,
            bbox={"boxstyle": "round,pad=0.5", "facecolor": style.ground, "edgecolor": colour, "linewidth": 1.4},
        )
    axes.set_xlim(-4.4, 4.4)
    axes.set_ylim(-4.1, 0.5)
    axes.set_axis_off()
