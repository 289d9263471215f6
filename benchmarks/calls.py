"""How many functions a training step calls, and the edge of an epoch: what loops add to a step, on any machine alike.

Runs as ``python -m benchmarks.calls TASK LOOP ...``, and under ``torchrun`` on several processes. Where others
use the machine, times scatter by more than loops differ; numbers of calls do not scatter at all. A generator is called
each time it resumes, and from Python 3.12 on comprehensions are no calls.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple

from benchmarks.measures import loop_named, side_by_side, turns
from benchmarks.processes import is_first_process
from benchmarks.tasks import TASKS, Task
from benchmarks.window import steps_of_epoch

__all__ = ["Calls", "calls_of_edge", "calls_of_step"]

FIRST, NUM_STEPS = 5, 20
PACKAGES = ("/pa_core/", "/pa_data/", "/pa_trial/")


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
    """Count the calls of a step in the middle of an epoch.

    Args:
        make_task: Makes what is trained.
        train: The loop.
    """
    counts = _count(replace(make_task(), num_epochs=1), train, FIRST, FIRST + NUM_STEPS)
    return Calls(*(number / NUM_STEPS for number in counts))


def calls_of_edge(make_task: Callable[[], Task], train: Callable[[Task, int], None]) -> Calls:
    """Count the calls from the last update of an epoch to the first one of the next, beyond those of a step.

    Args:
        make_task: Makes what is trained.
        train: The loop.
    """
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


def main(task: str, *loops: str) -> None:
    """Print the table."""
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
    main(*sys.argv[1:])
