"""The distributions beside pa-core use its public names only, so that no release of pa-core alone breaks them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository.api import MODULES

ROOT = Path(__file__).parents[2]
SIBLINGS = sorted(ROOT.glob("packages/*/src/*/"))
PUBLIC = {name for name in MODULES if name.partition(".")[0] == "pa_core"}


def private_imports(source: str) -> Iterator[str]:
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
        f"{path.relative_to(folder)}: {name}" for path in paths for name in private_imports(path.read_text("utf-8"))
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import pa_core", []),
        ("from pa_core import Trainer, distributed", []),
        ("from pa_core.storage import read_state as read", []),
        ("from pa_core.trainer import Trainer", ["pa_core.trainer.Trainer"]),
        ("from pa_core.storage import torch_file", ["pa_core.storage.torch_file"]),
        ("import pa_core.trainer", ["pa_core.trainer"]),
        ("if TYPE_CHECKING:\n    from pa_core.types import BatchT", ["pa_core.types.BatchT"]),
    ],
)
def test_a_private_import_is_noticed(line: str, found: list[str]) -> None:
    """Names of private modules are found, and those of submodules that nobody documents."""
    assert list(private_imports(line)) == found
