"""Plotting the metrics of a run."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from pa_core.errors import ConfigurationError
from pa_core.tracking import InMemoryRunHistory, MetricRecord, RunHistory
from pa_core.tracking.plot_style import PlotStyle, plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PlotAxis: TypeAlias = Literal["epoch", "update", "samples", "seconds"]

_AXIS_LABELS: dict[PlotAxis, str] = {
    "epoch": "epoch",
    "update": "optimizer updates",
    "samples": "training samples",
    "seconds": "seconds since the start",
}
_PHASES = ("train", "eval", "evaluation", "val", "valid", "validation", "test")
_LOSS_OF_SET = re.compile(r"(eval_\w+)_loss_epoch")
_COLUMNS = 3
_MARKED_POINTS = 50  # with more points, markers would hide the line


_Curve: TypeAlias = tuple[list[float], list[float]]
_Panels: TypeAlias = dict[str, dict[str, _Curve]]


def plot_run_history(
    history: RunHistory,
    path: str | Path,
    metrics: Sequence[str] | None = None,
    x: PlotAxis = "epoch",
    *,
    dark: bool = False,
) -> Path:
    """Plot the recorded metrics of a run, for example its loss curves, and save the picture.

    You call it after a run with ``trainer.run_history``, on one process. The training and evaluation values of a
    quantity, for example ``train_loss_epoch``, ``eval_loss_epoch`` and the ``eval_val_loss_epoch`` of an evaluation
    set, share a panel. It needs matplotlib (``pip install "pa-core[plot]"``), and does not change its global state. For
    your own plots, ``InMemoryRunHistory.to_dict`` returns the values.

    Args:
        history: The history of a trainer, an instance of ``InMemoryRunHistory`` or of a class derived from it.
        path: The file of the picture; its suffix determines the format, which is PNG without a suffix. Missing folders
            are created, and an existing file is replaced.
        metrics: The full names of the metrics to draw; None, the default, draws all. Values that are not numbers are
            left out.
        x: The unit of the x axis: "epoch", the default, "update" (optimizer updates), "samples" (of all processes) or
            "seconds". Several values of the same epoch are spread over the epoch.
        dark: Whether to draw on a dark background, for dark pages or slides. The default, False, suits paper.

    Returns:
        The path of the picture.

    Raises:
        ImportError: matplotlib is not installed.
        ConfigurationError: ``x`` is unknown, nothing was recorded, or the history is of another class, which does not
            record positions.
        MetricNotFoundError: A metric of ``metrics`` was never recorded.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pa_core import InMemoryRunHistory, plot_run_history
        >>> history = InMemoryRunHistory()
        >>> for epoch in (1, 2, 3):
        ...     history.clock.epoch = epoch
        ...     history.update_metric("train_loss_epoch", 1 / epoch)
        ...     history.update_metric("eval_loss_epoch", 1.1 / epoch)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_run_history(history, Path(folder, "losses.png")).name
        'losses.png'
    """
    if x not in get_args(PlotAxis):
        raise ConfigurationError(f"x must be one of {', '.join(map(repr, get_args(PlotAxis)))}, got {x!r}.")
    panels = _panels(_records(history, metrics), x)
    style = plot_style(dark=dark)
    return style.save(_draw(panels, x, style), path)


def _records(history: RunHistory, metrics: Sequence[str] | None) -> dict[str, list[MetricRecord]]:
    """Return the records to draw, by metric."""
    if not isinstance(history, InMemoryRunHistory):
        raise ConfigurationError(
            f"A {type(history).__name__} cannot be drawn. Derive your history from InMemoryRunHistory."
        )
    names: Iterable[str] = history.get_metric_names() if metrics is None else metrics
    if isinstance(names, str):
        names = [names]
    records = {name: of_metric for name in names if (of_metric := history.records(name))}
    if not records:
        raise ConfigurationError(
            f"No values to draw in {len(history.get_metric_names())} recorded metrics with metrics={metrics!r}. "
            "Draw after a run, before the history is reset."
        )
    return records


def _panels(records: Mapping[str, list[MetricRecord]], x: PlotAxis) -> _Panels:
    """Sort the metrics into panels by quantity, and into series by the measured data and model."""
    panels: defaultdict[str, dict[str, _Curve]] = defaultdict(dict)
    # "ema_model_eval_loss_epoch" is the quantity "loss" of the series "ema_model eval". The longest name of a set
    # counts; if a single dataset was evaluated, "eval_my_loss_epoch" is another loss of it.
    sets = [match[1] for match in map(_LOSS_OF_SET.fullmatch, records) if match and "eval_loss_epoch" not in records]
    phases = "|".join((*sorted(sets, key=len, reverse=True), *_PHASES))
    phased_name = re.compile(rf"(?:(?P<prefix>.+?)_)??(?P<phase>{phases})_(?P<quantity>.+?)(?:_epoch)?")
    for name, of_metric in records.items():
        match = phased_name.fullmatch(name)
        quantity = match["quantity"] if match else name.removesuffix("_epoch")
        series = " ".join(filter(None, (match["prefix"], match["phase"]))) if match else name
        curve = _positions(of_metric, x), [record.value for record in of_metric]
        panels[quantity.replace("_", " ")][series.replace("_", " ")] = curve
    return panels


def _positions(records: Sequence[MetricRecord], x: PlotAxis) -> list[float]:
    if x != "epoch":
        return [getattr(record, x) for record in records]
    # the k-th of n values of an epoch stands at k/n of it, and so the last value at the end of the epoch
    groups = [[*group] for _, group in itertools.groupby(records, lambda record: record.epoch)]
    return [of[0].epoch - 1 + index / len(of) for of in groups for index in range(1, len(of) + 1)]


def _draw(panels: _Panels, x: PlotAxis, style: PlotStyle) -> Figure:
    """Return a figure with a panel for each quantity."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
        from matplotlib.ticker import EngFormatter, MaxNLocator
    except ImportError as error:
        raise ImportError(
            'Drawing a run history needs matplotlib. Install it with: pip install "pa-core[plot]"'
        ) from error
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(1.0 + 4.2 * columns, 0.3 + 3.0 * rows), layout=layout)
    FigureCanvasAgg(figure)
    for index, (quantity, series) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, index, sharex=figure.axes[0] if index > 1 else None)
        _draw_panel(axes, quantity, series, style)
        axes.set_xlabel(_AXIS_LABELS[x])
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=x != "seconds"))
        if x != "epoch":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        style.dress(axes)
    return figure


def _draw_panel(axes: Axes, quantity: str, series: Mapping[str, _Curve], style: PlotStyle) -> None:
    """Draw the curves of a quantity."""
    kept: dict[str, str] = dict(zip(("train", "eval"), style.curves, strict=False))  # the same colours in each panel
    others = itertools.cycle(style.curves[len(kept) :])
    for label, (positions, values) in series.items():
        colour = kept.get(label) or next(others)
        marker = "o" if len(positions) <= _MARKED_POINTS else ""
        axes.plot(positions, values, label=label, color=colour, marker=marker, markersize=3.5)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=9, labelcolor=style.text)
    elif quantity not in series:
        quantity = f"{next(iter(series))} {quantity}"
    axes.set_title(quantity, loc="left")
