"""Examples, unchanged, run in every way that a user can launch them, and print what they say that they print."""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docs.comparison import differs
from tests.examples.docstrings import shown_in_docstring
from tests.examples.index import ORDER, PAGES, with_table
from tests.examples.shared_launches import LAUNCHES, SharedLaunches
from tests.examples.ways import EXAMPLES, WAYS
from tests.launching import Launch, Launched, free_port, run_command

NOTEBOOK_CELL = """
import runpy, sys
from pa_core import notebook_launcher

main = runpy.run_path(sys.argv[1])["main"]
notebook_launcher(main, num_processes=2)
"""


@dataclass(frozen=True)
class Way:
    """A command line before the name of the example, and what the trainer then says that it runs on."""

    command: list[str]
    processes: str = "1 process"
    precision: str = "fp32"
    env: dict[str, str] = field(default_factory=dict[str, str])


TWO = "2 processes (gloo)"
ACCELERATE = [str(Path(sysconfig.get_path("scripts"), "accelerate")), "launch"]
ACCELERATE_TWO = [*ACCELERATE, "--multi_gpu", "--num_processes=2", "--num_machines=1", "--dynamo_backend=no"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
ON_CPU = {"ACCELERATE_USE_CPU": "true"}

WAYS_OF_THE_FIRST = {
    "python": Way([sys.executable]),
    "accelerate launch": Way(ACCELERATE),
    "accelerate launch, bf16": Way([*ACCELERATE, "--mixed_precision=bf16"], precision="bf16"),
    "torchrun": Way([*TORCHRUN, "--nproc-per-node=2"], processes=TWO),
    "accelerate launch on two ranks": Way([*ACCELERATE_TWO, "--mixed_precision=no"], processes=TWO, env=ON_CPU),
    "accelerate launch on two ranks, bf16": Way(
        [*ACCELERATE_TWO, "--mixed_precision=bf16"], processes=TWO, precision="bf16", env=ON_CPU
    ),
}

STARTED_EACH_TIME = {"python", "accelerate launch on two ranks, bf16"}
"""The others are parts of the second one, and all examples are launched so, forked; `--whole-proof` starts them too."""


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, id=name, marks=[] if name in STARTED_EACH_TIME else [pytest.mark.whole_proof])
        for name, way in WAYS_OF_THE_FIRST.items()
    ],
)
def test_the_first_example_runs_in_every_way(way: Way, tmp_path: Path) -> None:
    """It reaches its result once, on the processes and in the precision that were asked for."""
    port = [f"--main_process_port={free_port()}"] if "--multi_gpu" in way.command else []
    hidden = {"ACCELERATE_USE_CPU": None, "CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(tmp_path)}
    command = [*way.command, *port, str(EXAMPLES / "train_digits.py")]
    ran = run_command(command, folder=tmp_path, env={**hidden, **way.env})
    assert_it_reached_its_result(ran, way.processes, way.precision)


def test_the_first_example_runs_in_a_notebook(launch: Launch) -> None:
    """On two processes that a cell starts; it reaches its result once."""
    assert_it_reached_its_result(launch(NOTEBOOK_CELL, str(EXAMPLES / "train_digits.py")), TWO, "fp32")


def assert_it_reached_its_result(ran: Launched, processes: str, precision: str) -> None:
    """Assert that the first example ran once, as it was asked to."""
    assert ran.status == 0
    assert f"{processes}, device cpu" in ran.output
    assert f"precision {precision}" in ran.output
    (result,) = re.findall(r"Recognised ([\d.]+)% of the test digits", ran.output)
    assert float(result) >= 95.0


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.whole_proof] if way == "accelerate launch" else []) for way in WAYS],
)
@pytest.mark.parametrize("name", LAUNCHES)
def test_an_example_prints_what_its_docstring_shows(name: str, way: str, shared_launch: SharedLaunches) -> None:
    """However it is launched, its last lines are those of its docstring, but for the numbers in them."""
    launched = shared_launch(name, way)

    assert launched.status == 0
    expected = shown_in_docstring(EXAMPLES / f"{name}.py")
    assert not differs(launched.output, f"...\n{expected}"), f"It shows:\n{expected}\nand prints:\n{launched.output}"


def test_each_example_is_launched() -> None:
    """None can be forgotten in the table of launches, nor in the index; there are few enough to be read."""
    examples = {path.stem for path in EXAMPLES.glob("*.py")}
    assert set(LAUNCHES) == set(ORDER) == examples
    assert len(examples) <= 18


@pytest.mark.parametrize("path", PAGES)
def test_the_index_is_the_one_of_today(path: str) -> None:
    """Run ``python -m tests.examples.index`` after a change of the examples."""
    page = (EXAMPLES.parent / path).read_text()
    assert with_table(page, PAGES[path]) == page


@pytest.mark.parametrize("name", LAUNCHES)
def test_an_example_is_short(name: str) -> None:
    """It is read in a few minutes: 60 to 120 lines."""
    assert 60 <= len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 120


def test_each_example_has_tests_of_its_own() -> None:
    """In a file of its name, which tests what it promises beside what it prints."""
    examples = {path.stem for folder in (EXAMPLES, EXAMPLES / "trials") for path in folder.glob("*.py")}
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert examples - tested == set()
