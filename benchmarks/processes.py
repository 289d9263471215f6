"""Measuring in fresh processes: what ran before leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.comparisons import Comparison

__all__ = ["measure", "publish"]

ROOT = Path(__file__).parents[1]
FIGURES = "figures: "


def publish(**figures: float) -> None:
    """Print the figures of some variants, for the process that asked for them."""
    print(f"{FIGURES}{json.dumps(figures)}", flush=True)


def measure(comparison: Comparison, variant: str | None, python: str = sys.executable) -> dict[str, float]:
    """Start a process that measures, on one thread, and return what it published.

    Args:
        comparison: What to measure.
        variant: Of which variant; None for all of them in one process.
        python: The interpreter of the environment to measure in.

    Raises:
        RuntimeError: The process failed.
    """
    module, *arguments = [*comparison.command.split(), *([] if variant is None else [variant])]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    launcher = [*launcher, f"--nproc-per-node={comparison.ranks}"] if comparison.ranks > 1 else []
    command = [python, *launcher, "-m", f"benchmarks.{module}", *arguments]
    env = {
        **os.environ,
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # as everyone's, but for machines that switch it off
        "PYTHONWARNINGS": "ignore",
        **comparison.env,
    }
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    published = [line for line in ended.stdout.splitlines() if line.startswith(FIGURES)]
    if ended.returncode != 0 or not published:
        message = f"{' '.join(command)} ended with status {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
        raise RuntimeError(message)
    figures: dict[str, float] = json.loads(published[-1].removeprefix(FIGURES))
    return figures
