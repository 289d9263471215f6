"""Checks of arguments: errors name the argument and its value before anything is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pa_core import ConfigurationError


def require_positive(**arguments: float) -> None:
    """Raise an error unless an argument is a finite number above 0."""
    _require(arguments, "a number above 0", lambda value: 0 < value < math.inf)


def require_not_negative(**arguments: float) -> None:
    """Raise an error unless an argument is a finite number of at least 0."""
    _require(arguments, "a number of at least 0", lambda value: 0 <= value < math.inf)


def require_count(num_updates: float) -> None:
    """Raise an error if a number of updates is negative."""
    if num_updates < 0:
        raise ConfigurationError(f"num_updates must be at least 0, got {num_updates}.")


def require_fraction(**arguments: float | None) -> None:
    """Raise an error unless an argument is a fraction, or None."""
    _require(arguments, "a fraction between 0 and 1", lambda value: 0 <= value <= 1)


def _require(arguments: Mapping[str, float | None], expected: str, is_allowed: Callable[[float], bool]) -> None:
    for name, value in arguments.items():
        if value is not None and not is_allowed(value):
            refuse(name, value, expected)


def whole_number(name: str, value: float, minimum: int) -> int:
    """Return a count as an int, or raise an error if it is not whole; arithmetic may have made a float of it.

    Raises:
        ConfigurationError: The value is not a whole number, or it is below the minimum.
    """
    # The comparison raises a TypeError for a placeholder that was not filled in, and is False for NaN.
    if not value >= minimum or value % 1 != 0:
        refuse(name, value, f"a whole number of at least {minimum}")
    return int(value)


def refuse(name: str, value: object, expected: str) -> None:
    """Raise the error that names an argument, its value and the expected values."""
    raise ConfigurationError(f"{name} must be {expected}, got {value!r}.")


def require_at_most(peak: float, rate: float, name: str, group: int, advice: str) -> None:
    """Raise an error if a schedule starts or ends above the learning rate of a parameter group."""
    if rate > peak:
        raise ConfigurationError(
            f"The schedule of parameter group {group} starts or ends above the group's learning rate: {name}={rate} "
            f"and lr={peak}. {advice}"
        )
