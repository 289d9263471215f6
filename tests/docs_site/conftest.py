"""The site that was built, as `nox -s docs` leaves it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built pages."""
    folder = os.environ.get("BUILT_SITE")
    if folder is None:
        pytest.skip("BUILT_SITE does not name a built site: nox -s docs builds one and tests it")
    return Path(folder)
