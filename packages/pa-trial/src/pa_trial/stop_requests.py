"""Requests to end a training before its time: by the trial, by its callbacks, by a signal; on any process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import torch

from pa_core.distributed import sum_over_processes
from pa_core.parts import SignalWatch
from pa_trial.context_parts import ContextParts

__all__ = ["StopRequests"]


class StopRequests:
    """Combines what processes ask for.

    Args:
        parts: What the context consists of, which keeps the request of this process.
    """

    def __init__(self, parts: ContextParts) -> None:
        self._parts = parts
        self._signalled = False

    @contextmanager
    def watching_signals(self) -> Generator[None]:
        """Take the signals that ``init`` was told of for requests to stop; afterwards they do what they did before.

        In another thread than the main one, to which Python brings all signals, they are left alone.
        """
        is_main_thread = threading.current_thread() is threading.main_thread()
        with SignalWatch(self._parts.run_settings.stop_on_signals if is_main_thread else (), self._on_signal) as watch:
            try:
                yield
            finally:
                watch.settle()

    def start_training(self) -> None:
        """Let a signal that came earlier cut the first workload short."""
        if self._signalled:
            self._parts.trained.ask_to_leave()

    def agreed(self) -> bool:
        """Return whether any process asks to stop, which all of them do then; all must call this."""
        parts = self._parts
        if parts.num_processes > 1:
            own = torch.tensor([parts.stop_requested, self._signalled], dtype=torch.int32, device=parts.device)
            of_any = sum_over_processes(own).cpu()
            parts.stop_requested, self._signalled = bool(of_any[0]), bool(of_any[1])
        return parts.stop_requested

    def tell(self) -> None:
        """Say on the chief that a signal has ended the training, if it was one."""
        if self._signalled and self._parts.rank == 0:
            batches = self._parts.progress.batches_trained
            print(  # noqa: T201  # whoever sent it looks at what the script prints
                f"A signal asked to stop: training ends after {batches} batches, which are saved.", flush=True
            )

    def _on_signal(self) -> None:
        self._signalled = True
        self._parts.stop_requested = True
        self._parts.trained.ask_to_leave()
