"""The maps of the modules of each distribution are complete, and tests can be found by name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Map:
    """What a page for maintainers says of the modules of a package, where these are, and their tests."""

    text: str
    modules: Path
    tests: Path

    def rows(self) -> list[tuple[str, str, list[str]]]:
        """The rows of the map: a module, its purpose, and its test files."""
        found: list[tuple[str, str, str]] = re.findall(
            r"^\| `([\w/]+)` \| ([^|]+) \| ([^|]*) \|$", self.text, re.MULTILINE
        )
        return [(module, purpose, re.findall(r"`([\w/.]+\.py)`", tests)) for module, purpose, tests in found]


PAGES = ROOT / "docs" / "maintainers"
ARCHITECTURE = (PAGES / "architecture.md").read_text()
OF_PA_CORE, *OF_OTHERS = re.split(r"^### The modules of ", (PAGES / "modules.md").read_text(), flags=re.MULTILINE)
TEXTS = {
    "pa_core": OF_PA_CORE,
    "pa_trial": (PAGES / "architecture-of-trials.md").read_text(),
    **{text[1:].partition("`")[0]: text for text in OF_OTHERS},
}
"""What the pages say of each package; a section begins with its name."""


def map_of(distribution: str) -> Map:
    """The map of the modules of a distribution."""
    package = "pytorch_accelerated" if distribution == "pa-compat" else distribution.replace("-", "_")
    return Map(
        TEXTS[package], ROOT / "packages" / distribution / "src" / package, ROOT / "packages" / distribution / "tests"
    )


@pytest.fixture(params=sorted(path.name for path in (ROOT / "packages").iterdir()))
def mapped(request: pytest.FixtureRequest) -> Map:
    """Each map in turn."""
    return map_of(request.param)


def test_each_module_has_one_row_with_a_purpose_and_tests(mapped: Map) -> None:
    """Whoever changes a module finds out on the page what it is for, and which tests to run."""
    files = {path.relative_to(mapped.modules).with_suffix("").as_posix() for path in mapped.modules.rglob("*.py")}
    modules = {file for file in files if not file.endswith("__init__")}
    assert Counter(module for module, _, _ in mapped.rows()) == Counter(modules)
    assert [module for module, _, tests in mapped.rows() if not tests] == []


def test_each_test_file_is_on_the_page_and_each_that_is_there_exists(mapped: Map) -> None:
    """A test file cannot be forgotten on the page, nor be named there once it is gone."""
    named = set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", mapped.text))
    assert named == {path.relative_to(mapped.tests).as_posix() for path in mapped.tests.rglob("test_*.py")}


def test_each_module_that_the_text_of_the_page_names_exists(mapped: Map) -> None:
    """What the pages say in sentences, of a batch or of a save, names modules that exist."""
    named = set(
        re.findall(r"`((?:[a-z_]+/)+[a-z_]+)`", mapped.text + ARCHITECTURE * (mapped.modules.name == "pa_core"))
    )
    missing = [module for module in sorted(named) if not (mapped.modules / f"{module}.py").exists()]
    assert [module for module in missing if not (ROOT / module).exists()] == []


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
        path = next(ROOT.glob(f"packages/*/src/{file}"), map_of("pa-core").modules / file)
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
