"""The site, which is built for its tests as `nox -s docs` publishes it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.docs_site.building import build_site


def pytest_sessionstart() -> None:
    """Build the site before the first test, which has its time limit."""
    if folder := os.environ.get("BUILT_SITE"):
        try:
            build_site(Path(folder))
        except subprocess.CalledProcessError as error:
            pytest.exit(f"The site is not built: {error}", returncode=1)


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built pages."""
    folder = os.environ.get("BUILT_SITE")
    if folder is None:
        pytest.skip("BUILT_SITE does not name a folder for the site: nox -s docs builds it there, and tests it")
    return Path(folder)
