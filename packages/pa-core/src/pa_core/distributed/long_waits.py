"""Waiting for what one process does for a long time, so that none of the others gives up."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pa_core.distributed.collectives import gather_objects, num_processes

__all__ = ["do_while_others_wait", "raise_on_all", "wait_together"]

_SECONDS_BETWEEN_SIGNS = 5.0
"""Less than any process waits for another one in one exchange."""


def wait_together(is_done: Callable[[float | None], bool]) -> None:
    """Wait until something is done on all processes; every process must call this.

    Args:
        is_done: Waits for as many seconds, or as long as it takes, and returns whether it is done on this process.
    """
    if num_processes() == 1:
        is_done(None)
        return
    while not all(gather_objects(is_done(_SECONDS_BETWEEN_SIGNS))):
        continue


def raise_on_all(problem: Exception | None) -> None:
    """Raise what one process has met on all of them; every process must call this.

    Args:
        problem: What this process has met.
    """
    for error in gather_objects(problem):
        if error is not None:
            raise error


def do_while_others_wait(action: Callable[[], None] | None) -> None:
    """Do something that may take long on some processes, while the others wait; every process must call this.

    The first error that ends the action on a process is raised on all of them.

    Args:
        action: What this process does; None for one that only waits.

    Example:
        >>> do_while_others_wait(None)
    """
    if num_processes() == 1:
        if action is not None:
            action()
        return
    errors: list[Exception] = []

    def act() -> None:
        try:
            if action is not None:
                action()
        except Exception as error:  # whatever it is, all processes are told
            errors.append(error)

    thread = threading.Thread(target=act, name="pa_core long action", daemon=True)
    thread.start()

    def is_done(seconds: float | None) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    wait_together(is_done)
    raise_on_all(errors[0] if errors else None)
