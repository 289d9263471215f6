"""Requests to stop a training early: from the trial, a callback or a signal, on any process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from pa_distributed import SignalWatch, gather_objects
from pa_trial.context_parts import ContextParts
from pa_trial.errors import ConfigurationError


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

        Outside the main thread, where Python does not deliver signals, their handlers are not changed.
        """
        is_main_thread = threading.current_thread() is threading.main_thread()
        try:
            watch = SignalWatch(self._parts.run_settings.stop_on_signals if is_main_thread else (), self._on_signal)
        except ValueError as error:
            raise ConfigurationError(*error.args) from None
        with watch:
            try:
                yield
            finally:
                watch.settle()

    def start_training(self) -> None:
        """Let a signal that came before training cut the first workload short."""
        if self._signalled:
            self._parts.trained.ask_to_leave()

    def agreed(self) -> bool:
        """Return whether any process requests a stop; every process must call this."""
        parts = self._parts
        of_each = gather_objects((parts.stop_requested, self._signalled))
        parts.stop_requested, self._signalled = (any(requests) for requests in zip(*of_each, strict=True))
        return parts.stop_requested

    def tell(self) -> None:
        """Print on the chief that a signal ended the training, if a signal did."""
        if self._signalled and self._parts.distributed.rank == 0:
            batches = self._parts.progress.batches_trained
            print(  # noqa: T201  # the sender of the signal reads the output of the script
                f"A signal requested a stop: training ends after {batches} batches, and is saved.", flush=True
            )

    def _on_signal(self) -> None:
        self._signalled = True
        self._parts.stop_requested = True
        self._parts.trained.ask_to_leave()
