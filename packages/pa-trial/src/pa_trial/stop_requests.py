"""Requests to stop a training early: from the trial, a callback or a signal, on any process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import torch

from pa_distributed import SignalWatch
from pa_trial.collectives import sum_over_processes
from pa_trial.context_parts import ContextParts


class StopRequests:
    """Combines the requests of all processes.

    Args:
        parts: The parts of the context; they hold the request of this process.
    """

    def __init__(self, parts: ContextParts) -> None:
        self._parts = parts
        self._signalled = False

    @contextmanager
    def watching_signals(self) -> Generator[None]:
        """Treat the signals of ``stop_on_signals`` as requests to stop; restore their handlers at the end of the block.

        Outside the main thread, where Python delivers no signals, they are left alone.
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
        """Return whether any process requests a stop; every process must call this."""
        parts = self._parts
        if parts.num_processes > 1:
            own = torch.tensor([parts.stop_requested, self._signalled], dtype=torch.int32, device=parts.device)
            of_any = sum_over_processes(own).cpu()
            parts.stop_requested, self._signalled = bool(of_any[0]), bool(of_any[1])
        return parts.stop_requested

    def tell(self) -> None:
        """Print on the chief that a signal ended the training, if one did."""
        if self._signalled and self._parts.rank == 0:
            batches = self._parts.progress.batches_trained
            print(  # noqa: T201  # whoever sent it looks at what the script prints
                f"A signal requested a stop: training ends after {batches} batches, which are saved.", flush=True
            )

    def _on_signal(self) -> None:
        self._signalled = True
        self._parts.stop_requested = True
        self._parts.trained.ask_to_leave()
