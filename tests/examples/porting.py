"""Scripts of other loops and trainers, and what they become: the differences that the documentation shows.

``python -m tests.examples.porting`` writes them into the pages.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "PORTS", "Port", "changes", "differences", "with_differences"]

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "porting"
PAGES = ROOT / "docs" / "coming-from"

_CONTEXT = 2
_BLOCK = re.compile(r"(<!-- diff: ([\w/]+) -->\n)```diff\n.*?```\n", re.DOTALL)
_NUMBERS = re.compile(r"`([\w/]+)\.py`: \w+ lines new or changed, \w+ gone")


@dataclass(frozen=True)
class Port:
    """A script and what it becomes.

    Attributes:
        name: The folder, which is the kind, and the name of the script; that of the port ends in ``_ported``.
        loop: "trainer" or "own": whose loop trains in the port.
        arguments: What both are called with in a test, so that they take seconds.
        learned: What both print when they have learned, with the last number to compare as its group.
        bounds: Between which two values this number has to be.
        kill_at: The step of an optimizer after which a test kills the port.
        weights: The file of weights that the port writes in the end.
    """

    name: str
    loop: str
    arguments: tuple[str, ...]
    learned: str
    bounds: tuple[float, float]
    kill_at: int
    weights: str

    @property
    def kind(self) -> str:
        """Where it comes from."""
        return self.name.partition("/")[0]

    @property
    def original(self) -> Path:
        """The script as it was."""
        return SCRIPTS / f"{self.name}.py"

    @property
    def port(self) -> Path:
        """What it has become."""
        return SCRIPTS / f"{self.name}_ported.py"

    def has_learned(self, output: str) -> bool:
        """Whether the last number that was printed is between the bounds.

        Args:
            output: What the script or its port printed.
        """
        lowest, highest = self.bounds
        return lowest <= float(re.findall(self.learned, output)[-1]) <= highest


PORTS = (
    Port("pytorch/digits", "own", ("--epochs=2",), r"epoch 1 accuracy ([\d.]+)", (0.9, 1), 60, "digits.pt"),
    Port("pytorch/finetune", "trainer", ("--epochs=4",), r"all: best accuracy ([\d.]+)", (0.9, 1), 130, "all.pt"),
    Port(
        "pytorch/character_model",
        "own",
        ("--max-iters=40", "--eval-interval=20", "--eval-iters=2"),
        r"step 40: train loss [\d.]+, val loss ([\d.]+)",
        (2, 3.2),
        30,
        "out/ckpt.pt",
    ),
    Port(
        "accelerate/digits",
        "own",
        ("--epochs=3",),
        r"epoch 2 loss [\d.]+ accuracy ([\d.]+)",
        (0.9, 1),
        60,
        "outputs/digits/model/model.safetensors",
    ),
    Port(
        "accelerate/tumours",
        "own",
        ("--epochs=4",),
        r"epoch 3 f1 ([\d.]+)",
        (0.9, 1),
        50,
        "tumours/model/model.safetensors",
    ),
    Port(
        "accelerate/language_model",
        "own",
        ("--epochs=2",),
        r"epoch 1 perplexity ([\d.]+)",
        (5, 25),
        25,
        "lines/model/model.safetensors",
    ),
    Port("lightning/digits", "trainer", ("--epochs=3",), r"best accuracy ([\d.]+)", (0.9, 1), 100, "best.pt"),
    Port("lightning/diabetes", "trainer", ("--epochs=6",), r"val loss ([\d.]+)", (0.15, 0.3), 100, "diabetes.pt"),
    Port("lightning/gan", "own", ("--epochs=6",), r"distance ([\d.]+)", (0, 0.45), 500, "generator.pt"),
    Port(
        "transformers/classify",
        "trainer",
        ("--epochs=2", "--num-lines=1600"),
        r"accuracy ([\d.]+)\n",
        (0.8, 1),
        100,
        "classified/best/model.safetensors",
    ),
    Port(
        "transformers/language_model",
        "trainer",
        ("--epochs=3", "--num-paragraphs=600"),
        r"perplexity ([\d.]+)",
        (10, 24),
        70,
        "gpt/last/model.safetensors",
    ),
    Port(
        "transformers/weighted",
        "trainer",
        ("--epochs=3", "--num-lines=1200"),
        r"eval loss ([\d.]+)",
        (0.2, 0.62),
        100,
        "rare/last/model.safetensors",
    ),
)


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
    """Return the page with the differences of today, and with their numbers."""
    page = _BLOCK.sub(lambda found: f"{found[1]}```diff\n{differences(found[2])}```\n", page)
    return _NUMBERS.sub(lambda found: _count(found[1]), page)


def _count(name: str) -> str:
    changed, gone = changes(name)
    return f"`{name}.py`: {changed} lines new or changed, {gone} gone"


def _lines(name: str) -> list[str]:
    return (SCRIPTS / f"{name}.py").read_text().splitlines()


def _opcodes(before: list[str], after: list[str]) -> difflib.SequenceMatcher[str]:
    """What changes but for the indentation, which a block around the loop gives to all of its lines."""
    old, new = ([line.strip() for line in lines] for lines in (before, after))
    return difflib.SequenceMatcher(None, old, new, autojunk=False)


if __name__ == "__main__":
    for page in PAGES.glob("*.md"):
        page.write_text(with_differences(page.read_text()))
