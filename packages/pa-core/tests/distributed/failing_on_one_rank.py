"""A script: starts pairs of ranks, lets one rank of each pair fail, and prints how each pair ended, as JSON.

It forks its ranks, and ends them as a launcher does: a launcher itself would take seconds for each pair.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

import accelerate  # noqa: F401  # pyright: ignore[reportUnusedImport]  # here, or each rank would import it
import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport]  # as above
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from pa_distributed import _failures as failures

ERRORS: dict[str, BaseException] = {
    "ValueError": ValueError("it fails here"),
    "KeyboardInterrupt": KeyboardInterrupt("it fails here"),
    "SystemExit(3)": SystemExit(3),
    "SystemExit(0)": SystemExit(0),
    "SystemExit(text)": SystemExit("it fails here"),
}
PAIRS_AT_A_TIME = 28
SECONDS_TO_WAIT = 20

_fork = multiprocessing.get_context("fork")


class Failure:
    """Fails where it is called, and notes when it did."""

    def __init__(self, error: str) -> None:
        self.error = error
        self.failed_at = _fork.Value("d")

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise the error."""
        self.failed_at.value = time.monotonic()
        raise ERRORS[self.error]


class Report(TrainerCallback):
    """Says that it was told of the exception; saves a training state after the second update."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == 1:
            trainer.request_training_state()

    @override
    def on_training_state_request(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        trainer.save_training_state(self.folder)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        sys.stdout.write("on_exception was called\n")


class FailingDataset(Dataset[tuple[Tensor, Tensor]]):
    """Fails at one of its samples, which a worker may fetch."""

    def __init__(self, failure: Failure | None) -> None:
        self._failure = failure
        self._data = make_classification(40)

    def __len__(self) -> int:
        return len(self._data)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= 20 and self._failure is not None:
            self._failure()
        inputs, targets = self._data[index]
        return inputs, targets


def train_and_evaluate(place: str, failure: Failure | None) -> None:
    """Run until the place at which the rank that was given a failure fails; go on as scripts should not."""
    model = TinyClassifier(batch_norm=True)
    report = Report(tempfile.mkdtemp(dir="."))
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[report])
    is_in_data = place in {"the dataset", "a worker"}
    data: Dataset[Any] = FailingDataset(failure) if is_in_data else make_classification(40)
    if failure is not None:
        threading.Thread(target=time.sleep, args=(2 * SECONDS_TO_WAIT,)).start()  # Python would wait for it
        if not is_in_data:
            fail_at(place, failure, trainer, report)
    workers = {"num_workers": int(place == "a worker")}
    try:
        schedule = partial(ExponentialLR, gamma=0.9)
        trainer.train(data, 2, make_classification(8), 4, create_scheduler_fn=schedule, train_dataloader_kwargs=workers)
        for _ in range(2):
            trainer.evaluate(make_classification(8))
    except BaseException:
        time.sleep(2 * SECONDS_TO_WAIT)


def fail_at(place: str, failure: Failure, trainer: AnyTrainer, report: Report) -> None:
    """Let a hook of the trainer fail, or an event of the callback."""
    if place == "a callback that hangs":
        failures.SECONDS_TO_CLEAN_UP = 1.0
        vars(report)["on_exception"] = hang
    else:
        setattr(report if place.startswith("on_") else trainer, place, failure)
    if place in {"a callback that hangs", "on_exception"}:
        vars(trainer)["train_epoch_end"] = failure


def hang(*_: object, **__: object) -> None:
    """Wait for too long."""
    time.sleep(2 * SECONDS_TO_WAIT)


def be_rank(rank: int, port: int, output: Path, place: str, failure: Failure | None) -> None:
    """What a forked process does."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=str(port))
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115 - for the life of the process
    train_and_evaluate(place, failure)


class Pair:
    """Two ranks, one of which fails."""

    def __init__(self, place: str, rank: int, error: str, port: int) -> None:
        self.case = {"place": place, "rank": rank, "error": error}
        self.failure = Failure(error)
        self.rank = rank
        self.outputs = [Path(f"{port}_{one}.txt") for one in range(2)]
        self.ranks = [
            _fork.Process(
                target=be_rank, args=(one, port, self.outputs[one], place, self.failure if one == rank else None)
            )
            for one in range(2)
        ]
        for process in self.ranks:
            process.start()

    def end(self) -> dict[str, Any]:
        """End the other rank, as a launcher does, and say how both ended."""
        seconds = time.monotonic() - self.failure.failed_at.value
        for process in self.ranks:
            process.terminate()
            process.join()
        output = self.outputs[self.rank].read_text()
        statuses = [process.exitcode for process in self.ranks]
        return {**self.case, "seconds": seconds, "statuses": statuses, "output": output}


def end_each(pairs: list[Pair]) -> list[dict[str, Any]]:
    """Wait for a rank of each pair to end, but not for ever."""
    ended: list[dict[str, Any]] = []
    waiting = list(pairs)
    until = time.monotonic() + SECONDS_TO_WAIT
    while waiting and time.monotonic() < until:
        sentinels = [process.sentinel for pair in waiting for process in pair.ranks]
        done = set(wait(sentinels, timeout=1))
        for pair in [pair for pair in waiting if any(process.sentinel in done for process in pair.ranks)]:
            ended.append(pair.end())
            waiting.remove(pair)
    return ended + [pair.end() for pair in waiting]


def main() -> None:
    """Run the cases that the first argument lists."""
    torch.set_num_threads(1)
    os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    cases: list[tuple[str, int, str, int]] = json.loads(sys.argv[1])
    ended: list[dict[str, Any]] = []
    for start in range(0, len(cases), PAIRS_AT_A_TIME):
        ended += end_each([Pair(*case) for case in cases[start : start + PAIRS_AT_A_TIME]])
    Path("ended.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    main()
