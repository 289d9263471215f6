"""Every public symbol of the installed distributions has a type that is written down."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.typing.checkers import PACKAGES, Completeness, TypedEnvironment

WITHOUT_TYPES = {
    "accelerate": {"pa_core/_accelerate.py", "pa_callbacks_extra/experiment_trackers.py"},
    "fsspec": {"pa_data/files/_file_systems.py", "pa_checkpoint/_remote_folder.py"},
    "pyarrow": {"pa_data/files/_parquet.py", "pa_core/predictions/parquet.py"},
    "tqdm": {"pa_core/_tqdm.py"},
}
"""Packages without `py.typed`, and the modules of ours that take objects of each of them, and type them."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PACKAGES)
def test_a_distribution_is_typed_completely(completeness: dict[str, Completeness], name: str) -> None:
    """`pyright --verifytypes` knows every symbol of it, and infers none."""
    assert completeness[name].incomplete == ()
    assert completeness[name].score == 1
    assert completeness[name].num_symbols > 0


@pytest.mark.parametrize("package", PACKAGES.values())
def test_types_of_others_come_from_typed_packages(environment: TypedEnvironment, package: str) -> None:
    """What a package imports is typed, or comes in through one typed module: users never meet an unknown type."""
    assert untyped_imports(environment.site_packages / package) == set()


def untyped_imports(folder: Path) -> set[tuple[str, str]]:
    """Where a package imports one without types, other than where it may."""
    found: set[tuple[str, str]] = set()
    for path in folder.rglob("*.py"):
        module = path.relative_to(folder.parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            roots = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - set(PACKAGES.values())
            found.update(
                (module, root) for root in roots if module not in WITHOUT_TYPES.get(root, ()) and not is_typed(root)
            )
    return found


def is_typed(package: str) -> bool:
    """Whether an installed package says that it has types; a single module may be one whose types checkers bring."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.origin is not None
    origin = Path(spec.origin)
    return origin.name != "__init__.py" or (origin.parent / "py.typed").exists()
