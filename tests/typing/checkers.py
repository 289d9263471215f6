"""Running type checkers as a user has them: strict, on code that finds installed wheels and nothing else of ours."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.launching import Launched, run_command
from tests.plugin import DISTRIBUTIONS

ROOT = Path(__file__).parents[2]
PACKAGES = DISTRIBUTIONS
PYTHON_VERSIONS = ("3.11", "3.12", "3.13")
QUIET = {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # or a newer version would be announced within the output
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"

MYPY = """
[mypy]
strict = True
explicit_package_bases = True
namespace_packages = True
warn_unreachable = True
enable_error_code = explicit-override, ignore-without-code, possibly-undefined, redundant-expr, truthy-bool
"""
PYRIGHT = {
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,  # so that an ignore meant for mypy never hides an error of pyright
    "reportUnnecessaryTypeIgnoreComment": "error",
}


def built_wheels(folder: Path) -> dict[str, Path]:
    """The wheel of each distribution: from the folder `$TYPED_WHEELS`, or built from the sources into `folder`."""
    given = os.environ.get("TYPED_WHEELS")
    if given is None:
        for name in PACKAGES:
            command = [sys.executable, "-c", BUILD, str(folder)]
            subprocess.run(command, cwd=ROOT / "packages" / name, check=True, stdout=subprocess.DEVNULL)
    wheels: dict[str, Path] = {}
    for name in PACKAGES:
        (wheels[name],) = Path(given or folder).glob(f"{name.replace('-', '_')}-*.whl")
    return wheels


@dataclass(frozen=True)
class TypedEnvironment:
    """A virtual environment with wheels of ours in it, and with what else the interpreter has that runs this.

    What the interpreter has of ours, be it sources or wheels, is left out.
    """

    folder: Path

    @classmethod
    def make(cls, folder: Path, wheels: Iterable[Path]) -> TypedEnvironment:
        """Make the environment, and install the wheels."""
        venv.create(folder, symlinks=os.name != "nt")
        environment = cls(folder)
        ours = {*PACKAGES.values(), *(name.replace("-", "_") for name in PACKAGES)}
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if path.suffix != ".pth" and path.name.partition("-")[0] not in ours:
                (environment.site_packages / path.name).symlink_to(path)
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(environment.site_packages)
        return environment

    @property
    def site_packages(self) -> Path:
        """Where the wheels are unpacked."""
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    @property
    def python(self) -> Path:
        """The interpreter."""
        return Path(sysconfig.get_path("scripts", "venv", {"base": str(self.folder)}), "python")

    def mypy(self, code: Path, version: str = PYTHON_VERSIONS[0]) -> Launched:
        """Check a folder of code with `mypy --strict`, as of a version of Python."""
        settings = self.folder / "mypy.ini"
        settings.write_text(MYPY)
        options = [
            f"--config-file={settings}",
            f"--python-executable={self.python}",
            f"--python-version={version}",
            f"--cache-dir={self.folder / 'mypy'}",
            "--no-error-summary",
        ]
        return self._run([sys.executable, "-m", "mypy", *options, "."], code)

    def pyright(self, code: Path, version: str = PYTHON_VERSIONS[0]) -> Launched:
        """Check a folder of code with pyright in its strict mode, as of a version of Python."""
        settings = code / f"pyright-{version}.json"
        settings.write_text(json.dumps({**PYRIGHT, "pythonVersion": version}))
        options = [f"--project={settings}", f"--pythonpath={self.python}", f"--pythonversion={version}"]
        return self._run([sys.executable, "-m", "pyright", *options], code)

    def completeness(self, package: str) -> Completeness:
        """Have pyright look at every public symbol of an installed package, for a type that is known."""
        command = [sys.executable, "-m", "pyright", "--verifytypes", package, "--ignoreexternal", "--outputjson"]
        output = self._run(command, self.folder).output
        report = json.loads(output)["typeCompleteness"]
        incomplete = [
            f"{symbol['name']}: {symbol['diagnostics'][0]['message'] if symbol['diagnostics'] else symbol['category']}"
            for symbol in report["symbols"]
            if symbol["isExported"] and (not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"])
        ]
        return Completeness(
            report["completenessScore"], sum(report["exportedSymbolCounts"].values()), tuple(incomplete)
        )

    def _run(self, command: list[str], folder: Path) -> Launched:
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"  # pyright asks the first python on it
        env = {"PATH": path, "VIRTUAL_ENV": str(self.folder), **QUIET}
        return run_command(command, folder=folder, env=env, timeout=300)


@dataclass(frozen=True)
class Completeness:
    """What `pyright --verifytypes` says of a package."""

    score: float
    num_symbols: int
    incomplete: tuple[str, ...]


@functools.cache
def copy_code(folder: Path) -> Path:
    """Copy the typing tests to where nothing else of this repository is, and return that folder."""
    target = folder / "tests" / "typing"
    for name in ("must_fail", "must_pass"):
        shutil.copytree(ROOT / "tests" / "typing" / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests" / "typing" / "vocabulary.py", target)
    return folder
