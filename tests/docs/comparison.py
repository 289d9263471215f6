"""Compares what was printed with what a page shows: word by word, with any numbers."""

from __future__ import annotations

import re

_VARYING = re.compile(
    r"0x[0-9a-f]+"  # an address
    r"|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # a UUID
    r"|\*?(?<![\w.])[+-]?\d[\d,.:]*(?<![,.:])(e[+-]?\d+)?"  # a number, a time, a best value
    r"|\d+"
)


def differs(printed: str, shown: str) -> bool:
    """Whether a page shows something else than what was printed.

    Any number stands for any other, a run of spaces for any run; ``...`` stands for any text within a line, and for
    any lines where it is a line.
    """
    pattern = "".join(_line_pattern(line) for line in _lines(shown))
    return re.fullmatch(pattern, "".join(line + "\n" for line in _lines(printed))) is None


def _lines(text: str) -> list[str]:
    lines = [" ".join(_VARYING.sub("0", line).split()) for line in text.rstrip().splitlines()]
    while lines and not lines[0]:
        del lines[0]
    return lines


def _line_pattern(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*"
    return re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
