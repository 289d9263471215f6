"""How long it takes until a first training can begin: milliseconds, in a process that has imported torch alone.

Runs as ``python -m benchmarks.starts WHAT``.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.processes import publish


def start_of(what: str) -> Callable[[], object]:
    """What is timed: nothing, an import, or making the first trainer of a program, for which accelerate is imported."""
    if what != "trainer":
        return int if what == "nothing" else partial(importlib.import_module, what)
    from pa_core import Trainer

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return lambda: Trainer(model, torch.nn.MSELoss(), optimizer)


if __name__ == "__main__":
    start = start_of(sys.argv[1])
    begun = time.perf_counter()
    start()
    publish(**{sys.argv[1]: (time.perf_counter() - begun) * 1e3})
