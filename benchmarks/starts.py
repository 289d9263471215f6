"""How long it takes until a first training can begin: milliseconds, in a process that has imported torch alone.

Runs as ``python -m benchmarks.starts WHAT``.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable

import torch

from benchmarks.processes import publish

__all__ = ["STARTS"]


def import_nothing() -> float:
    """What measuring itself costs."""
    return _milliseconds(lambda: None)


def import_accelerate() -> float:
    """What everyone waits for who uses accelerate."""
    return _milliseconds(lambda: importlib.import_module("accelerate"))


def import_pa_core() -> float:
    """What a program waits for that imports the trainer at its top."""
    return _milliseconds(lambda: importlib.import_module("pa_core"))


def make_first_trainer() -> float:
    """The first Trainer of a program, for which accelerate is imported."""
    from pa_core import Trainer

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return _milliseconds(lambda: Trainer(model, torch.nn.MSELoss(), optimizer))


def _milliseconds(start: Callable[[], object]) -> float:
    begun = time.perf_counter()
    start()
    return (time.perf_counter() - begun) * 1e3


STARTS: dict[str, Callable[[], float]] = {
    "nothing": import_nothing,
    "accelerate": import_accelerate,
    "pa_core": import_pa_core,
    "trainer": make_first_trainer,
}

if __name__ == "__main__":
    publish(**{sys.argv[1]: STARTS[sys.argv[1]]()})
