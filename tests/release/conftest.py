"""A small copy of the repository, to be broken: its own metadata and pages, with packages of one line."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.release.repository import Repository

ROOT = Path(__file__).parents[2]
PAGES = (
    "CHANGELOG.md",
    "LICENSE",
    "RELEASING.md",
    "pyproject.toml",
    ".github/workflows/ci.yml",
    ".github/workflows/release.yml",
)


@dataclass(frozen=True)
class Copy:
    """A repository of distributions that require each other and nothing else."""

    root: Path

    @property
    def repository(self) -> Repository:
        """The copy, as the checks see it."""
        return Repository(self.root)

    def pyproject(self, name: str) -> str:
        """The path of the pyproject.toml of a distribution."""
        return f"packages/{name}/pyproject.toml"

    def replace(self, file: str, pattern: str, replacement: str) -> None:
        """Change what matches in a file; something has to."""
        path = self.root / file
        text, found = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
        assert found, f"nothing in {file} matches {pattern}"
        path.write_text(text)

    def git(self, *arguments: str) -> None:
        """Run git in the copy."""
        author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(self.root), *author, *arguments], check=True, capture_output=True)

    def commit(self) -> None:
        """Commit everything that is there."""
        self.git("add", "--all")
        self.git("commit", "--message=everything")


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy in which every check passes."""
    copy = Copy(tmp_path / "copy")
    for name in PAGES:
        (copy.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy.root / name)
    for project in ROOT.glob("packages/*/pyproject.toml"):
        folder = copy.root / project.relative_to(ROOT).parent
        (package,) = (path.parent.name for path in project.parent.glob("src/*/py.typed"))
        (folder / "src" / package).mkdir(parents=True)
        for name in ("LICENSE", "README.md"):
            shutil.copy(project.parent / name, folder)
        (folder / "src" / package / "py.typed").touch()
        (folder / "src" / package / "__init__.py").write_text("ready = True\n")
        alone = re.sub(r'"(?!pa-|hatchling)[\w-]+>=[^"]*",?', "", project.read_text())
        (folder / "pyproject.toml").write_text(alone)
    copy.replace("pyproject.toml", r"^(Source|Documentation|Changelog|Issues) = .*", r'\1 = ""')
    copy.replace("CHANGELOG.md", r"^(## [\d.]+) \(.*\)$", r"\1 (unreleased)")
    copy.git("init", "--quiet", "--initial-branch=main")
    copy.commit()
    return copy
