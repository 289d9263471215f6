"""Scripts of these tests are forked from a process that has imported what examples import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.examples.shared_launches import SharedLaunches
from tests.launching import Launch, as_a_reader


@pytest.hookimpl(tryfirst=True)  # the process takes the variables of its start
def pytest_configure() -> None:
    """Name the script that imports it."""
    os.environ.setdefault("TESTS_IMPORT_BEFOREHAND", str(Path(__file__).with_name("import_beforehand.py")))


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """`launch(script, *arguments, ranks=1)`, with the variables that a reader of the examples has."""
    return Launch(tmp_path, as_a_reader(tmp_path))


@pytest.fixture
def shared_launch(tmp_path_factory: pytest.TempPathFactory) -> SharedLaunches:
    """`shared_launch(name, way)` returns what came of launching an example, which is done once for all tests."""
    own = tmp_path_factory.getbasetemp()
    of_all = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    return SharedLaunches(of_all / "examples")
