"""Copies the addresses of the project into the pyproject.toml of each distribution."""

from __future__ import annotations

import re

from tools.release.repository import Repository

__all__ = ["write_urls"]


def write_urls(repository: Repository) -> None:
    """Write `[project.urls]` of each distribution, after `[project]`; without addresses, leave the table out."""
    lines = [f'{name} = "{address}"' for name, address in repository.urls.items() if address]
    table = "\n".join(["[project.urls]", *lines, "", ""]) if lines else ""
    for distribution in repository.distributions:
        file = distribution.folder / "pyproject.toml"
        without = re.sub(r"^\[project\.urls\]\n(?:[^\[\n].*\n)*\n*", "", file.read_text(), flags=re.MULTILINE)
        start, project, rest = without.partition("[project]\n")
        content, header, tables = rest.partition("\n[")
        file.write_text(f"{start}{project}{content}\n{table}{header[1:]}{tables}")
