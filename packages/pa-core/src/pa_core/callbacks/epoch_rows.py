"""The rows of a table that grows by a row each epoch, formatted in 80 columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pa_core.tracking.metric_values import is_loss

WIDTH = 80
_GAP = 2
_NARROWEST = 7
_NARROWEST_STACKED = 6  # the gap has room for a mark
_SMALLEST_FIXED, _LARGEST_FIXED, _DIGITS = 1e-3, 1e6, 5
_TEN_SECONDS, _MINUTE, _HOUR = 10, 60, 3600
_NO_DECIMALS_FROM = 100


class _Column(NamedTuple):
    """A column; its title has an upper part if the header has two lines."""

    title: str
    width: int
    above: str = ""


class EpochRows:
    """Formats rows under a header, which is repeated if a metric gets a column later.

    The first columns are for losses, the others for metrics in the order in which they are first recorded. A header has
    two lines if that makes room for more columns. Metrics that do not fit follow on separate lines.

    Example:
        >>> rows = EpochRows()
        >>> metrics = {"train_loss_epoch": 1.9031, "eval_loss_epoch": 1.2011, "accuracy": 0.721}
        >>> for line in rows.lines("1", metrics, figures={"time": "0.11 s"}):
        ...     print(line)
        epoch  train loss  eval loss  accuracy     time
            1      1.9031     1.2011    0.7210   0.11 s
        >>> for line in rows.lines("2", {"accuracy": 0.75}, ["accuracy"], {"time": "0.1 s"}):
        ...     print(line)
            2           -          -   *0.7500    0.1 s
    """

    _EPOCH = _Column("epoch", 5)
    _FIGURE_WIDTHS = MappingProxyType({"lr": 8, "samples/s": 9, "time": 7})

    def __init__(self) -> None:
        self._names: list[str] = []
        self._columns: list[_Column] = []
        self._below: set[str] = set()
        self._has_header = False

    def lines(
        self,
        epoch: str,
        metrics: Mapping[str, float],
        best: Collection[str] = (),
        figures: Mapping[str, str] = MappingProxyType({}),
        expected: Iterable[str] = (),
    ) -> list[str]:
        """Return the lines of the next row, after a header if it is new.

        Args:
            epoch: The text of the epoch cell.
            metrics: Values by the full names of the metrics.
            best: The names of the metrics that are marked as the best so far.
            figures: The last cells, by title; each row must have the same titles.
            expected: Metrics that get a column in the first row even if their values come later.
        """
        of_figures = [_Column(title, self._FIGURE_WIDTHS.get(title, len(title))) for title in figures]
        names = metrics if self._has_header else [*expected, *metrics]
        is_new = self._add_columns(names, of_figures) or not self._has_header
        self._has_header = True
        columns = [self._EPOCH, *self._columns, *of_figures]
        widths = [column.width for column in columns]
        values = ["-" if name not in metrics else _marked(name, metrics, best) for name in self._names]
        lines = [[epoch, *values, *figures.values()]]
        if is_new:
            lines = [[column.above for column in columns], [column.title for column in columns], *lines]
        aligned = [line for cells in lines if (line := _aligned(cells, widths))]
        return aligned + format_pairs({name: metrics[name] for name in metrics if name in self._below}, best)

    def _add_columns(self, metrics: Iterable[str], figures: list[_Column]) -> bool:
        """Add a column for each new metric that fits, and return whether there was any."""
        known = {*self._names, *self._below}
        new = sorted((name for name in dict.fromkeys(metrics) if name not in known), key=_rank)
        if not new:
            return False
        others = [self._EPOCH, *figures]
        # The header has a second line only if more metrics fit that way.
        fitting = max((_fitting(self._names, new, others, stacked) for stacked in (False, True)), key=len)
        self._below.update({*new} - {*fitting})
        if has_new := len(fitting) > len(self._names):
            self._names = sorted(fitting, key=_rank)
            one_line = _columns(self._names, stacked=False)
            fits = _width([*others, *one_line]) <= WIDTH
            self._columns = one_line if fits else _columns(self._names, stacked=True)
        return has_new


def most_telling(names: Iterable[str], first: Collection[str] = (), most: int = 8) -> list[str]:
    """Return the most informative metrics of a row, in the order of ``names``.

    Metrics that callbacks watch take precedence, followed by losses, other evaluation metrics, and training metrics.

    Args:
        names: The names of all metrics.
        first: The names that take precedence.
        most: The largest number of names to return.

    Example:
        >>> most_telling(["train_f1", "train_loss_epoch", "eval_f1", "eval_recall"], ["eval_recall"], most=3)
        ['train_loss_epoch', 'eval_f1', 'eval_recall']
    """
    all_names = list(names)
    by_rank = sorted(all_names, key=lambda name: (name not in first, not is_loss(name), "train" in name))
    return [name for name in all_names if name in by_rank[:most]]


def format_pairs(metrics: Mapping[str, float], best: Collection[str] = (), *, indent: int = 7) -> list[str]:
    """Return indented lines of names and values, filled up to the width.

    Args:
        metrics: Values by name.
        best: The names of the marked metrics.
        indent: The spaces before each line; the default is the width of the epoch column.

    Example:
        >>> format_pairs({"evaluation_loss": 0.21, "accuracy": 0.947}, best=["accuracy"])
        ['       evaluation_loss 0.2100, accuracy *0.9470']
    """
    lines: list[str] = []
    for name in metrics:
        pair = f"{name} {_marked(name, metrics, best)}"
        if lines and len(lines[-1]) + len(", ") + len(pair) < WIDTH:
            lines[-1] += f", {pair}"
        else:
            lines = [*lines[:-1], f"{lines[-1]},"] if lines else []
            lines.append(" " * indent + pair)
    return lines


def format_value(value: float) -> str:
    """Format a number with about five digits, as briefly as is readable.

    Example:
        >>> [format_value(value) for value in (1.90312, 0.5, 123.456, 40000.0, 0.0000123, 0.0, float("nan"))]
        ['1.9031', '0.5000', '123.46', '40000', '1.23e-05', '0', 'nan']
    """
    size = abs(value)
    if not math.isfinite(value) or size == 0:
        return f"{value:g}"
    if not _SMALLEST_FIXED <= size < _LARGEST_FIXED:
        return f"{value:.2e}"
    whole_digits = max(1, math.floor(math.log10(size)) + 1)
    return f"{value:.{max(0, _DIGITS - whole_digits)}f}"


def format_time(seconds: float) -> str:
    """Return a duration in at most seven characters.

    Example:
        >>> [format_time(seconds) for seconds in (0.1049, 12.34, 75, 4000, 400000)]
        ['0.10 s', '12.3 s', '1m 15s', '1h 06m', '111h 06m']
    """
    if seconds < _MINUTE:
        return f"{seconds:.2f} s" if seconds < _TEN_SECONDS else f"{seconds:.1f} s"
    whole = int(seconds)
    if seconds < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE:02d}s"
    return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE:02d}m"


def format_rate(per_second: float) -> str:
    """Return a rate with its significant digits.

    Example:
        >>> format_rate(12345.6), format_rate(3.14159)
        ('12,346', '3.14')
    """
    return f"{per_second:,.0f}" if per_second >= _NO_DECIMALS_FROM else f"{per_second:.3g}"


def _rank(name: str) -> int:
    """Rank losses first; sorting keeps the order of the others."""
    if name == "train_loss_epoch":
        return 0
    return 1 if is_loss(name) else 2


def _fitting(names: list[str], new: list[str], others: list[_Column], stacked: bool) -> list[str]:
    """Return the names of the columns, including the new metrics that fit next to the others."""
    fitting, taken = [*names], {column.title for column in others}
    for name in new:
        columns = _columns([*fitting, name], stacked=stacked)
        if _title(name) not in taken and _width([*others, *columns]) <= WIDTH:
            fitting.append(name)
    return fitting


def _columns(names: Iterable[str], *, stacked: bool) -> list[_Column]:
    """Return the columns of metrics, with full names where titles would be equal."""
    titles = {name: _title(name) for name in names}
    counts = Counter(titles.values())
    unlike = [title if counts[title] == 1 else name for name, title in titles.items()]
    if not stacked:
        return [_Column(title, max(len(title), _NARROWEST)) for title in unlike]
    parts = [_in_two(title) for title in unlike]
    return [_Column(title, max(len(above), len(title), _NARROWEST_STACKED), above) for above, title in parts]


def _in_two(title: str) -> tuple[str, str]:
    """Split a title at the space that makes it narrowest; a single word has no first part."""
    spaces = [index for index, character in enumerate(title) if character == " "]
    splits = [("", title), *((title[:index], title[index + 1 :]) for index in spaces)]
    return min(splits, key=lambda parts: max(map(len, parts)))


def _width(columns: Collection[_Column]) -> int:
    return sum(_GAP + column.width for column in columns) - _GAP


def _title(name: str) -> str:
    return " ".join(name.removesuffix("_epoch").replace("_", " ").split()) or name


def _marked(name: str, metrics: Mapping[str, float], best: Collection[str]) -> str:
    return ("*" if name in best else "") + format_value(metrics[name])


def _aligned(cells: Iterable[str], widths: Iterable[int]) -> str:
    """Put cells next to each other, each at the right of its column; a cell that is too wide extends into the gap."""
    line, end = "", 0
    for text, width in zip(cells, widths, strict=True):
        end += width + (_GAP if line else 0)
        line += (" " if line else "") + text.rjust(end - len(line) - (1 if line else 0))
    return line.rstrip()
