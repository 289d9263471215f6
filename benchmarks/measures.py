"""What loops are measured by: each function returns one figure.

Runs as ``python -m benchmarks.measures MEASURE[,MEASURE] TASK LOOP ...``, and under ``torchrun`` on several processes.
The loops take turns in the same processes. Collectives of processes that share cores take between one and ten times as
long from one moment to the next: only runs that follow each other compare.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import resource
import statistics
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from typing import Protocol, TypeAlias, cast

import torch
import torch.distributed as dist

from benchmarks.processes import Figures, is_first_process, publish
from benchmarks.tasks import DEVICE, IS_DRY, TASKS, Task
from benchmarks.window import counting_calls, counting_warnings, look_at, steps_of_epoch

__all__ = ["loop_named", "medians", "side_by_side", "turns"]

MakeTask: TypeAlias = Callable[[], Task]
Run: TypeAlias = Callable[[Task, int], None]
WAITS = ("cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaStreamSynchronize")
FEW = 0.2


class Loop(Protocol):
    """The module of one way to train."""

    def train(self, task: Task, num_epochs: int) -> None:
        """Train for a number of epochs."""

    def evaluate(self, task: Task, times: int) -> None:
        """Evaluate the whole dataset a number of times."""


def loop_named(name: str) -> Loop:
    """Return the module of one way to train."""
    return cast("Loop", importlib.import_module(f"benchmarks.loops.{name}"))


def step(make_task: MakeTask, loop: Loop) -> float:
    """Microseconds of a training step: a whole run, its preparation and the edges of its epochs included."""
    return _time_of_step(make_task(), loop.train)


def processor(make_task: MakeTask, loop: Loop) -> float:
    """The processor time of it, of all threads of this process."""
    return _time_of_step(make_task(), loop.train, time.process_time)


def evaluation(make_task: MakeTask, loop: Loop) -> float:
    """Microseconds of a step of an evaluation."""
    return _time_of_step(make_task(), loop.evaluate)


def _time_of_step(task: Task, run: Run, clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run(task, task.num_epochs)
    return (clock() - start) / (task.num_epochs * steps_of_epoch(task)) * 1e6


def update(make_task: MakeTask, loop: Loop) -> float:
    """Microseconds from one update to the next, without the start of the run and its end."""
    seen = look_at(make_task, loop.train)
    return seen.seconds / seen.updates * 1e6


def edge(
    make_task: MakeTask,
    loop: Loop,
    clock: Callable[[], float] = time.perf_counter,
    summary: Callable[[Sequence[float]], float] = statistics.median,
) -> float:
    """Microseconds from the end of the last update of an epoch to the first call of the model in the next one."""
    loop.train(make_task(), 1)
    task = replace(make_task(), num_epochs=100)
    begun: list[float] = []
    updated: list[float] = []

    def begin(*_: object) -> None:
        begun.append(clock())

    def end(*_: object) -> None:
        updated.append(clock())

    task.model.register_forward_pre_hook(begin)
    task.optimizer.register_step_post_hook(end)
    loop.train(task, task.num_epochs)
    firsts = range(steps_of_epoch(task), len(begun), steps_of_epoch(task))
    return summary([begun[first] - updated[first - 1] for first in firsts]) * 1e6


def memory(make_task: MakeTask, loop: Loop) -> float:
    """MiB that a process has taken up at most, after three epochs: the process that has taken up most."""
    loop.train(make_task(), 3)
    peak = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if dist.is_initialized():
        dist.all_reduce(peak, dist.ReduceOp.MAX)
    return peak.item()


def device_memory(make_task: MakeTask, loop: Loop) -> float:
    """MiB that tensors take on the device at most during updates, beyond those of before the run."""
    return look_at(make_task, loop.train).peak_bytes / 2**20


def waits(make_task: MakeTask, loop: Loop) -> float:
    """Calls in an update that wait for the device."""
    return sum(number for name, number in _counts_of_update(make_task, loop.train).items() if name in WAITS)


def copies(make_task: MakeTask, loop: Loop) -> float:
    """Copies that begin in an update."""
    return _counts_of_update(make_task, loop.train).get("cudaMemcpyAsync", 0.0)


def kernels(make_task: MakeTask, loop: Loop) -> float:
    """Kernels that are launched in an update."""
    launched = sum(
        number for name, number in _counts_of_update(make_task, loop.train).items() if "LaunchKernel" in name
    )
    if DEVICE.type == "cuda" and launched == 0:
        raise RuntimeError("the profiler saw no call of CUDA, so that neither waits nor copies were counted")
    return launched


def warned_waits(make_task: MakeTask, loop: Loop) -> float:
    """Operations in an update that torch warns of, as they wait for the device."""
    return _counts_of_update(make_task, loop.train, counting_warnings).get("waits", 0.0)


@cache
def _counts_of_update(
    make_task: MakeTask,
    train: Run,
    counting: Callable[[Counter[str]], AbstractContextManager[None]] = counting_calls,
) -> dict[str, float]:
    """Count in few updates and in many, and take the difference: what begins and ends the counting does not count."""
    few, many = Counter[str](), Counter[str]()
    updates = -look_at(make_task, train, counting(few), FEW).updates + look_at(make_task, train, counting(many)).updates
    return {name: (number - few[name]) / updates for name, number in many.items()}


TIMES = (step, processor, evaluation, update)
ONCE = (edge, memory, device_memory, waits, warned_waits, copies, kernels)
MEASURES: dict[str, Callable[[MakeTask, Loop], float]] = {measure.__name__: measure for measure in (*TIMES, *ONCE)}


@contextlib.contextmanager
def side_by_side() -> Generator[None]:
    """Within the context, loops are measured on one thread and print nothing, together with other processes if any."""
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo")
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
    if dist.is_initialized():
        dist.destroy_process_group()  # threads of gloo that live on abort some processes at their end


def turns(loops: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Let each loop have its turn so often, and once before, as round 0, to warm up; all processes at once."""
    for number in range(rounds + 1):
        for loop in loops:
            if dist.is_initialized():
                dist.barrier()
            yield number, loop


def rounds_of(measure: str, loops: int) -> int:
    """How often each loop has its turn, after the first one."""
    if MEASURES[measure] in ONCE:
        return 0
    if IS_DRY:
        return 1
    return 4 if DEVICE.type == "cuda" else 9 if loops > 1 else 3


def figure_of(measure: str, make_task: MakeTask, loop: str) -> float:
    """Measure; a loop that fails alone does not take the others with it."""
    try:
        return MEASURES[measure](make_task, loop_named(loop))
    except Exception:
        if dist.is_initialized():
            raise
        print(f"{measure} of {loop} failed:\n{traceback.format_exc()}", file=sys.__stderr__)
        return math.nan


def medians(measures: Sequence[str], make_task: MakeTask, loops: Sequence[str]) -> Figures:
    """Measure the loops in turn."""
    figures: Figures = {}
    torch.manual_seed(0)
    with side_by_side():
        for measure in measures:
            taken: dict[str, list[float]] = {loop: [] for loop in loops}
            for _, loop in turns(loops, rounds_of(measure, len(loops))):
                taken[loop].append(figure_of(measure, make_task, loop))
            figures[measure] = {loop: statistics.median(of_loop[1:] or of_loop) for loop, of_loop in taken.items()}
    return figures


def main(measures: str, task: str, *loops: str) -> None:
    """Publish the medians."""
    figures = medians(measures.split(","), TASKS[task], loops)
    if is_first_process():
        for measure, of_measure in figures.items():
            publish(measure, **of_measure)


if __name__ == "__main__":
    main(*sys.argv[1:])
