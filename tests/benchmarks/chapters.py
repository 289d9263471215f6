"""Where the time of a training step goes: microseconds between the moments that every loop passes.

Runs as ``python -m tests.benchmarks.chapters TASK LOOP ...``, and under ``torchrun`` on several processes. The loops
take turns in the same process. Printed are the median of each chapter, and its mean, in which the edges of epochs are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

from tests.benchmarks.in_turn import is_first_process, side_by_side, turns
from tests.benchmarks.measures import loop_named
from tests.benchmarks.tasks import TASKS, Task

__all__ = ["time_chapters"]

ROUNDS = 7
NAMES = {
    ("inputs", "outputs"): "forward pass",
    ("outputs", "loss"): "loss",
    ("loss", "inputs"): "backward pass without update, next batch",
    ("loss", "gradients"): "backward pass",
    ("gradients", "weights"): "update",
    ("weights", "inputs"): "clearing gradients, next batch",
}


def time_chapters(task: Task, train: Callable[[Task, int], None]) -> dict[str, list[float]]:
    """Train, and return the microseconds of each chapter of each step.

    Args:
        task: What is trained, for as many epochs as it says.
        train: The loop.
    """
    moments: list[tuple[str, float]] = []

    def note(moment: str) -> Callable[..., None]:
        return lambda *_: moments.append((moment, time.perf_counter()))

    task.model.register_forward_pre_hook(note("inputs"))
    task.model.register_forward_hook(note("outputs"))
    task.loss_func.register_forward_hook(note("loss"))
    task.optimizer.register_step_pre_hook(note("gradients"))
    task.optimizer.register_step_post_hook(note("weights"))
    train(task, task.num_epochs)
    chapters: dict[str, list[float]] = defaultdict(list)
    for (first, begun), (second, ended) in pairwise(moments):
        chapters[NAMES[first, second]].append((ended - begun) * 1e6)
    return chapters


def main(task: str, *loops: str) -> None:
    """Print the table."""
    times: dict[str, dict[str, list[float]]] = {loop: defaultdict(list) for loop in loops}
    with side_by_side():
        for number, loop in turns(loops, ROUNDS):
            chapters = time_chapters(TASKS[task](), loop_named(loop).train)
            for name, taken in chapters.items() if number > 0 else ():
                times[loop][name] += taken
    if is_first_process():
        print_table(times)


def print_table(times: dict[str, dict[str, list[float]]]) -> None:
    """Print a line for each chapter, with the median and the mean of each loop, in microseconds."""
    loops = list(times)
    print(f"{'median, mean (us)':42}" + "".join(f"{loop:>22}" for loop in loops))
    for name in times[loops[0]]:
        figures = [
            f"{statistics.median(times[loop][name]):,.0f}, {statistics.fmean(times[loop][name]):,.0f}" for loop in loops
        ]
        print(f"{name:42}" + "".join(f"{figure:>22}" for figure in figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.chapters", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("loops", nargs="+", metavar="loop", help="a file of loops/, such as by_hand or ours")
    arguments = parser.parse_args()
    main(arguments.task, *arguments.loops)
