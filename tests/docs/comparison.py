"""Compares what was printed with what a page shows: word by word, with any numbers or with nearly the same ones."""

from __future__ import annotations

import functools
import math
import re

_OF_TORCH = re.compile(r"W\d{4} [\d:.]+ \d+ torch/\S+ triton not found")
"""What torch for CUDA logs where triton is missing."""
_VARYING = re.compile(
    r"0x[0-9a-f]+"  # an address
    r"|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # a UUID
    r"|\*?(?<![\w.])[+-]?\d[\d,.:]*(?<![,.:])(e[+-]?\d+)?"  # a number, a time, a best value
    r"|\d+"
)
_RESULT = re.compile(r"(?<![\w.,])\d+\.\d{3,}(?![\w.]| s\b)")  # a loss, not seconds
_CLOSE = 0.05  # another processor rounds otherwise, which training adds up


def differs(printed: str, shown: str, *, same_results: bool = False) -> bool:
    """Whether a page shows something else than what was printed.

    Any number stands for any other, a run of spaces for any run; ``...`` stands for any text within a line, and for
    any lines where it is a line.

    Args:
        printed: What was printed.
        shown: What the page shows.
        same_results: Whether numbers with three decimals and more, which are no seconds, have to be nearly the same.
    """
    lines, wanted = _lines(printed, same_results), _lines(shown, same_results)

    @functools.cache
    def match(line: int, want: int) -> bool:
        if want == len(wanted):
            return line == len(lines)
        if wanted[want] == "...":
            return any(match(later, want + 1) for later in range(line, len(lines) + 1))
        return line < len(lines) and _is_shown(lines[line], wanted[want]) and match(line + 1, want + 1)

    return not match(0, 0)


def _lines(text: str, same_results: bool) -> list[str]:
    printed = (line for line in text.rstrip().splitlines() if not _OF_TORCH.match(line))
    lines = [" ".join(_without_numbers(line, same_results).split()) for line in printed]
    while lines and not lines[0]:
        del lines[0]
    return lines


def _without_numbers(line: str, same_results: bool) -> str:
    """The line with 0 for each number; results stay, between signs that nobody prints."""
    if not same_results:
        return _VARYING.sub("0", line)
    parts = re.split(f"({_RESULT.pattern})", line)
    return "".join(f"\0{part}\0" if place % 2 else _VARYING.sub("0", part) for place, part in enumerate(parts))


def _is_shown(printed: str, shown: str) -> bool:
    texts = shown.split("\0")
    pattern = "\0([^\0]*)\0".join(re.escape(text).replace(r"\.\.\.", ".*") for text in texts[::2])
    found = re.fullmatch(pattern, printed)
    return found is not None and all(
        math.isclose(float(one), float(result), rel_tol=_CLOSE)
        for one, result in zip(found.groups(), texts[1::2], strict=True)
    )
