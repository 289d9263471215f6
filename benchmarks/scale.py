"""Whether a cost grows with the size of a run: each figure is measured in a small case and in a large one.

Runs as ``python -m benchmarks.scale WHAT``.
"""

from __future__ import annotations

import contextlib
import io
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

from benchmarks.processes import publish
from pa_core import DEFAULT_CALLBACKS, AnyTrainer, InMemoryRunHistory, Trainer, TrainerCallback
from pa_core.data import KeyedDataLoader
from pa_data.orders import ClassBalanced, Mixture, Order, Shuffled, Weighted

__all__ = ["SCALES"]

UPDATES, UPDATES_OF_EPOCH = 1_000_000, 1_000
FEW, MANY = 10_000, 100_000_000


class TimeOfEpochs(TrainerCallback):
    """Takes the time of each training epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begun = 0.0

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._begun = time.perf_counter()

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self._begun)


def updates() -> dict[str, float]:
    """Microseconds of an update among the first and among the last of a million."""
    times = TimeOfEpochs()
    model = nn.Linear(1, 1)
    data = TensorDataset(torch.ones(UPDATES_OF_EPOCH, 1), torch.ones(UPDATES_OF_EPOCH, 1))
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [*DEFAULT_CALLBACKS, times])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.train(data, UPDATES // UPDATES_OF_EPOCH, per_device_batch_size=1)
    return first_and_last(times.seconds, UPDATES_OF_EPOCH)


def metrics() -> dict[str, float]:
    """Microseconds of recording a metric, among the first and among the last of a million values."""
    history, values, seconds = InMemoryRunHistory(), 1_000, list[float]()
    for _ in range(UPDATES // values):
        start = time.perf_counter()
        for value in range(values):
            history.update_metric("loss", value)
        seconds.append(time.perf_counter() - start)
    return first_and_last(seconds, values)


def first_and_last(seconds: list[float], number: int) -> dict[str, float]:
    """Microseconds of one of so many, among the first and among the last."""
    first, last = (statistics.median(some) * 1e6 / number for some in (seconds[1:21], seconds[-20:]))
    return {"the_first": first, "the_last": last}


class Silent(TrainerCallback):
    """Listens to nothing; each of its subclasses is another callback."""


def callbacks() -> dict[str, float]:
    """Microseconds of an update without callbacks, and with a thousand that implement no event."""
    data = TensorDataset(torch.ones(UPDATES_OF_EPOCH, 1), torch.ones(UPDATES_OF_EPOCH, 1))
    silent = [type(f"Silent{number}", (Silent,), {})() for number in range(1_000)]
    seconds: dict[str, list[float]] = {"none": [], "a_thousand": []}
    for _ in range(10):
        for name, given in {"none": [], "a_thousand": silent}.items():
            model, times = nn.Linear(1, 1), TimeOfEpochs()
            trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [*given, times])
            trainer.train(data, 2, per_device_batch_size=1)
            seconds[name].append(times.seconds[-1])
    return {name: statistics.median(taken) * 1e6 / UPDATES_OF_EPOCH for name, taken in seconds.items()}


class Numbers(Dataset[Tensor]):
    """As many samples as asked for, none of which is kept."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    @override
    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


def to_first_batch(
    loader: KeyedDataLoader[Tensor], position: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Milliseconds to the first batch after a position of an epoch."""
    seconds: list[float] = []
    for epoch in range(20):
        start = clock()
        loader.start_epoch(epoch, position)
        next(iter(loader))
        seconds.append(clock() - start)
    return statistics.median(seconds) * 1e3


def by_size(divisor: int | None = None) -> dict[str, float]:
    """Milliseconds to the first batch of a shuffled epoch, or of what follows a share of it."""
    return {
        name: to_first_batch(
            KeyedDataLoader(Numbers(number), batch_size=32, shuffle=True), number // divisor if divisor else 0
        )
        for name, number in {"ten_thousand": FEW, "a_hundred_million": MANY}.items()
    }


def by_order(position: int) -> dict[str, float]:
    """Milliseconds of processor time to the first batch after a position, when the order is made."""
    halves = Mixture({"a": Numbers(MANY // 2), "b": Numbers(MANY // 2)}, weights={"a": 1, "b": 3})
    orders: dict[str, Callable[[], Order]] = {
        "shuffled": Shuffled,
        "class_balanced": lambda: ClassBalanced(torch.randint(1_000, (MANY,), dtype=torch.int16)),
        "mixture": lambda: halves.default_order,
        "weighted": lambda: Weighted(torch.rand(MANY)),
    }
    figures: dict[str, float] = {}
    for name, make in orders.items():
        loader = KeyedDataLoader(Numbers(MANY), batch_size=32, order=make())
        next(iter(loader))
        figures[name] = to_first_batch(loader, position, time.process_time)
    return figures


def memory() -> dict[str, float]:
    """MiB that the process has taken up at most, after the first batches of shuffled epochs."""
    figures: dict[str, float] = {}
    for name, number in {"ten_thousand": FEW, "a_hundred_million": MANY}.items():
        to_first_batch(KeyedDataLoader(Numbers(number), batch_size=32, shuffle=True), number // 2)
        figures[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


class SavesAndNotes(TrainerCallback):
    """Saves a training state after one update, and notes when the first step began."""

    def __init__(self, folder: str, update: int) -> None:
        self._folder, self._update = folder, update
        self.first_step: float | None = None

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self.first_step is None:
            self.first_step = time.perf_counter()

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == self._update:
            trainer.save_training_state(self._folder)


class Pairs(Numbers):
    """Such samples with something to learn."""

    @override
    def __getitem__(self, index: int) -> Any:
        return torch.ones(1), torch.ones(1)


def _milliseconds_to_resume(number: int) -> float:
    def train(resume_from: str | None) -> float:
        callback, model = SavesAndNotes(folder, number // 1_000 - 1), nn.Linear(1, 1)
        trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [callback])
        start = time.perf_counter()
        trainer.train(Pairs(number), 1, per_device_batch_size=1_000, resume_from=resume_from)
        return ((callback.first_step or start) - start) * 1e3

    with tempfile.TemporaryDirectory() as folder:
        train(None)
        return train(folder)


def resume() -> dict[str, float]:
    """Milliseconds until a run goes on with the last update of an epoch."""
    return {"ten_thousand": _milliseconds_to_resume(FEW), "a_million": _milliseconds_to_resume(1_000_000)}


SCALES: dict[str, Callable[[], dict[str, float]]] = {
    "callbacks": callbacks,
    "memory": memory,
    "metrics": metrics,
    "resume": resume,
    "seek": partial(by_size, 2),
    "seek_by_order": partial(by_order, MANY // 2),
    "start_by_order": partial(by_order, 0),
    "start_of_epoch": by_size,
    "updates": updates,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    publish(**SCALES[sys.argv[1]]())
