"""What the six pyproject.toml files declare agrees: with each other, and with what the sources import."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.typing.checkers import PACKAGES

ROOT = Path(__file__).parents[2]
PROJECTS: dict[str, dict[str, Any]] = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
IMPORT_NAMES = {**PACKAGES, "scikit-learn": "sklearn"}
NEWER_IN_AN_EXTRA = {"huggingface-hub>=2.0.0"}
USED_THROUGH_ACCELERATE = {"safetensors"}
"""accelerate writes the files of `Trainer.save_model`; their format is our promise, so we require its library."""


def _requirements(project: dict[str, Any]) -> list[str]:
    optional: dict[str, list[str]] = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(line for lines in optional.values() for line in lines)]


def _import_name(requirement: str) -> str:
    name = re.split(r"[^\w.-]", requirement)[0]
    return IMPORT_NAMES.get(name, name.replace("-", "_"))


def _imported(folder: Path) -> set[str]:
    """The top-level packages that the Python files of a folder import, wherever in a file they do."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").partition(".")[0])
    return names - sys.stdlib_module_names


def test_all_distributions_are_seen() -> None:
    """By the checks below, and by those of types."""
    assert PROJECTS.keys() == PACKAGES.keys()


@pytest.mark.parametrize("name", PROJECTS)
def test_what_is_imported_is_declared(name: str) -> None:
    """A distribution declares every package that it imports, and relies on no other one to bring it."""
    declared = {_import_name(line) for line in _requirements(PROJECTS[name])}
    assert _imported(ROOT / "packages" / name / "src") - declared - {_import_name(name)} == set()


@pytest.mark.parametrize("name", PROJECTS)
def test_what_is_required_is_imported(name: str) -> None:
    """A distribution makes nobody install what it does not use."""
    required = {_import_name(line) for line in PROJECTS[name]["dependencies"]} - USED_THROUGH_ACCELERATE
    assert required - _imported(ROOT / "packages" / name / "src") == set()


def test_a_requirement_has_one_floor_in_all_distributions() -> None:
    """Two distributions that require the same package agree on its oldest version, so one run tests it.

    An extra may need a newer version.
    """
    lines = {line for project in PROJECTS.values() for line in _requirements(project)} - NEWER_IN_AN_EXTRA
    names = [_import_name(line) for line in lines]
    assert sorted(names) == sorted(set(names))
