"""The frame of the plots of this package: a pair of axes, with the legend above them."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

from typing import TYPE_CHECKING

from pa_core.tracking.plot_style import PlotStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def single_axes(drawn: str) -> tuple[Figure, Axes]:
    """Return a figure with a single pair of axes, without matplotlib's global state.

    Args:
        drawn: The name of the drawing, for the message where matplotlib is missing.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f'Drawing a {drawn} needs matplotlib. Install it with: pip install "pa-schedulers[plot]"'
        ) from error
    figure = Figure(figsize=(7.0, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def legend_above(axes: Axes, style: PlotStyle, columns: int) -> None:
    """Place the legend above the axes, where it covers no curve."""
    axes.legend(
        frameon=False, fontsize=9, ncols=columns, loc="lower right", bbox_to_anchor=(1.0, 1.0), labelcolor=style.text
    )
