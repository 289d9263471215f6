"""The style of the pictures of all distributions: colours for light and dark pages, axes, and saving."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pa_checkpoint import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DARK", "LIGHT", "PlotStyle", "plot_style"]


class PlotStyle(NamedTuple):
    """The colours of a picture, for light or dark pages; ``plot_style`` returns it.

    The colours of the curves are distinguishable with the common kinds of colour blindness (Okabe and Ito, 2008), and
    the first four have a contrast of 3 to 1 or more with the background (WCAG 2.2, 1.4.11).

    Example:
        >>> plot_style(dark=False).ground, plot_style(dark=True).ground
        ('#ffffff', '#131416')
    """

    ground: str
    text: str
    faint_text: str
    grid: str
    curves: tuple[str, ...]

    def dress(self, axes: Axes) -> None:
        """Apply the colours and a faint grid to axes, and hide two of the four spines.

        Call it after the titles and the labels are set.

        Args:
            axes: The axes of matplotlib, which are changed.
        """
        axes.set_facecolor(self.ground)
        axes.title.set_color(self.text)
        for side in ("left", "center", "right"):
            axes.set_title(axes.get_title(side), loc=side, fontsize=11, color=self.text)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set(color=self.text, fontsize=9)
        axes.tick_params(labelsize=9, colors=self.faint_text)
        axes.grid(color=self.grid, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(self.faint_text)

    def save(self, figure: Figure, path: str | Path) -> Path:
        """Save a picture atomically, as PNG unless the suffix says otherwise; missing folders are created.

        Args:
            figure: The figure of matplotlib.
            path: The file, which is replaced if it exists.

        Returns:
            The path.
        """
        path = Path(path)
        picture_format = path.suffix.removeprefix(".") or "png"
        atomic_write(path, lambda file: figure.savefig(file, format=picture_format, dpi=150, facecolor=self.ground))
        return path


LIGHT = PlotStyle(
    ground="#ffffff",
    text="#000000",
    faint_text="#444444",
    grid="#e6e6e6",
    curves=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
)
"""Colours on white."""

DARK = PlotStyle(
    ground="#131416",
    text="#ffffff",
    faint_text="#b8bcc2",
    grid="#303236",
    curves=("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#ffffff"),
)
"""Colours on a dark ground."""


def plot_style(*, dark: bool) -> PlotStyle:
    """Return the style for dark or for light pages, for your own pictures.

    Args:
        dark: True for light text on a dark background.

    Example:
        >>> plot_style(dark=True).ground
        '#131416'
    """
    return DARK if dark else LIGHT
