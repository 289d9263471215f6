"""Measuring in fresh processes: what ran before leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparisons import Comparison

__all__ = [
    "ON_THE_CPU",
    "ROOT",
    "Figures",
    "environment_of",
    "figures_in",
    "in_turn",
    "is_first_process",
    "measure",
    "percentile",
    "publish",
    "shared_folder",
]

ROOT = Path(__file__).parents[1]
BEGINNING = "figures of "
ON_THE_CPU = {
    "ACCELERATE_USE_CPU": "true",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # as everyone's, but for machines that switch it off
}
"""Variables of a process that measures on one core."""

Figures = dict[str, dict[str, float]]
"""Of the variants, by the name of what was measured."""


def publish(figure: str = "", /, **figures: float) -> None:
    """Print the figures of some variants, for the process that asked for them.

    Args:
        figure: What was measured, if it is not all that this process measures.
        **figures: By the names of the variants.
    """
    print(f"{BEGINNING}{json.dumps({figure: figures})}", flush=True)


def is_first_process() -> bool:
    """Whether this process is the one that tells the figures."""
    return os.environ.get("RANK", "0") == "0"


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the values that this share of them does not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


@contextlib.contextmanager
def shared_folder(parent: str | None = None) -> Generator[str]:
    """A folder that all processes write to, removed at the end of the context."""
    import torch.distributed as dist  # which this is not the first to import

    with tempfile.TemporaryDirectory(dir=parent) as folder:
        if not dist.is_initialized():
            yield folder
            return
        shared: list[Any] = [folder]
        dist.broadcast_object_list(shared)
        yield shared[0]
        dist.barrier()


def in_turn(variants: Mapping[str, Callable[[], float]], rounds: int, warmup: int = 0) -> dict[str, float]:
    """Return the median of the figures of each variant; another one begins in each round.

    Args:
        variants: Each measures once.
        rounds: How often each has its turn.
        warmup: How many turns come before them, which do not count.
    """
    names = list(variants)
    figures: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + warmup):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            figures[name].append(variants[name]())
    return {name: statistics.median(taken[warmup:]) for name, taken in figures.items()}


def measure(
    comparison: Comparison,
    variant: str | None = None,
    python: str = sys.executable,
    *,
    is_dry: bool = False,
    seconds: float = 24 * 3600.0,
) -> Figures:
    """Start a process that measures, and return what it published.

    Args:
        comparison: What to measure.
        variant: Of which variant; None for all of them in one process.
        python: The interpreter of the environment to measure in.
        is_dry: Whether the smallest sizes are enough.
        seconds: When it is killed, at the latest.

    Raises:
        RuntimeError: The process failed, or was killed.
    """
    module, *arguments = [*comparison.command.split(), *filter(None, [variant])]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    launcher = [*launcher, f"--nproc-per-node={comparison.ranks}"] if comparison.ranks else []
    command = [python, *launcher, "-m", f"benchmarks.{module}", *arguments]
    named = " ".join(command[command.index(f"benchmarks.{module}") :])
    limit = seconds if is_dry else min(seconds, comparison.seconds)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment_of(comparison, python, is_dry=is_dry),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as error:
            message = f"{named} was killed after {limit:.0f} s"
            raise RuntimeError(message) from error
        finally:
            with contextlib.suppress(ProcessLookupError):  # also what it left running
                os.killpg(process.pid, signal.SIGKILL)
    figures = figures_in(output)
    if process.returncode != 0 or not figures:
        message = f"{named} ended with status {process.returncode}:\n{output}\n{errors}"
        raise RuntimeError(message)
    if any(math.isnan(figure) for of_figure in figures.values() for figure in of_figure.values()):
        print(errors, file=sys.stderr)
    return figures


def figures_in(output: str) -> Figures:
    """What a process published in its output."""
    published = [json.loads(line.removeprefix(BEGINNING)) for line in output.splitlines() if line.startswith(BEGINNING)]
    return {figure: of_figure for line in published for figure, of_figure in line.items()}


def environment_of(comparison: Comparison, python: str, *, is_dry: bool) -> dict[str, str]:
    """That of this process, without the settings of a launcher, and on the CPU with one thread.

    Another interpreter imports what it has installed itself, and none of our sources, one of which is called like the
    original: pytorch_accelerated.
    """
    left_out = ("ACCELERATE_",) if python == sys.executable else ("ACCELERATE_", "PYTHONPATH")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {
        **inherited,
        "PYTHONWARNINGS": "ignore",
        **(ON_THE_CPU if comparison.device == "cpu" else {}),
        **({"BENCHMARKS_DRY_RUN": "true"} if is_dry else {}),
        **comparison.env,
    }
