"""Workers whose main process is killed: they end too, so that a job that starts again finds the machine free."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.launching import Launch

SCRIPT = """
import os
import signal

import torch
from torch.utils.data import DataLoader, Dataset

from pa_core import Trainer
from pa_core.data import worker_init_fn


class Samples(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return os.getpid()


def larger_than_a_pipe(samples):
    return samples[0], bytes(300_000)


if __name__ == "__main__":
    trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
    trainer.train_dataset, trainer.collate_fn = Samples(), larger_than_a_pipe
    iterators = []
    for method in ("fork", "spawn", "forkserver"):
        workers = {"num_workers": 1, "multiprocessing_context": method}
        iterators.append(iter(trainer.create_train_dataloader(4, workers)))
    workers = {"num_workers": 1, "multiprocessing_context": "fork", "worker_init_fn": worker_init_fn}
    iterators.append(iter(DataLoader(Samples(), collate_fn=larger_than_a_pipe, **workers)))
    for iterator in iterators:
        pid, _ = next(iterator)
        print("worker", pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux to wait for a process that is no child")
def test_workers_end_with_the_process_that_started_them(launch: Launch) -> None:
    """However they were started, also while nobody takes the batches that they hand over."""
    launched = launch(SCRIPT, timeout=60)
    assert launched.status == -9
    workers = [int(line.split()[1]) for line in launched.output.splitlines() if line.startswith("worker")]
    assert len(set(workers)) == 4
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            assert select.select([os.pidfd_open(worker)], [], [], 10)[0], f"worker {worker} is alive"
