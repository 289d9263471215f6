"""Writes the table of `docs/maintainers/modules.md`: `python tools/modules.py`; or prints tests: `... PATH ...`.

The purpose of a module is the first line of its docstring. Its tests are found by their name, as `test_resume.py` for
`resume.py`, and by their imports: the module, or an object that it defines. If there are none, the tests of
the modules that import it are taken.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "maintainers" / "modules.md"
START = "The tables below are written by `python tools/modules.py`.\n"
IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (\([^)]*\)|[^\n#]*)|import ([\w.]+))", re.MULTILINE)
COMMON = 6
"""The number of test files above which an import says little about the purpose of a test."""


@functools.cache
def modules() -> dict[str, Path]:
    """Return each module of each distribution, by its name."""
    paths = sorted(ROOT.glob("packages/*/src/**/*.py"))
    return {".".join(path.relative_to(ROOT).parts[3:]).removesuffix(".py"): path for path in paths}


@functools.cache
def test_files() -> list[Path]:
    """Return all test files."""
    return sorted([*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("tests/**/test_*.py")])


@functools.cache
def statements(path: Path) -> list[tuple[str, list[str]]]:
    """Return the imports of a file: each imported module, with the imported names."""
    found: list[tuple[str, str, str]] = IMPORT.findall(path.read_text("utf-8"))
    return [(module or whole, re.findall(r"\w+(?: as \w+)?", names)) for module, names, whole in found]


@functools.cache
def defining(module: str, name: str) -> str | None:
    """Return the module that defines a name which another module, perhaps a package, exports."""
    if f"{module}.{name}" in modules():
        return f"{module}.{name}"
    if module in modules():
        return module
    package = modules().get(f"{module}.__init__")
    for home, names in statements(package) if package else ():
        if any(name == taken.rpartition(" ")[2] for taken in names):
            return defining(home, name)
    return None


@functools.cache
def imported(path: Path) -> set[tuple[str, str]]:
    """Return the imports of a file from our distributions: the defining module, and the name."""
    found: set[tuple[str, str]] = set()
    for module, names in statements(path):
        taken = (name.partition(" ")[0] for name in names)
        found |= {(home, name) for name in taken if (home := defining(module, name))}
        found |= {(module, "")} if module in modules() else set()
    return found


@functools.cache
def importers() -> dict[str, dict[str, list[Path]]]:
    """Return the test files that import an object, by the module that defines it, and by its name."""
    found: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in test_files():
        for home, name in imported(path):
            found[home][name].append(path)
    return found


def distribution_of(module: str) -> Path:
    """Return the folder of the distribution of a module."""
    return ROOT / "packages" / modules()[module].relative_to(ROOT / "packages").parts[0]


@functools.cache
def own_tests(module: str) -> list[Path]:
    """Return the tests of a module by their names, and by imports that few other tests have."""
    distribution = distribution_of(module)
    stem = module.rpartition(".")[2].strip("_")
    named = [
        path
        for path in test_files()
        if path.is_relative_to(distribution) and f"_{stem}_" in f"{path.stem}_".replace("test_", "_", 1)
    ]
    by_import = [path for name, paths in importers()[module].items() if name and len(paths) <= COMMON for path in paths]
    return sorted({*named, *by_import})


def tests_of(module: str) -> list[Path]:
    """Return the tests of a module or, if it has none, of the modules that import it, or of its distribution."""
    seen, level = {module}, {module}
    while level:
        if tests := sorted({path for name in level for path in own_tests(name)}):
            return tests
        level = {name for name, path in modules().items() if level & {home for home, _ in imported(path)}} - seen
        seen |= level
    return [path for path in test_files() if path.is_relative_to(distribution_of(module))]


def tests_for(paths: list[Path]) -> Iterator[Path]:
    """Return the tests for files: a test file, the tests of a module, and tests that import a module of `tests`."""
    names = {path: name for name, path in modules().items()}
    for path in paths:
        if path in names:
            yield from tests_of(names[path])
        elif path.name.startswith("test_") or path.is_dir():
            yield path
        elif path.suffix == ".py":
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield from (test for test in test_files() if module in test.read_text("utf-8"))


def table() -> Iterator[str]:
    """Yield the generated part of the page: the modules of each distribution, their purposes, and their tests."""
    for distribution in sorted(ROOT.glob("packages/*")):
        yield f"\n## {distribution.name}\n\n| module | purpose | tests |\n|---|---|---|\n"
        of_several = [path for path in test_files() if path.is_relative_to(distribution)]
        for name, path in modules().items():
            if path.is_relative_to(distribution) and path.stem != "__init__":
                purpose = (
                    (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
                    .partition("\n")[0]
                    .rstrip(".")
                    .replace("``", "`")
                )
                tests = tests_of(name)[:COMMON]
                of_several = [test for test in of_several if test not in tests]
                yield f"| `{name}` | {purpose} | {listed(tests)} |\n"
        if of_several:
            yield f"\nTests of several modules together: {listed(of_several)}.\n"


def listed(tests: list[Path]) -> str:
    """Return the names of files."""
    return ", ".join(f"`{test.name}`" for test in tests)


def page() -> str:
    """Return the whole page; the text above the table does not change."""
    return "".join([PAGE.read_text().partition(START)[0], START, *table()])


def main() -> None:
    """Write the page, or print the tests of the files that were passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="print the tests of these files instead")
    if paths := parser.parse_args().paths:
        print(
            "\n".join(sorted({str(test.relative_to(ROOT)) for test in tests_for([path.resolve() for path in paths])}))
        )
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
