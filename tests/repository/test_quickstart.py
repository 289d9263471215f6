"""The first example runs in every way in which a user can start it, forked nowhere.

Nothing but what it needs is installed beside it: accelerate imports whatever it finds.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.launching import Launch, Launched, free_port, run_command

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"

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
"""The others are parts of the second one, and all examples are launched so, forked; `--more-cases` starts them too."""


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, id=name, marks=[] if name in STARTED_EACH_TIME else [pytest.mark.more_cases])
        for name, way in WAYS_OF_THE_FIRST.items()
    ],
)
def test_the_first_example_runs_in_every_way(way: Way, tmp_path: Path) -> None:
    """It reaches its result once, on the processes and in the precision that were asked for."""
    port = [f"--main_process_port={free_port()}"] if "--multi_gpu" in way.command else []
    hidden = {"ACCELERATE_USE_CPU": None, "CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(tmp_path)}
    command = [*way.command, *port, str(EXAMPLE)]
    ran = run_command(command, folder=tmp_path, env={**hidden, **way.env})
    assert_it_reached_its_result(ran, way.processes, way.precision)


def test_the_first_example_runs_in_a_notebook(launch: Launch) -> None:
    """On two processes that a cell starts; it reaches its result once."""
    assert_it_reached_its_result(launch(NOTEBOOK_CELL, str(EXAMPLE)), TWO, "fp32")


def assert_it_reached_its_result(ran: Launched, processes: str, precision: str) -> None:
    """Assert that the first example ran once, as it was asked to."""
    assert ran.status == 0
    assert f"{processes}, device cpu" in ran.output
    assert f"precision {precision}" in ran.output
    (result,) = re.findall(r"Recognised ([\d.]+)% of the test digits", ran.output)
    assert float(result) >= 95.0
