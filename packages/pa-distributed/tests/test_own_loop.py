"""The loop of the README, with one process that fails, is killed, sleeps, or was given something else."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.launching import Launch, Launched, free_port

LOOP: str = re.findall(r"```python\n(.*?)```", Path(__file__).parents[1].joinpath("README.md").read_text(), re.DOTALL)[
    0
]
STEP = "        dist.all_reduce(torch.ones(1))\n"


def changed(line: str) -> str:
    """The loop with something that the second process does in its third step."""
    assert STEP in LOOP
    loop = LOOP.replace("max_wait_seconds=60", "max_wait_seconds=3")
    return loop.replace(STEP, f"        if step == 3 and dist.get_rank() == 1:\n            {line}\n{STEP}")


def test_the_loop_ends_in_order(launch: Launch) -> None:
    """Where nothing happens, nothing is printed."""
    ended = launch(LOOP, ranks=2)
    assert (ended.status, ended.output) == (0, "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("raise OSError('no space left')", "rank1]: OSError: no space left", marks=pytest.mark.more_cases),
        (
            "from threading import Event, Thread; Thread(target=Event().wait).start(); raise OSError(3)",
            "rank1]: OSError: 3",
        ),
        ("import time; time.sleep(60)", r"rank 0 waited in all_reduce \(script_\d+.py:\d+\), in its loop"),
    ],
)
def test_no_process_waits_for_one_that_does_not_come(launch: Launch, line: str, said: str) -> None:
    """The run ends within seconds, and says who was where."""
    ended = launch(changed(line), ranks=2, timeout=60)
    assert ended.status != 0
    assert re.search(said, ended.output), ended.output


def test_a_process_that_is_killed_is_named_by_the_other(launch: Launch) -> None:
    """Where no launcher ends the other first, as where each process is started by hand."""
    script, port = changed("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), str(free_port())
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    def start(rank: int) -> Launched:
        return launch(script, env={**env, "RANK": str(rank)}, timeout=60)

    with ThreadPoolExecutor() as pool:
        waits, killed = pool.map(start, range(2))
    assert (waits.status, killed.status) == (1, -9)
    assert "pa_distributed.OtherProcessError: Another process is gone, or did not come" in waits.output
    assert "rank 1 has sent no heartbeat since it" in waits.output


def test_what_differs_is_named(launch: Launch) -> None:
    """By the ranks that have it, and in one traceback."""
    ended = launch(LOOP.replace('rate": 0.1', 'rate": dist.get_rank()'), ranks=2)
    assert ended.status != 0
    assert "learning rate: 0 on rank 0, 1 on rank 1" in ended.output
    assert ended.output.count("[rank0]: Traceback") + ended.output.count("[rank1]: Traceback") == 1
