"""The maps of the modules of each distribution are complete, and tests can be found by name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tools import modules

ROOT = Path(__file__).parents[2]


PAGES = ROOT / "docs" / "maintainers"
ARCHITECTURE = (PAGES / "architecture.md").read_text()


def test_the_page_of_modules_is_current() -> None:
    """Whoever changes a module reads there what it is for, and which tests to run."""
    assert modules.PAGE.read_text() == modules.page(), "run python tools/modules.py"


def test_the_page_names_each_module_with_a_purpose_and_tests() -> None:
    """A module cannot be without a docstring, or without tests, nor the tests of a distribution without a place."""
    page = modules.PAGE.read_text()
    rows: list[tuple[str, str, str]] = re.findall(r"^\| `([\w.]+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    files = {name for name in modules.modules() if not name.endswith("__init__")}
    assert Counter(name for name, _, _ in rows) == Counter(files)
    assert [name for name, purpose, tests in rows if not purpose or not tests] == []
    assert [path.name for path in ROOT.glob("packages/*/tests/**/test_*.py") if f"`{path.name}`" not in page] == []


def test_tests_of_a_change_are_found_by_name_and_by_import() -> None:
    """A module has the tests that are called as it is, or import what it defines; a file of tests is its own."""
    package = ROOT / "packages" / "pa-core"
    found = {
        path.name for path in modules.tests_for([package / "src" / "pa_core" / "callbacks" / "terminate_on_nan.py"])
    }
    assert {"test_terminate_on_nan.py"} <= found
    itself = package / "tests" / "test_modes.py"
    assert list(modules.tests_for([itself])) == [itself]


def test_each_module_that_architecture_names_exists() -> None:
    """What the page says in sentences, of a batch or of a save, names modules that exist."""
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+)`", ARCHITECTURE))
    places = [ROOT, ROOT / "packages" / "pa-core" / "src" / "pa_core"]
    assert [
        name
        for name in sorted(named)
        if not any((place / end).exists() for place in places for end in (name, f"{name}.py"))
    ] == []


def definition_of(source: str, name: str) -> str | None:
    """The text of a class, a function or a method in a module; None where there is none of this name."""
    node: ast.AST = ast.parse(source)
    for part in name.split("."):
        inner = [one for one in ast.iter_child_nodes(node) if getattr(one, "name", None) == part]
        if not inner:
            return None
        node = inner[-1]  # after its overloads
    return ast.get_source_segment(source, node)


REFERENCE = re.compile(r"`([\w/]+\.py):([\w.]+)`(?:\s+\(`([^`]+)`\))?")


def test_the_code_that_the_page_refers_to_is_there() -> None:
    """Each file and definition, and each line of it: whoever moves one of them moves the reference too."""
    references: list[tuple[str, str, str]] = REFERENCE.findall(ARCHITECTURE)
    assert len(references) >= 15
    for file, name, line in references:
        path = next(ROOT.glob(f"packages/*/src/{file}"), ROOT / "packages" / "pa-core" / "src" / "pa_core" / file)
        found = definition_of(path.read_text(), name) if path.exists() else None
        assert found is not None, f"{file} has no {name}"
        assert any(line in one for one in found.splitlines()), f"{name} in {file} has no line with {line}"


def test_a_line_that_is_gone_is_noticed() -> None:
    """A method is found in its class alone, and of overloads the one with a body."""
    source = "class A:\n    def f(self): return 1\n\ndef g(): ...\ndef g(): return 2"
    assert definition_of(source, "A.f") == "def f(self): return 1"
    assert definition_of(source, "g") == "def g(): return 2"
    assert definition_of(source, "f") is None


def test_no_two_test_files_have_the_same_name() -> None:
    """The name of a test file is enough to find it, and to say which one failed."""
    folders = [ROOT / "tests", *ROOT.glob("packages/*/tests")]
    names = Counter(path.name for folder in folders for path in folder.rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []
