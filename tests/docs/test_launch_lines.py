"""Each launch line that the documentation shows is run as it stands, or says why it is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ROOT, Page, all_pages, is_excused
from tests.examples.ways import WAYS

LAUNCH_LINE = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:srun )?(?:torchrun|accelerate launch|python3? -m (?:torch\.distributed|accelerate)\S*) .*"
)
LAUNCHED_EXAMPLE = re.compile(r"(?P<launcher>.*) examples/(?:trials/|porting/)?(?P<name>\w+)\.py(?: .*)?")
WAYS_OF_EXAMPLES = {
    "torchrun --nproc-per-node 2": "torchrun with two ranks",
    "accelerate launch": "accelerate launch",
    "accelerate launch --mixed_precision bf16": "accelerate launch, bf16",
}
ELSEWHERE = {
    f"accelerate launch --use_fsdp --fsdp_version 2 --num_processes 2 examples/{name}.py"
    for name in ("character_transformer", "shard_with_checkpointing")
}
"""`tests/examples/test_sharded_examples.py` runs a line of an example's docstring that is none of the usual ones."""

NOT_RUN = {
    "accelerate launch --multi_gpu --num_processes 2 --mixed_precision bf16 train.py": "needs a GPU",
    "torchrun --nproc-per-node 4 train.py": "the line with two processes is run",
    "torchrun --nproc-per-node 2 -m pytest --cell two_ranks TESTS": "needs this repository",
}
"""Lines within a text that no page runs, with the reason."""


def lines_in_text(page: Page) -> Iterator[str]:
    """Launch lines that stand between backquotes, with what is launched."""
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.text):
        if LAUNCH_LINE.fullmatch(span) and re.search(r"\.py\b| -m ", span):
            yield span


def lines_that_are_run(page: Page) -> Iterator[str]:
    """Launch lines of blocks that are executed; those of others have their reasons, or the page is red."""
    for block in page.blocks():
        if not is_excused(block):
            yield from (line.removeprefix("$ ") for line in block.code.splitlines())


def lines_in_docstrings() -> Iterator[tuple[Path, str]]:
    """Launch lines of examples."""
    for path in sorted(ROOT.glob("examples/**/*.py")):
        for line in (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines():
            if LAUNCH_LINE.fullmatch(line.strip()):
                yield path, line.strip()


def test_launch_lines_in_the_text_of_pages_are_run() -> None:
    """As a command of a page, which readers and tests run without variables that nobody has told them of."""
    pages = [page for page in all_pages() if not str(page).startswith("docs/maintainers")]
    run = {line for page in pages for line in lines_that_are_run(page)}
    shown = {line: page for page in pages for line in lines_in_text(page)}
    assert len(shown) >= 5
    forgotten = {line: str(page) for line, page in shown.items() if line not in run and line not in NOT_RUN}
    assert not forgotten, "Run them in a console block of a page, or name the reason in NOT_RUN."
    assert not NOT_RUN.keys() - shown.keys(), "No page shows them any more."


def test_launch_lines_of_examples_are_those_that_they_are_tested_with() -> None:
    """A docstring shows no other way to start an example than the tests use."""
    assert set(WAYS_OF_EXAMPLES.values()) == set(WAYS) - {"python"}
    lines = list(lines_in_docstrings())
    assert len(lines) > 40
    for path, line in lines:
        launched = LAUNCHED_EXAMPLE.fullmatch(line)
        assert launched, line
        assert launched["name"] == path.stem
        assert line in ELSEWHERE or launched["launcher"] in WAYS_OF_EXAMPLES, f"{path.name}: {line}"
