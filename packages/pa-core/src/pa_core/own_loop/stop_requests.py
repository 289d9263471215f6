"""What ends a custom loop early: requests of the script and of callbacks, and the update that each of them stops."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from pa_core.any_trainer import CallbackHandler, TrainerCallback
from pa_core.distributed.agreement import Agreement
from pa_core.distributed.comparison import Describe
from pa_core.errors import StopTrainingError

__all__ = ["StopRequests"]


class StopRequests:
    """Has a request to stop act at the same update, whether a run has one process or several.

    What the processes must know before an update travels with the gradients of its last backward pass. With that pass
    the update is sealed: a request that comes later stops the next one, even on a process that is alone.

    Args:
        agreement: What all processes of the run decide together.
        device: The device of the run.
        num_processes: The number of processes.

    Example:
        >>> import torch
        >>> from pa_core.distributed.agreement import Agreement
        >>> agreement = Agreement(torch.device("cpu"), 1)
        >>> stops = StopRequests(agreement, torch.device("cpu"), num_processes=1)
        >>> stops.seal_update()
        >>> stops.ask("enough")
        >>> agreement.stop_if_alone()  # too late for this update
        >>> stops.open_update()
        >>> agreement.stop_if_alone()
        Traceback (most recent call last):
        pa_core.errors.StopTrainingError: enough
    """

    def __init__(self, agreement: Agreement, device: torch.device, num_processes: int) -> None:
        self._agreement = agreement
        self._is_alone = num_processes == 1
        self._is_on_cpu = device.type == "cpu"
        self._is_sealed = False
        self._late: StopTrainingError | None = None

    def ask(self, reason: str) -> None:
        """Request a stop before the next update that is not sealed; the first request is the one that counts.

        Args:
            reason: The text of the error that callbacks are told of.
        """
        if self._is_sealed:
            self._late = self._late or StopTrainingError(reason)
        elif self._agreement.stop is None:
            self._agreement.stop = StopTrainingError(reason)

    def seal_update(self) -> None:
        """Note that what the processes must know before the update is on its way."""
        self._is_sealed = True

    def open_update(self) -> None:
        """Begin the next update, which a request that came too late for the last one stops."""
        self._is_sealed = False
        if self._late is not None:
            self._agreement.stop, self._late = self._agreement.stop or self._late, None

    def act_before_step(self, callbacks: CallbackHandler[Any]) -> None:
        """Stop before the step of an update if a callback that has seen its loss requests it, as for one that is NaN.

        Callbacks see the loss when all backward passes are over, and the flags have travelled with the gradients. On
        accelerators they see it some updates later in any case, and no process waits for another here.

        Args:
            callbacks: The callbacks of the run.

        Raises:
            StopTrainingError: A process requested a stop.
        """
        self._agreement.stop_if_alone()
        if not self._is_alone and self._is_on_cpu and callbacks.listeners(TrainerCallback.on_train_step_end.__name__):
            with self._agreement.together(dict):  # in each step, where nothing is to be described
                pass

    @contextmanager
    def together(self, describe: Describe | None = None) -> Generator[None]:
        """Let a request within the context, or before it, end the run on all processes when the context ends.

        Args:
            describe: As for ``Agreement.together``.

        Raises:
            RanksDifferError: As ``Agreement.together``.
            StopTrainingError: A process requested a stop.
        """
        with self._agreement.together(describe):
            yield
        self._agreement.stop_if_alone()
