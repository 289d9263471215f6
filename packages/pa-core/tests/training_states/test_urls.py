"""Local paths, and the URLs of object stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from pa_core import ConfigurationError
from pa_core.training_state.downloaded_states import url_of


def test_urls_are_told_from_paths() -> None:
    """A local path stays one; a URL that was made a path is refused with what to pass."""
    assert [url_of(place) for place in ("states", "/a/b:c", "C:/states", "C:\\states", Path("states"))] == [None] * 5
    assert url_of("gs://bucket/states/") == "gs://bucket/states"
    assert url_of("simplecache::s3://bucket") == "simplecache::s3://bucket"
    with pytest.raises(ConfigurationError, match="'s3://bucket/states'"):
        url_of(Path("s3://bucket/states"))
