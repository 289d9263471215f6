"""What is published: the wheels and sdists in `.nox/wheels`, as the session `build` leaves them."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / ".nox" / "wheels"


@dataclass(frozen=True)
class Distribution:
    """The folder of a distribution in this repository, and what was built from it."""

    folder: Path

    @property
    def project(self) -> dict[str, Any]:
        """The project table of its pyproject.toml."""
        table: dict[str, Any] = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        return table

    @property
    def stem(self) -> str:
        """How the names of its files begin."""
        return f"{self.folder.name.replace('-', '_')}-{self.project['version']}"

    @property
    def sources(self) -> set[str]:
        """Its source files, relative to `src`."""
        source = self.folder / "src"
        files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(source).as_posix() for path in files}

    def wheel(self) -> dict[str, bytes]:
        """The files in its wheel."""
        with zipfile.ZipFile(BUILT / f"{self.stem}-py3-none-any.whl") as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def metadata(self) -> Message:
        """The metadata in its wheel."""
        return Parser().parsestr(self.wheel()[f"{self.stem}.dist-info/METADATA"].decode())

    def sdist(self) -> set[str]:
        """The names of the files in its sdist."""
        with tarfile.open(BUILT / f"{self.stem}.tar.gz") as archive:
            return {member.name.removeprefix(f"{self.stem}/") for member in archive if member.isfile()}


@pytest.fixture(params=sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")))
def distribution(request: pytest.FixtureRequest) -> Distribution:
    """Each distribution in turn."""
    if not BUILT.exists():
        pytest.fail(f"{BUILT} is not there: run `nox -s build`, which builds the distributions and runs this")
    return Distribution(ROOT / "packages" / request.param)


def test_a_wheel_holds_the_sources_and_nothing_else(distribution: Distribution) -> None:
    """Every source file is in the wheel, unchanged, with the marker of typed packages and the licence."""
    wheel = distribution.wheel()
    package = {name for name in wheel if ".dist-info/" not in name}
    assert package == distribution.sources
    assert all(wheel[name] == (distribution.folder / "src" / name).read_bytes() for name in package)
    assert [name for name in package if name.count("/") == 1 and name.endswith("/py.typed")] != []
    licence = wheel[f"{distribution.stem}.dist-info/licenses/LICENSE"]
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_an_sdist_builds_the_same_wheel_anywhere(distribution: Distribution) -> None:
    """The sdist holds sources, licence, README and build settings: the wheel is built from it."""
    sources = {f"src/{name}" for name in distribution.sources}
    assert sources | {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= distribution.sdist()
    assert not any(name.startswith("tests/") for name in distribution.sdist())


def test_the_metadata_say_what_a_user_needs_to_know(distribution: Distribution) -> None:
    """A package index shows name, version, Python, licence, that it is typed, and the README."""
    metadata = distribution.metadata()
    assert metadata["Name"] == distribution.folder.name
    assert metadata["Version"] == distribution.project["version"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip() == (distribution.folder / "README.md").read_text().strip()
