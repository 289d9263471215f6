"""How scripts change when their loop becomes a ``Run``: the differences that the documentation shows.

``python -m tests.examples.porting`` writes them into the page.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

__all__ = ["PAGE", "SCRIPTS", "changes", "differences", "with_differences"]

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "porting"
PAGE = ROOT / "docs" / "own-loops.md"

_CONTEXT = 2
_BLOCK = re.compile(r"(<!-- diff: (\w+) -->\n)```diff\n.*?```\n", re.DOTALL)


def differences(name: str) -> str:
    """Return the differences between a script and its port, as ``git diff --ignore-all-space`` shows them.

    Args:
        name: The name of the script.
    """
    before, after = _lines(name), _lines(f"{name}_ported")
    shown: list[str] = []
    for group in _opcodes(before, after).get_grouped_opcodes(_CONTEXT):
        shown.append("@@" if shown else "")
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                shown += [f" {line}".rstrip() for line in after[new_start:new_end]]
                continue
            shown += [f"-{line}" for line in before[start:end]]
            shown += [f"+{line}" for line in after[new_start:new_end]]
    return "\n".join(shown).strip("\n") + "\n"


def changes(name: str) -> tuple[int, int]:
    """Return how many lines of a port are new or changed, and how many of the script are gone; empty ones aside.

    Args:
        name: The name of the script.
    """
    before, after = ([line for line in _lines(one) if line.strip()] for one in (name, f"{name}_ported"))
    changed = [opcode for opcode in _opcodes(before, after).get_opcodes() if opcode[0] != "equal"]
    return sum(end - start for *_, start, end in changed), sum(end - start for _, start, end, *_ in changed)


def with_differences(page: str) -> str:
    """Return the page with the differences of today."""
    return _BLOCK.sub(lambda found: f"{found[1]}```diff\n{differences(found[2])}```\n", page)


def _lines(name: str) -> list[str]:
    return (SCRIPTS / f"{name}.py").read_text().splitlines()


def _opcodes(before: list[str], after: list[str]) -> difflib.SequenceMatcher[str]:
    """What changes but for the indentation, which a block around the loop gives to all of its lines."""
    old, new = ([line.strip() for line in lines] for lines in (before, after))
    return difflib.SequenceMatcher(None, old, new, autojunk=False)


if __name__ == "__main__":
    PAGE.write_text(with_differences(PAGE.read_text()))
