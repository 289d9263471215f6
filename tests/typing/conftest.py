"""What the typing tests share: wheels of ours, environments with them, and the code that is checked there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.typing.checkers import PACKAGES, Completeness, TypedEnvironment, built_wheels, copy_code


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution."""
    return built_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> TypedEnvironment:
    """An environment in which all distributions are installed."""
    return TypedEnvironment.make(tmp_path_factory.mktemp("typing") / "environment", wheels.values())


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The typing tests, in a folder of their own."""
    return copy_code(tmp_path_factory.mktemp("code"))


@pytest.fixture(scope="session")
def two_at_once() -> Iterator[ThreadPoolExecutor]:
    """Starts checkers in the background, two at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield pool
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def completeness(environment: TypedEnvironment, two_at_once: ThreadPoolExecutor) -> dict[str, Completeness]:
    """What pyright says of each distribution."""
    return dict(zip(PACKAGES, two_at_once.map(environment.completeness, PACKAGES.values()), strict=True))
