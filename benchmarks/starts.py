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


def first_trainer() -> Callable[[], object]:
    """The first trainer of a program, for which accelerate is imported."""
    from pa_core import Trainer

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return lambda: Trainer(model, torch.nn.MSELoss(), optimizer)


def main(what: str) -> None:
    """Publish the time of nothing, of an import, or of the first trainer."""
    started = {"nothing": int, "trainer": first_trainer() if what == "trainer" else int}
    start = started.get(what, lambda: importlib.import_module(what))
    begun = time.perf_counter()
    start()
    publish(**{what: (time.perf_counter() - begun) * 1e3})


if __name__ == "__main__":
    main(sys.argv[1])
