"""What noxfile.py has, without running it: nox is not installed where the tests are."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["sessions"]

ROOT = Path(__file__).parents[2]


def sessions() -> set[str]:
    """The names of its sessions."""
    functions = [
        node for node in ast.parse((ROOT / "noxfile.py").read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    decorated = {one.name: [ast.unparse(decorator) for decorator in one.decorator_list] for one in functions}
    return {name for name, decorators in decorated.items() if "nox.session" in decorators}
