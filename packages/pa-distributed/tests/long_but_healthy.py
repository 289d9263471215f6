"""A script: a loop of one's own on two ranks, once for each kind of work that takes longer than a process may wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_distributed import HangDetector, prepare_gloo, run_while_others_wait
from tests.support.pairs import run_pairs

LIMIT = 2.0
SECONDS = 5.0


class Slow(Dataset[int]):
    """Data whose first sample takes long."""

    def __len__(self) -> int:
        return 1

    @override
    def __getitem__(self, index: int) -> int:
        time.sleep(SECONDS)
        return index


def until_then(do: Callable[[], object]) -> None:
    """Do something again and again."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        do()


def evaluates() -> None:
    """Batch by batch, without a word to anybody."""
    until_then(lambda: torch.ones(64, 64) @ torch.ones(64, 64))


def computes() -> None:
    """In a single call of something that is not Python."""
    matrix, started = torch.eye(1000), time.monotonic()
    matrix.matrix_power(2)
    products = SECONDS / (time.monotonic() - started)
    matrix.matrix_power(2 ** min(62, int(products)) - 1)  # twice as many


def saves() -> None:
    """File by file."""
    with TemporaryDirectory() as folder:
        until_then(lambda: torch.save(torch.ones(10_000), Path(folder, "weights")))


def loads() -> None:
    """From workers that are not ready."""
    list(DataLoader(Slow(), num_workers=1))


def waits_for_a_program() -> None:
    """Such as one that copies files."""
    subprocess.run([sys.executable, "-Ic", f"import time; time.sleep({SECONDS})"], check=True)


def waits_for_a_thread() -> None:
    """Such as one that sends files."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, SECONDS).result()


def works_for_all() -> None:
    """One rank does what all need."""
    run_while_others_wait((lambda: time.sleep(SECONDS)) if dist.get_rank() == 0 else None)


def tells_its_steps() -> None:
    """Of a call that does nothing else."""
    for _ in range(8):
        time.sleep(SECONDS / 8)
        watch.step()


WORK = [evaluates, computes, saves, loads, waits_for_a_program, waits_for_a_thread, works_for_all, tells_its_steps]

watch = HangDetector(LIMIT)


def loop(work: Callable[[], None], rank: int) -> None:
    """Exchange something, work, and wait for the other rank, which may take longer.

    Args:
        work: What takes long.
        rank: The rank of this process.
    """
    many: Any = dist
    many.init_process_group("gloo")
    prepare_gloo()
    with watch.run():
        for _ in range(2):
            many.all_reduce(torch.ones(1))
            watch.step()
        work()
        run_while_others_wait(None)


if __name__ == "__main__":
    run_pairs({work.__name__: partial(loop, work) for work in WORK}, [work.__name__ for work in WORK], 60.0)
