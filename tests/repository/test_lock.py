"""`uv.lock` is about this workspace, and installs what the matrix tests with, from the public index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
LOCKED: list[dict[str, Any]] = tomllib.loads((ROOT / "uv.lock").read_text())["package"]


def test_each_distribution_is_locked_with_what_it_requires() -> None:
    """After a change of requirements, `uv lock` was run."""
    locked = {package["source"]["editable"]: package for package in LOCKED if "editable" in package["source"]}
    for path in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        extras: dict[str, list[str]] = project.get("optional-dependencies", {})
        lines = {*project["dependencies"], *(line for lines in extras.values() for line in lines)}
        metadata = locked[path.parent.relative_to(ROOT).as_posix()]["metadata"]
        names = {re.split(r"[\[<>=]", line)[0].lower().replace("_", "-") for line in lines}
        assert names == {line["name"] for line in metadata["requires-dist"]}, "run uv lock"


def test_only_the_public_index_is_named() -> None:
    """Nobody's mirror, and no folder of a machine."""
    registries = {package["source"]["registry"] for package in LOCKED if "registry" in package["source"]}
    assert registries == {"https://pypi.org/simple"}
    files = [file for package in LOCKED for file in (*package.get("wheels", []), package.get("sdist"))]
    assert {urlsplit(file["url"]).netloc for file in files if file} == {"files.pythonhosted.org"}


def test_versions_are_those_of_the_matrix() -> None:
    """An environment that uv makes judges the code as the sessions of nox do."""
    pinned = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "tests" / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    versions = {package["name"]: package.get("version") for package in LOCKED}
    assert {name: versions[name] for name, _ in pinned} == dict(pinned)
