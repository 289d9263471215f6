"""What `pa_core` uses of the libraries below it stays small enough to be known."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PA_CORE = ROOT / "packages" / "pa-core" / "src"

MOST_NAMES = {"pa_checkpoint": 20, "pa_data": 25, "pa_distributed": 15}
"""How many names of each library `pa_core` may use."""


def names_used(source: str, library: str) -> Iterator[str]:
    """Yield the names of a library in a source, with their modules; of a whole module, each attribute that is used."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == library:
            for one in node.names:
                name = f"{node.module}.{one.name}"
                if is_module(name):
                    modules[one.asname or one.name] = name
                else:
                    yield name
        elif isinstance(node, ast.Import):
            modules |= {one.asname or one.name: one.name for one in node.names if one.name.partition(".")[0] == library}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (module := modules.get(ast.unparse(node.value))) is not None:
            yield f"{module}.{node.attr}"


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module of one of our distributions."""
    path = ROOT / "packages" / name.partition(".")[0].replace("_", "-") / "src" / name.replace(".", "/")
    return path.with_suffix(".py").exists() or path.is_dir()


@pytest.mark.parametrize("library", MOST_NAMES)
def test_pa_core_uses_few_public_names_of_each_library(library: str) -> None:
    """Whoever changes a library finds what the trainer needs of it; nothing of that is private."""
    used = {name for path in PA_CORE.rglob("*.py") for name in names_used(path.read_text(), library)}
    assert [name for name in used if any(part.startswith("_") for part in name.split("."))] == []
    assert len(used) <= MOST_NAMES[library], sorted(used)


def test_names_are_found_in_every_form_of_an_import() -> None:
    """A whole module that is imported counts by what is used of it."""
    source = "import pa_data\nfrom pa_data import rng, KeyedDataLoader\npa_data.set_epoch(0)\nrng.mix(1)\nrng.mix(2)\n"
    assert {*names_used(source, "pa_data")} == {"pa_data.KeyedDataLoader", "pa_data.rng.mix", "pa_data.set_epoch"}
