"""Running configurations on several processes.

`python -m tests.support.pa_core.any_processes.launching SEED NUMBER...` prints what differs from a run on one process.
Processes are forked from one that has imported everything, as that takes longer than a run.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist

from tests.launching import free_port
from tests.support.pa_core.any_processes.comparison import Result, first_difference
from tests.support.pa_core.any_processes.configuration import Configuration
from tests.support.pa_core.any_processes.training import Kill, train

__all__ = ["Attempt", "difference", "launch"]

_SECONDS = 60.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "accelerate", "pa_callbacks_extra", "pa_core.torch_names", "torch._dynamo"])


@dataclass(frozen=True)
class Attempt:
    """One start of a run.

    Attributes:
        configuration: What is trained.
        processes: By how many processes.
        folder: Where the run writes.
        saves_states: Whether it saves states there, and resumes from them.
        kill: When one of its processes is killed; the others are, too, as soon as that one is gone.
    """

    configuration: Configuration
    processes: int
    folder: Path
    saves_states: bool = False
    kill: Kill | None = None


def launch(attempt: Attempt) -> list[Result]:
    """Train, and return what each process ended with; nothing if they were killed as they were told to.

    Raises:
        AssertionError: A process failed, or did not end.
    """
    attempt.folder.mkdir(exist_ok=True)
    port = free_port()
    processes = [_FORKS.Process(target=_train, args=(attempt, rank, port)) for rank in range(attempt.processes)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + _SECONDS
    running = processes
    while running and time.monotonic() < deadline and not any(process.exitcode for process in processes):
        wait([process.sentinel for process in running], timeout=1.0)
        running = [process for process in running if process.is_alive()]
    statuses = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    if attempt.kill is not None and statuses[attempt.kill.rank] == -9:
        return []
    if any(statuses):
        printed = "\n".join(_path(attempt, rank, "txt").read_text() for rank in range(attempt.processes))
        raise AssertionError(f"{attempt} ended with {statuses}:\n{printed}")
    return [json.loads(_path(attempt, rank, "json").read_text()) for rank in range(attempt.processes)]


def difference(attempt: Attempt, expected: Result) -> str | None:
    """Say in what a run differs from what one process ends with, None if in nothing; no process differs from others."""
    for rank, result in enumerate(launch(attempt)):
        if rank > 0:
            expected = {name: text for name, text in expected.items() if not name.startswith("predictions.")}
        if (found := first_difference(result, expected)) is not None:
            return f"On {attempt.processes} processes, rank {rank}: {found}. {attempt.configuration}"
    return None


def _path(attempt: Attempt, rank: int, suffix: str) -> Path:
    return attempt.folder / f"rank_{rank}_of_{attempt.processes}.{suffix}"


def _train(attempt: Attempt, rank: int, port: int) -> None:
    """What a forked process does."""
    gc.freeze()  # or it would copy all the memory that it shares when it ends, to look for garbage in it
    output = os.open(_path(attempt, rank, "txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for ours in (1, 2):
        os.dup2(output, ours)
    torch.set_num_threads(1)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    if attempt.processes > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port), "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {"WORLD_SIZE": str(attempt.processes), "LOCAL_WORLD_SIZE": str(attempt.processes)}
    folder = attempt.folder
    result = train(attempt.configuration, folder, saves_states=attempt.saves_states, kill=attempt.kill)
    _path(attempt, rank, "json").write_text(json.dumps(result))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def main(seed: int, numbers: list[int]) -> None:
    """Run the configuration of a seed on one process and on others, and print what differs."""
    configuration = Configuration.random(seed)
    sys.stdout.write(f"{configuration}\n")
    with tempfile.TemporaryDirectory() as temporary:
        (expected,) = launch(Attempt(configuration, 1, Path(temporary, "1")))
        for number in numbers:
            found = difference(Attempt(configuration, number, Path(temporary, str(number))), expected)
            sys.stdout.write(f"{found or f'{number} processes: the same'}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(number) for number in sys.argv[2:]])
