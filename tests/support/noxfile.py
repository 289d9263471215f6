"""What noxfile.py has, without running it: nox is not installed where the tests are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

__all__ = ["sessions"]

ROOT = Path(__file__).parents[2]


def sessions() -> set[str]:
    """The names of its sessions: functions, and the rows of its table."""
    text = (ROOT / "noxfile.py").read_text()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    decorated = {one.name: [ast.unparse(decorator) for decorator in one.decorator_list] for one in functions}
    rows: list[str] = re.findall(r'^    "(\w+)": Check\(', text, re.MULTILINE)
    return {name for name, found in decorated.items() if any("nox.session" in line for line in found)} | set(rows)
