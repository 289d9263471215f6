"""Runs whose machine is taken away."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pa_core import AnyTrainer, SaveTrainingStateCallback, TrainerCallback, distributed


@contextmanager
def own_handler(number: signal.Signals = signal.SIGUSR1) -> Generator[list[int]]:
    """A handler of the script's own, which notes the signals that it gets."""
    handled: list[int] = []
    before = signal.signal(number, lambda number, _frame: handled.append(number))
    try:
        yield handled
    finally:
        signal.signal(number, before)


def preemptible(folder: Path, **options: Any) -> SaveTrainingStateCallback:
    """Saves states only when the machine is taken away, and at the end."""
    return SaveTrainingStateCallback(folder, stop_on_signals=("SIGTERM", signal.SIGUSR1), **options)


class SignalAt(TrainerCallback):
    """Sends a signal to this process at one call of an event, as the system of a cluster does to some process."""

    def __init__(self, event: str, call: int, number: signal.Signals = signal.SIGTERM, rank: int = 0) -> None:
        calls = iter(range(1, 1_000_000))  # of this process: not resumed

        def send(trainer: AnyTrainer, **kwargs: Any) -> None:
            if next(calls) == call and distributed.rank() == rank:
                os.kill(os.getpid(), number)

        vars(self)[event] = send
