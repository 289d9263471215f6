"""The only module that imports tqdm, when the first bar is drawn."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeAlias, cast

if TYPE_CHECKING:
    from tqdm import tqdm


Bar: TypeAlias = "tqdm[NoReturn]"

_COLUMNS_IF_UNKNOWN, _LINES_IF_UNKNOWN = 79, 23


@contextmanager
def bars_hidden() -> Generator[None]:
    """Within the context, progress bars are off the screen, so that printed lines stay whole.

    Bars of tqdm that a program draws itself are taken off as well. Where no bar was ever drawn this does
    nothing.

    Example:
        >>> with bars_hidden():
        ...     print("its own line")
        its own line
    """
    if "tqdm" not in sys.modules:
        yield
        return
    from tqdm import tqdm

    with tqdm.external_write_mode():
        yield


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream goes to a terminal that can draw."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def is_in_notebook() -> bool:
    """Return whether what is printed goes to a cell of a notebook, in which bars can be drawn."""
    return type(sys.stderr).__module__.startswith("ipykernel") and find_spec("ipywidgets") is not None


def draw_bar(title: str, total: int | None, count: str, *, stays: bool, initial: int = 0) -> Bar:
    """Return a new bar on standard error, or in the cell of a notebook.

    Args:
        title: What it starts with.
        total: What it counts up to; None where that is not known.
        count: The format of the count.
        stays: Whether it is left when it is closed.
        initial: What it counts from.
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
        # It is told when to refresh, and does so each time.
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

    # An interval of 0: no thread in the background that looks after bars which nobody refreshes.
    return cast("type[Bar]", type("Bar", (tqdm,), {"monitor_interval": 0}))
