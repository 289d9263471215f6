"""Compare what a program prints with what documentation says that it prints."""

from __future__ import annotations

import ast
import re
from pathlib import Path

__all__ = ["is_end_of", "shown_in_docstring"]

_NUMBER = re.compile(r"[*+-]?(?<![A-Za-z_\d])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


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
    return "\n".join(line.removeprefix("    ").rstrip() for line in blocks[-1].strip("\n").splitlines())


def is_end_of(output: str, expected: str) -> bool:
    """Say whether an output ends as expected: any number is as good as another, and so is any number of spaces.

    `...` stands for any text within a line; on a line of its own, for any lines.
    """
    lines = [_pattern(line) for line in expected.splitlines()]
    return re.search(rf"^{''.join(lines)}\s*\Z", output, re.MULTILINE) is not None


def _pattern(line: str) -> str:
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    any_text = (_any_number(text) for text in line.strip().split("..."))
    return rf"[ ]*{'.*'.join(any_text)}[ ]*(?:\n|\Z)"


def _any_number(text: str) -> str:
    parts = (re.escape(part) for part in _NUMBER.split(text))
    return re.sub(r"(?:\\ )+", "[ ]+", _NUMBER.pattern.join(parts))
