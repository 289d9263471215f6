"""A script: starts pairs of ranks, one of which lets the other wait, and says how each pair ended, as JSON.

It forks its ranks, as a launcher would take seconds for each pair; unlike a launcher, it lets both end by themselves.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, cast

import accelerate  # noqa: F401  # pyright: ignore[reportUnusedImport]  # here, or each rank would import it
import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport]  # as above
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, Run, StopTrainingError, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification

MAX_WAIT_SECONDS = 3.0
SECONDS_TO_END = 45.0

_fork = multiprocessing.get_context("fork")


class Late(TrainerCallback):
    """Does something after the third update on one rank, which the other waits for."""

    def __init__(self, do: Callable[[AnyTrainer], object]) -> None:
        self._do = do

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == 3 and trainer.process_index == 1:
            self._do(trainer)


def trainer(*callbacks: TrainerCallback, max_wait_seconds: float = MAX_WAIT_SECONDS) -> Trainer:
    """A trainer that does not wait for long."""
    model = TinyClassifier()
    optimizer = SGD(model.parameters(), lr=0.1)
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, list(callbacks), max_wait_seconds=max_wait_seconds)


def train(do: Callable[[AnyTrainer], object], max_wait_seconds: float = MAX_WAIT_SECONDS) -> None:
    """Train with a callback that does something on one rank."""
    trainer(Late(do), max_wait_seconds=max_wait_seconds).train(
        make_classification(40), 2, make_classification(8), per_device_batch_size=4
    )


def sleeps(_rank: int) -> None:
    """A callback does not return on one rank."""
    train(lambda _: time.sleep(1000))


def gathers(_rank: int) -> None:
    """A callback gathers on one rank."""
    train(lambda trainer: trainer.gather(torch.ones(3)))


def is_frozen(_rank: int) -> None:
    """One rank is stopped by its machine, and gives no sign any more."""
    train(lambda _: os.kill(os.getpid(), signal.SIGSTOP), max_wait_seconds=8.0)


def trains_once_more(rank: int) -> None:
    """One rank begins one more run than the other, which ends its script."""
    one = trainer()
    for _ in range(1 + rank):
        one.train(make_classification(8), 1)


def is_busy_between_runs(rank: int) -> None:
    """What a script does between two runs may take as long as it likes."""
    one = trainer()
    one.train(make_classification(8), 1)
    time.sleep(2 * MAX_WAIT_SECONDS * rank)
    one.train(make_classification(8), 1)


def loop(rank: int, only_on_rank_1: str, on_all: str = "") -> None:
    """A loop of one's own that rank 1, or each rank, does something else in than it should."""
    torch.manual_seed(0)
    model, data = TinyClassifier(), make_classification(40)
    optimizer = SGD(model.parameters(), lr=0.1)
    with Run(model, optimizer, data, num_epochs=2, per_device_batch_size=4, max_wait_seconds=MAX_WAIT_SECONDS) as run:
        do = only_on_rank_1 if rank == 1 else on_all
        for epoch in run.epochs():
            for update in run.updates():
                for inputs, targets in update:
                    loss = nn.functional.cross_entropy(model(inputs), targets)
                    update.backward(loss)
                update.step()
                if update.number == 3 and leaves(run, do):
                    break
            if epoch == 0 and leaves(run, do.removesuffix(" after an epoch")):
                break
    sys.stdout.write(f"{run.num_updates_completed} updates\n")


def leaves(run: Run[Any, Any], do: str) -> bool:
    """Whether a loop is left here; an evaluation may come here, too."""
    if do == "stops":
        raise StopTrainingError("It is enough.")
    if do == "evaluates":
        for inputs, targets in run.evaluation_batches(make_classification(8)):
            run.log("loss", nn.functional.cross_entropy(run.get_model()(inputs), targets))
    return do == "breaks"


IN_A_LOOP = [
    "breaks",
    "stops",
    "evaluates",
    "breaks after an epoch",
    "stops after an epoch",
    "evaluates after an epoch",
]
CASES: dict[str, Callable[[int], None]] = {
    **{one.__name__: one for one in (sleeps, gathers, is_frozen, trains_once_more, is_busy_between_runs)},
    **{name: partial(loop, only_on_rank_1=name) for name in IN_A_LOOP},
    "all stop": partial(loop, only_on_rank_1="stops", on_all="stops"),
    "all break": partial(loop, only_on_rank_1="breaks after an epoch", on_all="breaks after an epoch"),
}


def be_rank(rank: int, port: Connection, name: str) -> None:
    """What a forked process does, once it is told the port of its store."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=str(port.recv()))
    file = os.open(f"{name}_{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115 - for the life of the process
    faulthandler.register(signal.SIGUSR1)
    try:
        CASES[name](rank)
    finally:
        # What ends in order at the end of a script, a process of multiprocessing leaves out.
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # as above


def _show_stacks(process: ForkProcess) -> float:
    """Let a process that should have ended print where it is; return how many seconds that takes at most."""
    os.kill(cast("int", process.pid), signal.SIGUSR1)
    return 1.0


class Pair:
    """Two ranks, which wait to be connected."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._store: TCPStore | None = None
        pipes = [_fork.Pipe(duplex=False) for _ in range(2)]
        self._ports = [port for _, port in pipes]
        self._ranks = [_fork.Process(target=be_rank, args=(rank, pipes[rank][0], name)) for rank in range(2)]
        for process in self._ranks:
            process.start()

    def connect(self) -> None:
        """Make their store, which outlives them as that of torchrun.

        It has threads, and what they hold while a process is forked, it would hold for ever: all are forked before.
        """
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._started = time.monotonic()
        for port in self._ports:
            port.send(self._store.port)

    def end(self) -> dict[str, Any]:
        """Wait for both to end, but not for ever, and say how they did."""
        awaited = self._ranks[:1] if self._name == "is_frozen" else self._ranks
        for process in awaited:
            process.join(max(0.0, self._started + SECONDS_TO_END - time.monotonic()))
        statuses = [process.exitcode for process in self._ranks]
        for process in awaited:
            if process.is_alive():
                process.join(_show_stacks(process))
        for process in self._ranks:
            process.kill()
        outputs = [Path(f"{self._name}_{rank}.txt").read_text() for rank in range(2)]
        return {"statuses": statuses, "outputs": outputs}


def main() -> None:
    """Run the cases that the first argument names."""
    torch.set_num_threads(1)
    os.environ.update(
        TORCHELASTIC_USE_AGENT_STORE="True", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1"
    )
    pairs = {name: Pair(name) for name in json.loads(sys.argv[1])}
    for pair in pairs.values():
        pair.connect()
    Path("ended.json").write_text(json.dumps({name: pair.end() for name, pair in pairs.items()}))


if __name__ == "__main__":
    main()
