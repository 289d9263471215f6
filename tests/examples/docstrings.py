"""What the docstrings of the examples say that these print."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

__all__ = ["shown_in_docstring"]


def shown_in_docstring(script: Path) -> str:
    """Return the last indented block of a script's docstring: what it prints at the end.

    Raises:
        ValueError: there is none.
    """
    docstring = ast.get_docstring(ast.parse(script.read_text())) or ""
    blocks = re.findall(r"(?:^ {4}.*\n?|^\n(?= {4}))+", docstring, re.MULTILINE)
    if not blocks or "python " in blocks[-1]:
        message = f"The docstring of {script.name} ends with no indented block of what it prints"
        raise ValueError(message)
    return textwrap.dedent(blocks[-1]).strip("\n")
