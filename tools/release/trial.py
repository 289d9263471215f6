"""Installs the built wheels as users do, in the order of their upload, each from the wheels uploaded so far."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.release.repository import Repository

__all__ = ["Installer", "install_in_order"]


@dataclass(frozen=True)
class Installer:
    """pip, in an environment without any of our distributions."""

    python: Path
    constraints: Path | None = None

    def install(self, *arguments: str) -> str | None:
        """Install, and return the error message of pip, or an empty string."""
        constraints = ["--constraint", str(self.constraints)] if self.constraints else []
        return _failure([str(self.python), "-m", "pip", "install", "--quiet", *constraints, *arguments])


def install_in_order(repository: Repository, built: Path, folder: Path, installer: Installer) -> list[str]:
    """Install the wheels in the order of their upload and import each after its step; return the problems."""
    uploaded = folder / "uploaded"
    uploaded.mkdir(parents=True)
    ours = {distribution.name for distribution in repository.distributions}
    for distribution in repository.distributions:
        shutil.copy(built / distribution.wheel, uploaded)
        others = [str(line) for line in distribution.required if line.name not in ours]
        if others and (failure := installer.install(*others)):
            return [f"{distribution.name}: its requirements cannot be installed:\n{failure}"]
        # Without the cache, which may have a wheel of the same name from another commit.
        only_ours = ("--no-index", "--find-links", str(uploaded), "--no-cache-dir")
        if failure := installer.install(*only_ours, f"{distribution.name}=={distribution.version}"):
            return [
                f"{distribution.name} cannot be installed from its wheel and the wheels uploaded before:\n{failure}"
            ]
        program = (
            f"import {distribution.package}, importlib.metadata as m; "
            f"assert m.version({distribution.name!r}) == {distribution.version!r}"
        )
        # Isolated, so that nothing is imported from the working tree.
        if failure := _failure([str(installer.python), "-I", "-c", program], folder=folder):
            return [f"{distribution.name} is installed and cannot be imported:\n{failure}"]
    return []


def _failure(command: list[str], folder: Path | None = None) -> str | None:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return (ran.stdout + ran.stderr).strip() or f"status {ran.returncode}" if ran.returncode else None
