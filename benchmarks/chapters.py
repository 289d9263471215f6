"""Where the time of a training step goes: microseconds in what torch does, and in what the loop does in between.

Runs as ``python -m benchmarks.chapters TASK LOOP ...``, and under ``torchrun`` on several processes. The loops
take turns in the same process. Printed are a low percentile of each chapter, which tells loops apart also on a machine
that others use, and its median. The edges of epochs are among what comes after an update.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor

from benchmarks.measures import loop_named, side_by_side, turns
from benchmarks.processes import is_first_process
from benchmarks.tasks import TASKS, Task

__all__ = ["time_chapters"]

ROUNDS = 7
PARTS = ("forward pass", "loss", "backward pass", "update", "clearing gradients")
LOW, MEDIAN = 0.2, 0.5


class Moment(NamedTuple):
    """When a part of a step began or ended."""

    part: str
    has_ended: bool
    seconds: float


def time_chapters(task: Task, train: Callable[[Task, int], None]) -> dict[str, list[float]]:
    """Train, and return the microseconds of each part of each step, and of what comes after it.

    Args:
        task: What is trained, for as many epochs as it says.
        train: The loop.
    """
    moments: list[Moment] = []

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            moments.append(Moment(part, False, time.perf_counter()))
            returned = function(*args, **kwargs)
            moments.append(Moment(part, True, time.perf_counter()))
            return returned

        return call

    forward, loss, backward, update, clearing = PARTS
    with (
        patch.object(task.model, "forward", timed(forward, task.model.forward)),
        patch.object(task.loss_func, "forward", timed(loss, task.loss_func.forward)),
        patch.object(Tensor, "backward", timed(backward, Tensor.backward)),
        patch.object(task.optimizer, "step", timed(update, task.optimizer.step)),
        patch.object(task.optimizer, "zero_grad", timed(clearing, task.optimizer.zero_grad)),
    ):
        train(task, task.num_epochs)
    chapters: dict[str, list[float]] = defaultdict(list)
    for first, second in pairwise(_from_first_batch_to_last_update(moments)):
        name = f"after the {first.part}" if first.has_ended else first.part
        chapters[name].append((second.seconds - first.seconds) * 1e6)
    return chapters


def _from_first_batch_to_last_update(moments: list[Moment]) -> list[Moment]:
    """Leave out what loops do before and after, such as clearing gradients."""
    parts = [moment.part for moment in moments]
    end = len(parts) - parts[::-1].index("update")
    return moments[parts.index("forward pass") : end]


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
    """Print a line for each chapter, in microseconds, and the sum of those that are the loop's own."""
    print(f"{'low, median (us)':42}" + "".join(f"{loop:>22}" for loop in times))
    between = [f"after the {part}" for part in PARTS]
    for name in (*PARTS, *between):
        print_line(name, [[of_loop[name]] for of_loop in times.values()])
    print_line("the loop itself", [[of_loop[name] for name in between] for of_loop in times.values()])
    print_line("a step", [list(of_loop.values()) for of_loop in times.values()])


def print_line(name: str, loops: list[list[list[float]]]) -> None:
    """Print one line of the table: for each loop, the sum over the chapters that are given."""
    shown = [[sum(percentile(chapter, share) for chapter in loop) for share in (LOW, MEDIAN)] for loop in loops]
    print(f"{name:42}" + "".join(f"{f'{low:,.1f}, {median:,.1f}':>22}" for low, median in shown))


def percentile(figures: list[float], share: float) -> float:
    """The figure that this share of them is below."""
    return sorted(figures)[int(share * len(figures))]


if __name__ == "__main__":
    main(*sys.argv[1:])
