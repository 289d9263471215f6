"""Which places are the URLs of object stores."""

from __future__ import annotations

import re
from pathlib import Path

from pa_core.errors import ConfigurationError

_URL = re.compile(r"[A-Za-z][\w+.-]+(::[A-Za-z][\w+.-]+)*://.+")
_URL_AS_PATH = re.compile(r"[A-Za-z][\w+.-]+:/.+")


def url_of(place: str | Path) -> str | None:
    """Return the URL of a place in an object store, without slashes at its end; None for a local path.

    Raises:
        ConfigurationError: It is a URL that was made a ``Path``, which takes a slash away.

    Example:
        >>> url_of("s3://bucket/states/"), url_of("states")
        ('s3://bucket/states', None)
    """
    if isinstance(place, str):
        return place.rstrip("/") if _URL.fullmatch(place) else None
    if _URL_AS_PATH.fullmatch(str(place)) and not place.drive:
        raise ConfigurationError(
            "A URL was made a Path, which takes one of its slashes away. Pass it as a string: "
            f"{str(place).replace(':/', '://', 1)!r}."
        )
    return None
