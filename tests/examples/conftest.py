"""Scripts of these tests are forked from a process that has imported what examples import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # the process takes the variables of its start
def pytest_configure() -> None:
    """Name the script that imports it."""
    os.environ.setdefault("TESTS_IMPORT_BEFOREHAND", str(Path(__file__).with_name("import_beforehand.py")))
