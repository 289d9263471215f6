"""The only module that imports tqdm, when the first bar is drawn."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeAlias, cast

if TYPE_CHECKING:
    from tqdm import tqdm


Bar: TypeAlias = "tqdm[NoReturn]"

_COLUMNS_IF_UNKNOWN, _LINES_IF_UNKNOWN = 79, 23


@contextmanager
def bars_hidden() -> Generator[None]:
    """Hide progress bars within the context, so that printed lines are not mixed with them.

    Bars that a script itself draws with tqdm are hidden, too. If no bar was ever drawn, this does nothing.

    Example:
        >>> with bars_hidden():
        ...     print("its own line")
        its own line
    """
    if "tqdm" not in sys.modules:
        yield
        return
    from tqdm import tqdm

    with tqdm.external_write_mode() if getattr(tqdm, "_instances", True) else nullcontext():
        yield


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream goes to a terminal that can draw."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def is_in_notebook() -> bool:
    """Return whether standard output goes to a cell of a notebook, in which bars can be drawn."""
    return type(sys.stderr).__module__.startswith("ipykernel") and find_spec("ipywidgets") is not None


def draw_bar(title: str, total: int | None, count: str, *, stays: bool, initial: int = 0) -> Bar:
    """Return a new bar on standard error, or in the cell of a notebook.

    Args:
        title: The text at the beginning.
        total: The final count; None if it is unknown.
        count: The format of the count.
        stays: Whether the bar stays visible after it is closed.
        initial: The first count.
    """
    stream = sys.stderr
    has_size = not _is_without_size(stream)
    return _bar_class()(
        desc=title,
        total=total,
        initial=initial,
        file=stream,
        leave=stays,
        ncols=None if has_size else _COLUMNS_IF_UNKNOWN,
        nrows=None if has_size else _LINES_IF_UNKNOWN,
        dynamic_ncols=has_size,
        # The caller decides when to refresh, so the bar does so each time.
        mininterval=0,
        miniters=1,
        bar_format=f"{{desc}} |{{bar}}| {count} [{{elapsed}}<{{remaining}}{{postfix}}]",
    )


def _is_without_size(stream: TextIO) -> bool:
    """Return whether a terminal reports 0 columns, as in some containers, in which a bar would be invisible."""
    try:
        return os.get_terminal_size(stream.fileno()).columns == 0
    except (OSError, ValueError):  # not a terminal, but a notebook for example
        return False


@cache
def _bar_class() -> type[Bar]:
    from tqdm.auto import tqdm

    # An interval of 0 avoids tqdm's background thread, which refreshes bars.
    return cast("type[Bar]", type("Bar", (tqdm,), {"monitor_interval": 0}))
