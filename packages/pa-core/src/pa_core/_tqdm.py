"""The only module that imports tqdm, when the first bar is drawn."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["Bar", "bar_class", "bars_hidden"]

Bar: TypeAlias = "tqdm[NoReturn]"


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


@cache
def bar_class() -> type[Bar]:
    """Return the class of progress bars, without the monitoring thread that tqdm starts with the first one."""
    from tqdm import tqdm

    # An interval of 0: no thread in the background that looks after bars which nobody refreshes.
    return cast("type[Bar]", type("Bar", (tqdm,), {"monitor_interval": 0}))
