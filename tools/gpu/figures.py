"""Figures on their way from a part to the report: a line of JSON each, as soon as it is known."""

from __future__ import annotations

import json
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import cast

__all__ = ["NEEDS_CUDA", "NEEDS_TWO_DEVICES", "Figure", "attempt", "failed", "figure_of", "not_measured", "publish"]

_BEGINNING = "figure: "
NEEDS_CUDA = "needs CUDA"
NEEDS_TWO_DEVICES = "needs several CUDA devices, which this check does not use"


@dataclass(frozen=True)
class Figure:
    """One row of the report.

    Attributes:
        what: What was measured.
        value: A number, or what was found in words; None where nothing was measured.
        unit: Of a number.
        to_by_hand: The number, divided by that of the loop by hand of the same rounds.
        note: How it came about, or why it is missing.
        is_wrong: Whether it breaks a promise, or could not be measured though it should have been.
    """

    what: str
    value: float | str | None
    unit: str = ""
    to_by_hand: float | None = None
    note: str = ""
    is_wrong: bool = False


def publish(
    what: str,
    value: float | str | None,
    unit: str = "",
    *,
    to_by_hand: float | None = None,
    note: str = "",
    is_wrong: bool = False,
) -> None:
    """Print a figure for the process that collects them."""
    print(_BEGINNING + json.dumps(asdict(Figure(what, value, unit, to_by_hand, note, is_wrong))), flush=True)


def not_measured(what: str, why: str) -> None:
    """Say that something was left out on purpose."""
    publish(what, None, note=f"not measured: {why}")


@contextmanager
def attempt(what: str) -> Generator[None]:
    """Let what fails in the context be a row of the report, and go on."""
    try:
        yield
    except Exception as error:
        failed(what, error)


def failed(what: str, error: Exception) -> None:
    """Let an exception be a row of the report."""
    traceback.print_exception(error)
    publish(what, None, note=f"failed: {type(error).__name__}: {str(error).strip()[:300]}", is_wrong=True)


def figure_of(line: str) -> Figure | None:
    """Return the figure that a line of a part's output is; None for any other line."""
    if not line.startswith(_BEGINNING):
        return None
    return Figure(**cast("dict[str, str]", json.loads(line.removeprefix(_BEGINNING))))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as publish has written them
