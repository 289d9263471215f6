"""How a worker of a loader begins, and what it does about signals until it knows better."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import get_worker_info

__all__ = ["WorkerStart", "sigterm_held_back"]

_CAN_HOLD_BACK = hasattr(signal, "pthread_sigmask")  # not on Windows


@dataclass(frozen=True)
class WorkerStart:
    """Makes a worker look as under a plain loader, then calls the user's ``worker_init_fn``.

    Attributes:
        worker_init_fn: The user's function, if there is one.
    """

    worker_init_fn: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        """Prepare the worker with this number."""
        info: Any = get_worker_info()
        # Users reach their dataset through the worker info, which refuses plain assignment.
        object.__setattr__(info, "dataset", info.dataset.dataset)
        _leave_first_sigterm_to_the_main_process()
        _let_sigterm_through()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


@contextmanager
def sigterm_held_back() -> Generator[None]:
    """Within the context, workers may be started: SIGTERM waits until they know what to do about it.

    Until then torch's own handler would end them, and the run with them.
    """
    if not _CAN_HOLD_BACK:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # which workers inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _let_sigterm_through() -> None:
    if _CAN_HOLD_BACK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _leave_first_sigterm_to_the_main_process() -> None:
    """Where the script handles SIGTERM, let it: launchers send it to all processes, and torch's workers end by it.

    The second one ends the worker, so that it cannot keep the main process from ending.
    """
    if callable(signal.getsignal(signal.SIGTERM)):  # inherited, if the worker was forked
        signal.signal(signal.SIGTERM, lambda number, _frame: signal.signal(number, signal.SIG_DFL))
