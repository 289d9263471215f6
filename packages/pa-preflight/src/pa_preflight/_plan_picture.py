"""The learning rates of a plan as a picture."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from pa_core import ConfigurationError
from pa_core.tracking.plot_style import plot_style


def draw_rates(curves: Mapping[str, Sequence[tuple[int, float]]], path: str | Path, *, dark: bool) -> Path:
    """Draw learning rates without matplotlib's global state, in the style of pa-schedulers.

    Args:
        curves: Updates and their rates, by the name of the parameter group.
        path: The file to save.
        dark: Whether it is for a dark page.
    """
    if not curves:
        raise ConfigurationError("The plan has no learning rates to draw; its notes say why.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, MaxNLocator
    except ImportError as error:
        raise ImportError(
            'Drawing a plan needs matplotlib. Install it with: pip install "pa-preflight[plot]"'
        ) from error
    style = plot_style(dark=dark)
    figure = Figure(figsize=(7.0, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (name, points), colour in zip(curves.items(), itertools.cycle(style.curves), strict=False):
        updates, rates = zip(*points, strict=True)
        axes.plot(updates, rates, color=colour, label=name)
    if len(curves) > 1:
        axes.legend(
            frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), labelcolor=style.text
        )
    axes.set_title("learning rate", loc="left")
    axes.set_xlabel("optimizer updates")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    style.dress(axes)
    return style.save(figure, path)
