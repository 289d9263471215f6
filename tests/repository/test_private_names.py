"""Private names of torch are used in two modules, and of pa-core no private ones by its siblings."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin import DISTRIBUTIONS
from tests.repository.api import MODULES

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


ROOT = Path(__file__).parents[2]
SIBLINGS = sorted(ROOT.glob("packages/*/src/*/"))
PUBLIC = {name for name in MODULES if name.partition(".")[0] == "pa_core"}


def unlisted_imports(source: str) -> Iterator[str]:
    """What a module imports of pa_core, for type checkers alone too, that no public module has in ``__all__``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pa_core":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name not in PUBLIC and not _is_public(node.module or "", alias.name):
                    yield name
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name for name in names if name.partition(".")[0] == "pa_core" and name not in PUBLIC)


def _is_public(module: str, name: str) -> bool:
    return module in PUBLIC and name in importlib.import_module(module).__all__


@pytest.mark.parametrize("folder", [one for one in SIBLINGS if one.name != "pa_core"], ids=lambda folder: folder.name)
def test_only_public_names_of_pa_core_are_imported(folder: Path) -> None:
    """Whatever another distribution takes from pa-core is in the snapshot of the public interface."""
    paths = sorted(folder.rglob("*.py"))
    assert paths != []
    found = {
        f"{path.relative_to(folder)}: {name}" for path in paths for name in unlisted_imports(path.read_text("utf-8"))
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import pa_core", []),
        ("from pa_core import Trainer, distributed", []),
        ("from pa_core.tracking import RunHistory as History", []),
        ("from pa_core.trainer import Trainer", ["pa_core.trainer.Trainer"]),
        ("from pa_core.tracking import plot", ["pa_core.tracking.plot"]),
        ("import pa_core.trainer", ["pa_core.trainer"]),
        ("if TYPE_CHECKING:\n    from pa_core.types import BatchT", ["pa_core.types.BatchT"]),
    ],
)
def test_a_private_import_is_noticed(line: str, found: list[str]) -> None:
    """Names of private modules are found, and those of submodules that nobody documents."""
    assert list(unlisted_imports(line)) == found
