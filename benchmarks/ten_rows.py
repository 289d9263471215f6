"""What two commits are compared by: the processor time and the function calls of ten parts of a training script.

Runs as ``python -m benchmarks.ten_rows time ROW ...``, or ``calls``, and under ``torchrun`` on several processes. Times
are microseconds of all threads of a process, the least of many short turns, in which other programs rarely disturb.
Calls are those of functions in Python and in C by the main thread. ``benchmarks.regressions`` starts such processes for
both commits.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from torch.utils.data import Subset

from benchmarks.measures import edge, loop_named, side_by_side
from benchmarks.processes import is_first_process, percentile, publish
from benchmarks.starts import start_of
from benchmarks.tasks import TASKS, Task, vectors
from benchmarks.within_a_step import calls_of_edge, calls_of_step

__all__ = ["MEASURED", "main"]

TURNS = 3
FEW_STEPS = 10
LOW = 10
Figure: TypeAlias = Callable[[str], float]


def of_work(work: Callable[[], object], figure: str, *, part: int = 1, turns: int = 30) -> float:
    """Measure a call, or the part of it that one of several equal items takes; a single turn has no warm-up."""
    if turns > 1:
        work()
    if figure == "calls":
        return count_calls(work) / part
    seconds: list[float] = []
    for _ in range(turns):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds) / part * 1e6


def count_calls(work: Callable[[], object]) -> int:
    """Count the functions in Python and in C that a call calls."""
    counts = Counter[str]()

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        counts[event] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts["call"] + counts["c_call"]


def of_step(loop: str, figure: str) -> float:
    """Measure a step of a loop."""
    if figure == "calls":
        return sum(calls_of_step(TASKS["digits"], loop_named(loop).train)[1:])
    return min(_steps_of_run(loop) for _ in range(TURNS))


def _steps_of_run(loop: str) -> float:
    """A low percentile of the microseconds from one update to the next."""
    task = TASKS["digits"]()
    updated: list[float] = []

    def note(*_: object) -> None:
        updated.append(time.process_time())

    task.optimizer.register_step_post_hook(note)
    loop_named(loop).train(task, task.num_epochs)
    return _low([second - first for first, second in pairwise(updated)]) * 1e6


def _low(seconds: Sequence[float]) -> float:
    return percentile(seconds, LOW)


def of_edge(figure: str) -> float:
    """Measure from the last update of an epoch to the next epoch, with the default callbacks."""
    if figure == "calls":
        return sum(calls_of_edge(_short_epochs, loop_named("ours").train)[1:])
    return min(edge(_short_epochs, loop_named("ours"), time.process_time, _low) for _ in range(TURNS))


def _short_epochs() -> Task:
    task = TASKS["digits"]()
    return replace(task, dataset=vectors(FEW_STEPS * task.batch_size))


def of_sample(figure: str) -> float:
    """Measure a sample of a dataset in Python, which has it ready."""
    from benchmarks.loaders import Ready, ours  # not before the row that measures such an import

    samples = 2048
    loader = ours(Ready(samples), 0)
    return of_work(lambda: sum(1 for _ in loader), figure, part=samples)


def of_state(kind: str, figure: str) -> float:
    """Measure saving a training state with 32 MB of weights, or loading it."""
    from benchmarks.saving import frozen  # as above
    from pa_core import Trainer

    task = frozen("32")
    trainer = Trainer(task.model, task.loss_func, task.optimizer, [])
    trainer.train(Subset(task.dataset, range(64)), 1, per_device_batch_size=task.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder, "state")
        trainer.save_training_state(state)
        if kind == "save":
            return of_work(lambda: trainer.save_training_state(state), figure)
        return of_work(lambda: trainer.load_training_state(state), figure)


MEASURED: dict[str, Figure] = {
    "import": lambda figure: of_work(start_of("pa_core"), figure, turns=1),
    "first_trainer": lambda figure: of_work(start_of("trainer"), figure, turns=1),
    "step": partial(of_step, "ours"),
    "step_of_two": partial(of_step, "ours"),
    "own_loop": partial(of_step, "own_loop"),
    "trial_step": partial(of_step, "trial"),
    "edge": of_edge,
    "sample": of_sample,
    "save": partial(of_state, "save"),
    "load": partial(of_state, "load"),
}
"""What measures each row."""


def main(figure: str, *rows: str) -> None:
    """Publish the figures; a row that fails is NaN."""
    figures: dict[str, float] = {}
    with side_by_side():
        for row in rows:
            gc.collect()
            gc.freeze()  # so that no row pays for what others have left
            if figure == "calls":
                gc.disable()  # a collection calls functions, now and then
            try:
                figures[row] = MEASURED[row](figure)
            except Exception:
                figures[row] = math.nan
                print(f"{row} failed:\n{traceback.format_exc()}", file=sys.__stderr__)
            gc.enable()
    check_sources()
    if is_first_process():
        publish(figure, **figures)


def check_sources() -> None:
    """Raise an error if a package is not the one that the process was asked to measure."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    files = [getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith("pa_")]
    if strangers := [file for file in files if file and not file.startswith(tuple(folders))]:
        message = f"{strangers[0]} was imported, which is in none of the folders of PYTHONPATH"
        raise RuntimeError(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
