"""One point of each curve: publishes the figures of each variant, round by round.

Runs as ``python -m benchmarks.growth.points WHAT SIZE ROUNDS``, alone or on several processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from benchmarks.measures import loop_named, side_by_side, step, update
from benchmarks.processes import is_first_process, publish
from benchmarks.scale import Numbers, TimeOfEpochs
from benchmarks.tasks import IS_DRY, Task, digits, vectors
from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.data import KeyedDataLoader

__all__ = ["POINTS"]

LOOPS = ("by_hand", "ours")
Variants: TypeAlias = Mapping[str, Callable[[], float]]


def number_of(steps: int) -> int:
    """So many steps, or few in a dry run."""
    return min(steps, 12) if IS_DRY else steps


def steps_of(task: Task, steps: int, epochs: int = 1) -> Task:
    """The task with so many steps in an epoch on each process."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    return replace(task, dataset=vectors(task.batch_size * processes * steps), num_epochs=epochs)


def processes(milliseconds: int) -> Variants:
    """Microseconds from one update to the next on the processes that there are, by the delay of their network."""
    make_task = partial(lambda: steps_of(digits(), number_of(40 if milliseconds else 200)))
    return {name: partial(update, make_task, loop_named(name)) for name in LOOPS}


def parameters(number: int) -> Variants:
    """Microseconds from one update to the next of a network of three layers with so many parameters."""
    width = int(((64 + 10 + 2) ** 2 + 4 * number) ** 0.5 - (64 + 10 + 2)) // 2
    batch_size, steps = (4, 12) if number > 10_000_000 else (32, 40) if number > 1_000_000 else (32, 200)

    def make_task() -> Task:
        model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        task = replace(digits(), model=model, optimizer=SGD(model.parameters(), lr=0.01), batch_size=batch_size)
        return steps_of(task, number_of(steps))

    return {name: partial(update, make_task, loop_named(name)) for name in LOOPS}


def steps(number: int) -> Variants:
    """Microseconds of a step of epochs of so many steps, in a whole run of about 2,000, or of a single epoch."""
    make_task = partial(lambda: steps_of(digits(), number_of(number), max(1, number_of(2_000) // number)))
    return {name: partial(step, make_task, loop_named(name)) for name in LOOPS}


def samples(number: int) -> Variants:
    """Milliseconds from making a loader of so many samples to its first batch, of an epoch or of its second half."""

    def to_first_batch(position: int) -> float:
        loader = KeyedDataLoader(Numbers(number), batch_size=32, shuffle=True)
        begun = time.perf_counter()
        loader.start_epoch(0, position)
        next(iter(loader))
        return (time.perf_counter() - begun) * 1e3

    return {"start": partial(to_first_batch, 0), "middle": partial(to_first_batch, number // 2)}


class Silent(TrainerCallback):
    """Implements no event; each of its subclasses is another callback."""


class Listening(TrainerCallback):
    """Implements one event of a step."""

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        pass


def callbacks(number: int) -> Variants:
    """Microseconds of an update with so many callbacks, of which none implements an event, or each one of a step."""
    updates = number_of(300)
    data = TensorDataset(torch.ones(updates, 1), torch.ones(updates, 1))

    def microseconds(kind: type[TrainerCallback]) -> float:
        given = [type(f"{kind.__name__}{index}", (kind,), {})() for index in range(number)]
        model, times = nn.Linear(1, 1), TimeOfEpochs()
        trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [*given, times])
        trainer.train(data, 2, per_device_batch_size=1)
        return times.seconds[-1] / updates * 1e6

    return {"silent": partial(microseconds, Silent), "listening": partial(microseconds, Listening)}


POINTS: Mapping[str, Callable[[int], Variants]] = {
    "processes": processes,
    "parameters": parameters,
    "samples": samples,
    "callbacks": callbacks,
    "steps": steps,
}


def in_rounds(variants: Variants, rounds: int) -> Iterator[dict[str, float]]:
    """The figures of each round, after one that does not count; another variant begins in each."""
    names = list(variants)
    for number in range(rounds + 1):
        found: dict[str, float] = {}
        for name in names if number % 2 else reversed(names):
            if dist.is_initialized():
                dist.barrier()
            found[name] = variants[name]()
        if number > 0:
            yield found


def main(what: str, size: str, rounds: str) -> None:
    """Publish the figures of each round."""
    torch.manual_seed(0)
    with side_by_side():
        found = list(in_rounds(POINTS[what](int(size)), int(rounds)))
    if is_first_process():
        for number, of_round in enumerate(found):
            publish(str(number), **of_round)


if __name__ == "__main__":
    main(*sys.argv[1:])
