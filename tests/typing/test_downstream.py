"""A project of a user's stands on the wheels alone: it runs, and strict checkers find nothing in it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.launching import run_command
from tests.typing.checkers import PACKAGES, ROOT, TypedEnvironment

PROJECT = ROOT / "tests" / "downstream"
NEEDED = ("pa-callbacks-extra", "pa-core", "pa-schedulers")
BENEATH = ("pa-checkpoint", "pa-data", "pa-distributed")
"""What comes with pa-core, because it requires them."""


@pytest.fixture(scope="module")
def needed(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> TypedEnvironment:
    """An environment with the wheels that the project declares."""
    folder = tmp_path_factory.mktemp("downstream") / "environment"
    return TypedEnvironment.make(folder, [wheels[name] for name in (*NEEDED, *BENEATH)])


def test_it_declares_what_it_imports() -> None:
    """The project needs three of the six distributions, and imports no other one."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[\[>]", line)[0] for line in project["dependencies"]}
    imported: set[str] = set()
    for path in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add((node.module or "").partition(".")[0])
    names = {**PACKAGES, "scikit-learn": "sklearn", "typing-extensions": "typing_extensions"}
    assert {names.get(name, name) for name in declared} == imported - sys.stdlib_module_names
    assert declared & PACKAGES.keys() == set(NEEDED)


def test_it_finds_what_it_needs_and_no_more(needed: TypedEnvironment) -> None:
    """Where the project is checked and run, there are the three distributions with what they require, and no others."""
    found = "import importlib.util as it, sys; print([name for name in sys.argv[1:] if it.find_spec(name)])"
    ran = run_command([str(needed.python), "-c", found, *PACKAGES.values()], folder=needed.folder)
    assert ast.literal_eval(ran.output) == [PACKAGES[name] for name in PACKAGES if name in (*NEEDED, *BENEATH)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_strict_checker_finds_nothing(needed: TypedEnvironment, checker: str) -> None:
    """With the settings of the project itself: no error, no ignore, no cast."""
    commands = {
        "mypy": ["mypy", f"--python-executable={needed.python}", f"--cache-dir={needed.folder}/mypy", "src"],
        "pyright": ["pyright", f"--pythonpath={needed.python}", f"--project={PROJECT}"],
    }
    command = [sys.executable, "-m", *commands[checker]]
    checked = run_command(command, folder=PROJECT, timeout=300)
    assert checked.status == 0
    sources = "".join(path.read_text() for path in (PROJECT / "src").rglob("*.py"))
    assert not re.search(r"type: ignore|pyright: ignore|\bcast\(", sources)


def test_it_reads_digits(needed: TypedEnvironment, tmp_path: Path) -> None:
    """The command trains in seconds, saves the best weights, and reads most of the digits that it has not seen."""
    command = [str(needed.python), "-m", "digit_reader.cli", "--epochs=6", f"--output={tmp_path / 'net.pt'}"]
    ran = run_command(command, folder=tmp_path, env={"PYTHONPATH": str(PROJECT / "src")})

    assert ran.status == 0
    match = re.search(r"Read (\d+\.\d)% of the test digits rightly", ran.output)
    assert match is not None
    assert float(match[1]) > 93
    assert (tmp_path / "net.pt").exists()
