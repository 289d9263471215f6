"""Private names of torch are used in two modules, where a new version of torch is tried."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin import DISTRIBUTIONS

PACKAGES = Path(__file__).parents[2] / "packages"
OF_TORCH = sorted(PACKAGES.glob("*/src/*/_torch.py"))
OF_ACCELERATE = {"pa_core/_accelerate.py": {"_schedulers"}}


def private_words(node: ast.AST) -> Iterator[str]:
    """The private attributes and texts in a part of a program, except those of ``self``."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and not (isinstance(one.value, ast.Name) and one.value.id in {"self", "cls"}):
            yield one.attr
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def private_imports(node: ast.AST) -> Iterator[str]:
    """What is imported of torch under a private name."""
    for one in ast.walk(node):
        if isinstance(one, ast.ImportFrom):
            yield from (f"{one.module}.{alias.name}" for alias in one.names)
        elif isinstance(one, ast.Import):
            yield from (alias.name for alias in one.names)


NAMES = {
    word for path in OF_TORCH for word in private_words(ast.parse(path.read_text())) if re.fullmatch(r"_[a-z]\w+", word)
}


def found_in(source: str) -> list[str]:
    """The private names of torch in a program."""
    tree = ast.parse(source)
    imported = [name for name in private_imports(tree) if re.match(r"torch\b.*\._[a-z]", name)]
    attributes = [
        ast.unparse(one)
        for one in ast.walk(tree)
        if isinstance(one, ast.Attribute) and re.match(r"torch(\.\w+)*\._[a-z]", ast.unparse(one))
    ]
    return [*imported, *attributes, *(word for word in private_words(tree) if word in NAMES)]


@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS.keys() - {"pa-finetuning"}))  # which requires torch alone
def test_only_one_module_has_private_names_of_torch(distribution: str) -> None:
    """Whoever tries a new version of torch has one module to look at, and its test."""
    source = PACKAGES / distribution / "src"
    paths = {path.relative_to(source).as_posix(): path for path in source.rglob("*.py")}
    found = {
        name: {*found_in(path.read_text("utf-8"))} - OF_ACCELERATE.get(name, set())
        for name, path in paths.items()
        if path not in OF_TORCH
    }
    assert paths != {}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch.utils import _pytree",
        "from torch.distributed.tensor._utils import compute",
        "torch._foreach_mul_(tensors, 2)",
        "torch.autograd.graph._anything()",
        "module._get_fsdp_state",
        'getattr(loader, "_iterator")',
    ],
)
def test_each_way_to_a_private_name_is_seen(line: str) -> None:
    """Imports, attributes of torch, and names of its objects, as attributes and as texts."""
    assert found_in(line) != []


def test_own_private_names_are_free() -> None:
    """An attribute of a class of ours may have any name."""
    assert found_in("class Own:\n    def __init__(self):\n        self._modules = []") == []
