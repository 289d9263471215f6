"""The style of the pictures of all distributions: colors for light and dark pages, axes, and saving."""

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
    """The colors of a picture, for light or dark pages, and functions to apply them to matplotlib.

    ``plot_style(dark=...)`` returns it. Use it for pictures that should match the pictures of the library. The colors
    of the curves are distinguishable with the common kinds of color blindness (Okabe and Ito, 2008), and the first four
    have a contrast of 3 to 1 or more with the background (WCAG 2.2, 1.4.11).

    Attributes:
        ground: The color of the background, as "#rrggbb", like all colors here.
        text: The color of titles and labels.
        faint_text: The color of tick labels and spines.
        grid: The color of the grid lines.
        curves: The seven colors of the curves, in the order of use.

    Example::

        from matplotlib import pyplot
        from pa_core.tracking.plot_style import plot_style

        style = plot_style(dark=True)
        figure, axes = pyplot.subplots()
        axes.plot([1, 2, 3], [0.9, 0.5, 0.4], color=style.curves[0])
        axes.set_title("loss", loc="left")
        style.dress(axes)
        style.save(figure, "loss.png")
    """

    ground: str
    text: str
    faint_text: str
    grid: str
    curves: tuple[str, ...]

    def dress(self, axes: Axes) -> None:
        """Apply the colors of the style to matplotlib axes, add a faint grid, and hide the top and right spines.

        The background, title, axis labels, tick labels, grid and spines get the colors and sizes of the style. Curves
        and a legend keep their colors, so pass ``color=style.curves[0]``, ``color=style.curves[1]`` and so on when you
        draw curves. Call this after you have set titles and labels, and before ``save``.

        Args:
            axes: The axes, which are changed in place.

        Example::

            from matplotlib import pyplot
            from pa_core.tracking.plot_style import plot_style

            style = plot_style(dark=False)
            figure, axes = pyplot.subplots()
            axes.plot([1, 2, 3], [0.9, 0.5, 0.4], color=style.curves[0])
            style.dress(axes)
            style.save(figure, "loss.png")
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
        """Save a figure on the background color, at 150 dots per inch.

        The file is written atomically, so it never has half of a picture. See the example in `PlotStyle`.

        Args:
            figure: The matplotlib figure.
            path: The file, which is replaced if it exists. Missing folders are created. The suffix determines the
                format, for example ".svg"; without a suffix, it is PNG.

        Returns:
            The path of the file.

        Raises:
            ValueError: matplotlib cannot write the format of the suffix.
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
"""The `PlotStyle` for light pages: dark text on white. ``plot_style(dark=False)`` returns it."""

DARK = PlotStyle(
    ground="#131416",
    text="#ffffff",
    faint_text="#b8bcc2",
    grid="#303236",
    curves=("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#ffffff"),
)
"""The `PlotStyle` for dark pages: light text on near-black. ``plot_style(dark=True)`` returns it."""


def plot_style(*, dark: bool) -> PlotStyle:
    """Return the colors for dark or light pages, to draw your own pictures in the style of the library.

    See the example in `PlotStyle`.

    Args:
        dark: True for light text on a dark background, False for dark text on white.

    Returns:
        The constant ``DARK`` or ``LIGHT``, a `PlotStyle`.

    Example:
        >>> from pa_core.tracking.plot_style import plot_style
        >>> plot_style(dark=True).ground, plot_style(dark=False).ground
        ('#131416', '#ffffff')
    """
    return DARK if dark else LIGHT
