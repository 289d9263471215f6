"""What a training step consists of: where its time goes, and how many functions it calls, on any machine alike.

Runs as ``python -m benchmarks.within_a_step chapters TASK LOOP ...``, or ``calls``, and under ``torchrun`` on several
processes. The loops take turns in the same process.

Chapters are microseconds in what torch does, and in what the loop does in between. Printed are a low percentile of
each, which tells loops apart also on a machine that others use, and its median. The edges of epochs are among what
comes after an update.

Numbers of calls do not scatter at all: those of a step, and of the edge of an epoch. A generator is called each time it
resumes, and from Python 3.12 on comprehensions are no calls.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor

from benchmarks.measures import loop_named, side_by_side, turns
from benchmarks.processes import is_first_process, percentile
from benchmarks.tasks import TASKS, Task
from benchmarks.window import steps_of_epoch

__all__ = ["Calls", "calls_of_edge", "calls_of_step", "time_chapters"]

ROUNDS = 7
PARTS = ("forward pass", "loss", "backward pass", "update", "clearing gradients")
LOW, MEDIAN = 20, 50
FIRST, NUM_STEPS = 5, 20
PACKAGES = ("/pa_core/", "/pa_data/", "/pa_trial/")


class Moment(NamedTuple):
    """When a part of a step began or ended."""

    part: str
    has_ended: bool
    seconds: float


def time_chapters(task: Task, train: Callable[[Task, int], None]) -> dict[str, list[float]]:
    """Train, and return the microseconds of each part of each step, and of what comes after it."""
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


def print_chapters(task: str, *loops: str) -> None:
    """Print where the time goes."""
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


class Calls(NamedTuple):
    """Numbers of calls.

    Attributes:
        of_trainer: Of Python functions of pa_core, pa_data and pa_trial.
        of_python: Of all functions in Python, those of torch included.
        of_c: Of functions in C that Python calls.
    """

    of_trainer: float
    of_python: float
    of_c: float


def calls_of_step(make_task: Callable[[], Task], train: Callable[[Task, int], None]) -> Calls:
    """Count the calls of a step in the middle of an epoch."""
    counts = _count(replace(make_task(), num_epochs=1), train, FIRST, FIRST + NUM_STEPS)
    return Calls(*(number / NUM_STEPS for number in counts))


def calls_of_edge(make_task: Callable[[], Task], train: Callable[[Task, int], None]) -> Calls:
    """Count the calls from the last update of an epoch to the first one of the next, beyond those of a step."""
    task = replace(make_task(), num_epochs=3)
    last = 2 * steps_of_epoch(task)  # what is called for the first time is looked up at the first edge
    with_edge = _count(task, train, last, last + 1)
    without = _count(replace(make_task(), num_epochs=3), train, last - 5, last - 4)
    return Calls(*(there - here for there, here in zip(with_edge, without, strict=True)))


def _count(task: Task, train: Callable[[Task, int], None], first: int, last: int) -> Calls:
    """Count between the ends of two updates of the optimizer."""
    counts = Counter[str]()
    updates = 0

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        counts[event] += 1
        if event == "call" and any(package in frame.f_code.co_filename for package in PACKAGES):
            counts["of_trainer"] += 1

    def count_update(*_: object) -> None:
        nonlocal updates
        updates += 1
        if updates == first:
            sys.setprofile(note)
        elif updates == last:
            sys.setprofile(None)

    task.optimizer.register_step_post_hook(count_update)
    train(task, task.num_epochs)
    return Calls(counts["of_trainer"], counts["call"], counts["c_call"])


def print_calls(task: str, *loops: str) -> None:
    """Print how many functions are called."""
    counted: dict[str, tuple[Calls, Calls]] = {}
    with side_by_side():
        for _, loop in turns(loops, 0):
            train = loop_named(loop).train
            counted[loop] = calls_of_step(TASKS[task], train), calls_of_edge(TASKS[task], train)
    if is_first_process():
        titles = ("of the trainer", "in Python", "in C")
        print(
            f"{'calls of functions':22}"
            + "".join(f"{f'{title}, {part}':>24}" for part in ("step", "edge") for title in titles)
        )
        for loop, (step, edge) in counted.items():
            print(f"{loop:22}" + "".join(f"{number:24,.1f}" for number in (*step, *edge)))


if __name__ == "__main__":
    {"chapters": print_chapters, "calls": print_calls}[sys.argv[1]](*sys.argv[2:])
