"""Where the time of a step goes: what torch does, and what the loop around it does."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.pictures.measured import COST_PAGE, cells
from pa_core.tracking.plot_style import PlotStyle, plot_style

__all__ = ["draw"]

LOOPS = {"by hand": "PyTorch by hand", "ours bare": "Trainer without callbacks", "ours": "Trainer"}
PARTS = {
    "torch: forward, loss, backward, update": ("forward pass, loss",),
    "sums, checks, events": ("after the forward pass", "after the loss", "after the backward pass", "after the update"),
    "fetching the next batch": ("after clearing gradients",),
}


def draw(light: Path, dark: Path) -> None:
    """Draw a bar for each loop, divided into what its time is spent on."""
    shares = shares_of_loops()
    for path, is_dark in ((light, False), (dark, True)):
        style = plot_style(dark=is_dark)
        figure = Figure(figsize=(9.4, 2.3), layout="constrained")
        draw_bars(figure.subplots(), shares, style)
        style.save(figure, path)


def shares_of_loops() -> dict[str, list[float]]:
    """The percents of the parts for each loop, from the table on the page about cost."""
    rows = cells(COST_PAGE)
    table = rows[next(place for place, row in enumerate(rows) if row[0] == "part of the step") :]
    columns = {name: table[0].index(name) for name in LOOPS}
    return {
        name: [
            sum(next(float(row[column]) for row in table if row[0].startswith(begin)) for begin in begins)
            for begins in PARTS.values()
        ]
        for name, column in columns.items()
    }


def draw_bars(axes: Axes, shares: dict[str, list[float]], style: PlotStyle) -> None:
    """Draw the parts of each bar one after the other, each with its figure, and a legend above them."""
    colours = (style.faint_text, style.curves[1], style.curves[0])
    begins = [0.0] * len(shares)
    for number, (part, colour) in enumerate(zip(PARTS, colours, strict=True)):
        widths = [of_loop[number] for of_loop in shares.values()]
        faint = 0.45 if number == 0 else 1.0
        axes.barh(list(LOOPS.values()), widths, left=begins, height=0.62, color=colour, alpha=faint, label=part)
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    for place, end in enumerate(begins):
        axes.annotate(
            f"{end:.0f} %",
            (end, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=style.text,
        )
    axes.legend(
        frameon=False, fontsize=9, ncols=3, loc="lower left", bbox_to_anchor=(-0.01, 1.0), labelcolor=style.text
    )
    axes.invert_yaxis()
    axes.set_xlabel("percent of a step by hand")
    axes.set_xlim(0, 108)
    style.dress(axes)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
