"""Checks of the files of the repository; each check returns its problems, and builds nothing."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from datetime import date

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tools.changelog import fragments
from tools.release.repository import Distribution, Repository

__all__ = [
    "changelog",
    "classifiers",
    "clean_tree",
    "metadata",
    "missing_for_release",
    "upload_order",
    "urls",
    "versions",
]

TRAINING_STATES = "Training states"
_PYTHON = "Programming Language :: Python :: "


def clean_tree(repository: Repository) -> list[str]:
    """Check that everything is committed, since only the last commit is built."""
    changed = _git(repository, "status", "--porcelain").splitlines()
    return [f"not committed: {line[3:]}" for line in changed]


def versions(repository: Repository) -> list[str]:
    """Check that all distributions have the same version and require each other within it."""
    distributions = repository.distributions
    version = repository.version
    problems = [
        f"{distribution.name} has version {distribution.version}, {distributions[0].name} has {version}: "
        "all are released together"
        for distribution in distributions
        if distribution.version != version
    ]
    siblings = {distribution.name for distribution in distributions}
    expected = sibling_range(version)
    return problems + [
        f"{distribution.name} requires {line}; write {line.name}{_as_written(version)}"
        for distribution in distributions
        for line in distribution.requirements
        if line.name in siblings and line.specifier != expected
    ]


def sibling_range(version: str) -> SpecifierSet:
    """Return the range in which distributions of this version require each other: a minor version."""
    return SpecifierSet(_as_written(version))


def waiting_lines(repository: Repository) -> list[str]:
    """Check that the changelog contains all changes, and that no files wait in changelog.d."""
    waiting = fragments(repository.root)
    return [f"changelog.d has {len(waiting)} files: run python tools/changelog.py"] if waiting else []


def changelog(repository: Repository) -> list[str]:
    """Check that the changelog has lines about each distribution, and about the format of training states."""
    entry = _entry(repository)
    if entry is None:
        return [f"CHANGELOG.md has no heading '## {repository.version} (unreleased)', or with a date instead"]
    wanted = [TRAINING_STATES, *sorted(distribution.name for distribution in repository.distributions)]
    return [
        f"CHANGELOG.md, {repository.version}: nothing under '### {name}'; write a line, even if nothing changed"
        for name in wanted
        if not entry.parts.get(name, "").strip()
    ]


def metadata(repository: Repository) -> list[str]:
    """Check that each distribution names its authors, licence and purpose, and that the links of its README work."""
    return [
        f"{distribution.name}: {problem}"
        for distribution in repository.distributions
        for problem in _metadata(repository, distribution)
    ]


def classifiers(repository: Repository) -> list[str]:
    """Check that classifiers are true: the versions of Python are tested by CI, and typed packages are marked."""
    tested = set(repository.tested_versions)
    oldest = min(tested, key=Version)
    problems: list[str] = []
    for distribution in repository.distributions:
        claimed = {line.removeprefix(_PYTHON) for line in distribution.classifiers if line.startswith(f"{_PYTHON}3.")}
        problems += [
            f"{distribution.name} claims Python {version}, which CI does not test"
            for version in sorted(claimed - tested)
        ]
        problems += [
            f"{distribution.name} does not claim Python {version}, which CI tests"
            for version in sorted(tested - claimed)
        ]
        if distribution.project.get("requires-python") != f">={oldest}":
            problems.append(f"{distribution.name}: requires-python is not >={oldest}, the oldest version that CI tests")
        typed = (distribution.folder / "src" / distribution.package / "py.typed").exists()
        if typed != ("Typing :: Typed" in distribution.classifiers):
            problems.append(
                f"{distribution.name}: 'Typing :: Typed' and py.typed go together, and one of them is missing"
            )
    return problems


def urls(repository: Repository) -> list[str]:
    """Check that each distribution has the addresses of the project in the root's pyproject.toml."""
    known = {name: address for name, address in repository.urls.items() if address}
    problems = [
        f"pyproject.toml, [tool.release.urls]: {name} is not an https address: {address}"
        for name, address in known.items()
        if not re.fullmatch(r"https://[\w.-]+\.\w+(/\S*)?", address)
    ]
    return problems + [
        f"{distribution.name}: [project.urls] is {distribution.urls}, not {known}; run nox -s release -- --write-urls"
        for distribution in repository.distributions
        if distribution.urls != known
    ]


def upload_order(repository: Repository) -> list[str]:
    """Check that the release workflow uploads each distribution after those that it requires."""
    expected = [distribution.name for distribution in repository.distributions]
    steps = repository.workflow("release")["jobs"]["publish"]["steps"]
    folders = [step["with"]["packages-dir"] for step in steps if "packages-dir" in step.get("with", {})]
    found = [folder.strip("/").rpartition("/")[2] for folder in folders]
    return [f".github/workflows/release.yml uploads {found}; the order is {expected}"] if found != expected else []


def missing_for_release(repository: Repository) -> list[str]:
    """Return the missing parts that only a real release needs: addresses, a date, a tag."""
    missing = [
        f'no address: fill in {name} = "https://..." in pyproject.toml, [tool.release.urls], '
        "then run nox -s release -- --write-urls"
        for name, address in repository.urls.items()
        if not address
    ]
    entry = _entry(repository)
    if entry is not None and entry.released is None:
        missing.append(f"no date: write '## {repository.version} ({date.today().isoformat()})' in CHANGELOG.md")
    tag = f"v{repository.version}"
    if tag not in _git(repository, "tag", "--points-at", "HEAD").split():
        missing.append(f"no tag: this commit is not tagged {tag}")
    return missing


@dataclass(frozen=True)
class _Entry:
    """The entry of the changelog for one version."""

    released: date | None
    parts: dict[str, str]


def _entry(repository: Repository) -> _Entry | None:
    """Return the entry for the version of the distributions."""
    for text in re.split(r"^## ", repository.changelog(), flags=re.MULTILINE)[1:]:
        heading, _, content = text.partition("\n")
        match = re.fullmatch(
            re.escape(repository.version) + r" \((?:unreleased|(\d{4}-\d{2}-\d{2}))\)", heading.strip()
        )
        if match is not None:
            parts = re.split(r"^### (.+)$", content, flags=re.MULTILINE)
            released = date.fromisoformat(match[1]) if match[1] else None
            return _Entry(released, dict(zip(parts[1::2], parts[2::2], strict=True)))
    return None


def _metadata(repository: Repository, distribution: Distribution) -> list[str]:
    needed = ("authors", "description", "keywords", "license", "license-files", "readme")
    problems = [f"pyproject.toml has no {key}" for key in needed if not distribution.project.get(key)]
    licence = distribution.folder / "LICENSE"
    if not licence.exists() or licence.read_bytes() != (repository.root / "LICENSE").read_bytes():
        problems.append("LICENSE differs from the LICENSE of the repository")
    readme = distribution.folder / "README.md"
    text = readme.read_text() if readme.exists() else ""
    if not text.strip():
        problems.append("README.md has no text")
    links: list[str] = re.findall(r"\]\((?!https://|#)([^)\s]+)", text)
    return problems + [f"README.md: the link to {link} leads nowhere on a package index" for link in links]


def _as_written(version: str) -> str:
    parsed = Version(version)
    return f">={parsed.major}.{parsed.minor},<{parsed.major}.{parsed.minor + 1}"


def _git(repository: Repository, *arguments: str) -> str:
    command = ["git", "-C", str(repository.root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
