"""Examples, unchanged, run in the ways in which users launch them, and print what they say that they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.comparison import differs
from tests.examples.docstrings import shown_in_docstring
from tests.examples.index import PAGE, with_list
from tests.examples.shared_launches import LAUNCHES, SharedLaunches
from tests.examples.ways import EXAMPLES, WAYS

IN_BF16_EACH_TIME = {"character_transformer", "train_digits"}
"""Examples that are launched in bf16 each time, too: other ways are less than these, or what tests of their own do."""
ON_TWO_RANKS_AT_NIGHT = {
    *("classify_texts", "detect_digits", "finetune_timm", "finetune_transformers", "image_folder", "lora"),
    *("match_captions", "ppo", "progressive_resizing", "replay_buffer", "truncated_bptt", "tune_with_optuna"),
}
"""Examples that are launched on two ranks each night; each time, tests of their own launch them."""


def _is_for_the_night(name: str, way: str) -> bool:
    is_each_time = (
        name not in ON_TWO_RANKS_AT_NIGHT if "two ranks" in way else "bf16" in way and name in IN_BF16_EACH_TIME
    )
    return not is_each_time


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=[pytest.mark.whole_proof] if _is_for_the_night(name, way) else [])
        for way in WAYS
        for name in LAUNCHES
    ],
)
def test_an_example_prints_what_its_docstring_shows(name: str, way: str, shared_launch: SharedLaunches) -> None:
    """However it is launched, its last lines are those of its docstring, but for the numbers in them."""
    launched = shared_launch(name, way)

    expected = shown_in_docstring(EXAMPLES / f"{name}.py")
    assert not differs(launched.output, f"...\n{expected}"), f"It shows:\n{expected}\nand prints:\n{launched.output}"


def test_each_example_is_launched() -> None:
    """None can be forgotten in the table of launches, nor in the index; there are few enough to be read."""
    examples = {path.stem for path in EXAMPLES.glob("*.py")}
    assert set(LAUNCHES) == examples
    assert len(examples) <= 30


def test_the_index_is_the_one_of_today() -> None:
    """Run ``python -m tests.examples.index`` after a change of the examples."""
    page = PAGE.read_text()
    assert with_list(page) == page


@pytest.mark.parametrize("name", LAUNCHES)
def test_an_example_is_short(name: str) -> None:
    """It is read in a few minutes: 60 to 130 lines."""
    assert 60 <= len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 130


def test_no_two_examples_write_to_the_same_folder() -> None:
    """Who tries one after the other in one folder resumes none from the states of another one."""
    folders: dict[str, set[str]] = {}
    for path in EXAMPLES.rglob("*.py"):
        text = path.read_text()
        written = {*re.findall(r'[(=]f?"((?:outputs|states)(?:/[^"]*)?)"', text)}
        written.update(re.findall(r'add_argument\("--out\S+", .*default="([^"]+)"', text))
        if not {"porting", "slurm"} & {*path.parts}:
            assert written <= {f"outputs/{path.stem}"}, path
        for folder in written:
            folders.setdefault(folder, set()).add(str(path).replace("_ported", ""))
    assert len(folders) > 20
    assert {folder: scripts for folder, scripts in folders.items() if len(scripts) > 1} == {}


def test_each_example_has_tests_of_its_own() -> None:
    """Which test what it promises beside what it prints."""
    examples = {path.stem for folder in (EXAMPLES, EXAMPLES / "trials") for path in folder.glob("*.py")}
    others = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path.name not in __file__)
    assert examples - {*re.findall(r"\w+", others)} == set()
