"""The distributions of the repository, read from its files."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, cast

import yaml
from packaging.requirements import Requirement


@dataclass(frozen=True)
class Distribution:
    """One of the distributions, as its pyproject.toml declares it."""

    folder: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        """Its name on a package index."""
        return self.folder.name

    @property
    def version(self) -> str:
        """Its version, or an empty string."""
        return str(self.project.get("version", ""))

    @property
    def package(self) -> str:
        """The name under which it is imported."""
        (package,) = (path for path in (self.folder / "src").iterdir() if (path / "__init__.py").exists())
        return package.name

    @property
    def required(self) -> list[Requirement]:
        """Its requirements without extras."""
        lines: list[str] = self.project.get("dependencies", [])
        return [Requirement(line) for line in lines]

    @property
    def requirements(self) -> list[Requirement]:
        """Its requirements, with all extras."""
        extras: dict[str, list[str]] = self.project.get("optional-dependencies", {})
        return [*self.required, *(Requirement(line) for lines in extras.values() for line in lines)]

    @property
    def classifiers(self) -> list[str]:
        """Its classifiers."""
        found: list[str] = self.project.get("classifiers", [])
        return found

    @property
    def urls(self) -> dict[str, str]:
        """Its addresses by name."""
        found: dict[str, str] = self.project.get("urls", {})
        return found

    @property
    def stem(self) -> str:
        """The beginning of the names of its built files."""
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def wheel(self) -> str:
        """The name of its wheel."""
        return f"{self.stem}-py3-none-any.whl"

    @property
    def sdist(self) -> str:
        """The name of its sdist."""
        return f"{self.stem}.tar.gz"


@dataclass(frozen=True)
class Repository:
    """The root of a working tree."""

    root: Path

    @property
    def distributions(self) -> list[Distribution]:
        """All distributions, in the order of their upload: each after those that it requires."""
        found = {
            path.parent.name: Distribution(path.parent, tomllib.loads(path.read_text())["project"])
            for path in self.root.glob("packages/*/pyproject.toml")
        }
        sorter = TopologicalSorter(
            {
                name: {line.name for line in distribution.requirements} & set(found)
                for name, distribution in found.items()
            }
        )
        sorter.prepare()
        ordered: list[Distribution] = []
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            ordered += [found[name] for name in ready]
            sorter.done(*ready)
        return ordered

    @property
    def version(self) -> str:
        """The version of the distribution that is uploaded first; all distributions should have it."""
        return self.distributions[0].version

    @property
    def urls(self) -> dict[str, str]:
        """The addresses of the project by name; an empty address is not known yet."""
        table: dict[str, str] = tomllib.loads((self.root / "pyproject.toml").read_text())["tool"]["release"]["urls"]
        return table

    @property
    def tested_versions(self) -> list[str]:
        """The versions of Python with which every pull request is tested."""
        matrix: dict[str, list[str]] = self.workflow("ci")["jobs"]["tests"]["strategy"]["matrix"]
        return matrix["python"]

    def changelog(self) -> str:
        """The changelog."""
        return (self.root / "CHANGELOG.md").read_text()

    def workflow(self, name: str) -> dict[str, Any]:
        """A workflow of the forge."""
        return cast("dict[str, Any]", yaml.safe_load((self.root / ".github" / "workflows" / f"{name}.yml").read_text()))
