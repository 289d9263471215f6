"""What is published: the wheels and sdists in `.nox/out/wheels`, as the session `wheels` leaves them."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.release.built import contents
from tools.release.repository import Distribution, Repository

REPOSITORY = Repository(Path(__file__).parents[2])
BUILT = REPOSITORY.root / ".nox" / "out" / "wheels"


@pytest.fixture(autouse=True)
def built() -> None:
    """Tell what to do where nothing is built."""
    if not BUILT.exists():
        pytest.fail(f"{BUILT} is not there: run `nox -s build`, which builds the distributions and runs this")


@pytest.fixture(params=REPOSITORY.distributions, ids=lambda one: one.name)
def distribution(request: pytest.FixtureRequest) -> Distribution:
    """Each distribution in turn."""
    given: Distribution = request.param
    return given


def sources_of(distribution: Distribution) -> dict[str, bytes]:
    """Its source files, relative to `src`."""
    source = distribution.folder / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(source).as_posix(): path.read_bytes() for path in files}


def test_a_wheel_holds_the_sources_and_nothing_else(distribution: Distribution) -> None:
    """Every source file is in the wheel, unchanged."""
    with zipfile.ZipFile(BUILT / distribution.wheel) as archive:
        wheel = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert wheel == sources_of(distribution)


def test_an_sdist_builds_the_same_wheel_anywhere(distribution: Distribution) -> None:
    """The sdist holds sources, licence, README and build settings: the wheel is built from it."""
    with tarfile.open(BUILT / distribution.sdist) as archive:
        sdist = {member.name.removeprefix(f"{distribution.stem}/") for member in archive if member.isfile()}
    sources = {f"src/{name}" for name in sources_of(distribution)}
    assert sources | {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= sdist
    assert not any(name.startswith("tests/") for name in sdist)


def test_the_metadata_say_what_a_user_needs_to_know() -> None:
    """A package index shows what is declared, the licence and the README; wheels have the marker of typed packages."""
    assert contents(REPOSITORY, BUILT) == []
