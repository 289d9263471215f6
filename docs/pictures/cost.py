"""What a step costs with several trainers, as multiples of a loop by hand."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.pictures.measured import Compared, compared
from pa_core.tracking.plot_style import PlotStyle, plot_style

__all__ = ["draw"]

PANELS = {
    "a step, data in memory": "data in memory",
    "a step, augmented images, two workers": "augmented images",
    "a step, transformer, four batches in an update": "transformer",
}
NAMES = {
    "ours": "Trainer of pa-core",
    "by hand": "PyTorch by hand",
    "by accelerate": "accelerate by hand",
    "ignite": "Ignite",
    "transformers": "transformers",
    "pytorch accelerated": "pytorch-accelerated",
    "lightning": "Lightning",
}


def draw(light: Path, dark: Path) -> None:
    """Draw a bar for each trainer in a panel for each task."""
    for path, is_dark in ((light, False), (dark, True)):
        style = plot_style(dark=is_dark)
        figure = Figure(figsize=(9.4, 2.9), layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
        for axes, (comparison, title) in zip(panels, PANELS.items(), strict=True):
            measured = {figures.variant: figures for figures in compared(comparison)}
            draw_bars(axes, [measured[variant] for variant in NAMES], title, style)
        figure.supxlabel("time of a step; 1 is PyTorch by hand", fontsize=9, color=style.text)
        style.save(figure, path)


def draw_bars(axes: Axes, measured: list[Compared], title: str, style: PlotStyle) -> None:
    """Draw the median of each trainer as a bar with its figure, and its range as a line."""
    ours, others = style.curves[0], style.faint_text
    for place, figures in enumerate(measured):
        is_ours = figures.variant == "ours"
        axes.barh(place, figures.median, height=0.66, color=ours if is_ours else others, alpha=1 if is_ours else 0.45)
        axes.plot([figures.least, figures.most], [place, place], color=style.text, linewidth=1)
        axes.annotate(
            f"{figures.median:.2f}",
            (max(figures.median, figures.most), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=style.text,
            fontweight="bold" if is_ours else "normal",
        )
    axes.axvline(1, color=style.text, linewidth=0.8, linestyle=(0, (3, 3)), alpha=0.6, zorder=0.5)
    axes.set_title(title, loc="left")
    axes.set_yticks(range(len(measured)), list(NAMES.values()))
    axes.invert_yaxis()
    axes.margins(x=0.16)
    style.dress(axes)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
