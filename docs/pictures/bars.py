"""What a step costs, in bars: the figures are those of the pages about cost, which the benchmark writes."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from pathlib import Path

from docs.pictures.drawing import Picture

__all__ = ["draw_cost", "draw_step"]

PAGES = Path(__file__).parents[1] / "maintainers"
TASKS = ("data in memory", "augmented images, two workers", "transformer, four batches in an update")
TRAINERS = {
    "ours": "Trainer of pa-core",
    "by hand": "plain PyTorch",
    "by accelerate": "accelerate",
    "fabric": "Lightning Fabric",
    "ignite": "Ignite",
    "torchtnt": "TorchTNT",
    "transformers": "transformers",
    "pytorch accelerated": "pytorch-accelerated",
    "lightning": "Lightning",
}
LOOPS = {"by hand": "plain PyTorch", "ours bare": "Trainer without callbacks", "ours": "Trainer"}
PARTS = {"forward": "torch", "after the": "sums, checks, events", "after clearing": "next batch"}
"""How the rows of the table begin; of two that fit, the longer one counts."""
KINDS = ("faint", "two solid", "one solid")


def cells(page: str) -> list[list[str]]:
    """The cells of each row of the tables of a page, without bold."""
    rows = re.findall(r"^ *\| (.*) \|$", (PAGES / page).read_text(), re.MULTILINE)
    return [[cell.strip().strip("*") for cell in row.split(" | ")] for row in rows]


def draw_cost(picture: Picture) -> None:
    """A bar for each trainer in each task: the median of the rounds, and their range as a line."""
    rows, y = {(row[0], row[1]): row for row in cells("cost-figures.md")}, 18
    trainers = {variant: name for variant, name in TRAINERS.items() if (f"a step, {TASKS[0]}", variant) in rows}
    for task in TASKS:
        picture.text(8, y, task.capitalize(), "bold")
        for variant, name in trainers.items():
            row, kind = rows[f"a step, {task}", variant], "one solid" if variant == "ours" else "faint"
            median, least, most = map(float, (row[4], *row[5].split(" to ")))
            y += 19
            picture.text(8, y + 4, name, "bold" if variant == "ours" else "")
            picture.box(136, y - 7, 50 * median, 13, kind)
            picture.line((136 + 50 * least, y), (136 + 50 * most, y), kind="ink")
            picture.text(142 + 50 * max(median, most), y + 4, f"{median:.2f}", "bold" if variant == "ours" else "")
        picture.line((186, y - 19 * len(trainers) + 5), (186, y + 8), kind="dotted ink")
        y += 36
    picture.text(8, y - 6, "Time of a step, relative to plain PyTorch: the median", "faint")
    picture.text(8, y + 10, "of several rounds and their range, on two CPU cores.", "faint")


def draw_step(picture: Picture) -> None:
    """A bar for each loop, divided into what its time is spent on, in percent of a step of plain PyTorch."""
    rows = cells("cost.md")
    table = rows[[row[0] for row in rows].index("part of the step") :][:7]
    for x, part, kind in zip((8, 58, 200), PARTS.values(), KINDS, strict=True):
        picture.box(x, 8, 12, 12, kind)
        picture.text(x + 16, 18, part)
    y = 46
    for variant, name in LOOPS.items():
        column = table[0].index(variant)
        spent = dict.fromkeys(PARTS, 0.0)
        for row in table[1:]:
            spent[max((begin for begin in PARTS if row[0].startswith(begin)), key=len)] += float(row[column])
        ends = [0.0, *accumulate(spent.values())]
        picture.text(8, y, f"{name}: {ends[-1]:.0f} %")
        for (begin, end), kind in zip(pairwise(ends), KINDS, strict=True):
            picture.box(8 + 3.4 * begin, y + 6, 3.4 * (end - begin), 18, kind)
        y += 46
