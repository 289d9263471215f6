"""What was measured so far, as JSON and as a table of Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from tools.gpu.figures import Figure

__all__ = ["MeasuredPart", "write_report"]


@dataclass
class MeasuredPart:
    """A part, and what came of it.

    Attributes:
        name: The part.
        outcome: How it ended, if it has.
        seconds: The time that it took.
        figures: What it published.
        output: The end of everything else that it printed, where it did not end well.
    """

    name: str
    outcome: Literal["not begun", "under way", "complete", "failed", "cut off"] = "not begun"
    seconds: float = 0.0
    figures: list[Figure] = field(default_factory=list[Figure])
    output: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether somebody should look."""
        return self.outcome in ("failed", "cut off") or any(figure.is_wrong for figure in self.figures)


def write_report(folder: Path, parts: list[MeasuredPart], seconds: float) -> None:
    """Write `gpu_check.json` and `gpu_check.md`.

    Args:
        folder: Where to.
        parts: All parts, also those that have not begun.
        seconds: The time since the beginning.
    """
    document = {"seconds": round(seconds, 1), "parts": [asdict(part) for part in parts]}
    (folder / "gpu_check.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    lines = [f"`python tools/gpu_check.py`, {seconds:.0f} s.", ""]
    lines += ["| part | what | figure | to by hand | note |", "|---|---|---|---|---|"]
    for part in parts:
        if part.outcome != "complete":
            end = part.output.strip().splitlines()[-1:] or [""]
            lines.append(row(part.name, f"**{part.outcome}** after {part.seconds:.0f} s", "", "", end[0][:200]))
        lines += [row(part.name, *cells(figure)) for figure in part.figures]
    (folder / "gpu_check.md").write_text("\n".join(lines) + "\n", "utf-8")


def row(*texts: str) -> str:
    """A row of the table."""
    escaped = (text.replace("|", "\\|").replace("\n", " ") for text in texts)
    return f"| {' | '.join(escaped)} |"


def cells(figure: Figure) -> tuple[str, str, str, str]:
    """All cells of a figure but that of its part."""
    if isinstance(figure.value, str):
        value = figure.value
    else:
        value = "-" if figure.value is None else f"{figure.value:,.4g} {figure.unit}".strip()
    ratio = "" if figure.to_by_hand is None else f"{figure.to_by_hand:.3f}"
    return figure.what, f"**{value}**" if figure.is_wrong else value, ratio, figure.note
