"""Watches over the runs of several processes: none waits forever for another one, and none ends without a message."""

from __future__ import annotations

import atexit
import math
import re
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from pa_core.distributed.collectives import num_processes
from pa_core.distributed.heartbeat import Heartbeat, WatchedRun
from pa_core.distributed.sign_of_life import Place, Sign
from pa_core.distributed.stuck_processes import describe_signs
from pa_core.errors import ConfigurationError, OtherProcessError, is_explained
from pa_core.progress import Progress

__all__ = ["DEFAULT_MAX_WAIT_SECONDS", "Place", "RunWatch"]

DEFAULT_MAX_WAIT_SECONDS: Final = 600.0
"""As long as NCCL waits by itself. A rank that saves or evaluates for the others is mostly done by then."""

_SECONDS_UNTIL_GONE = 3.0
"""After so many seconds without a heartbeat, a process whose connections were closed is gone."""

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_END = 30.0

_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Timed out waiting \d+ms|"
    r"pair closure|NCCL communicator was aborted|remote process exited|Watchdog caught collective operation timeout"
)


class RunWatch:
    """Keeps what the runs of a trainer tell the other processes of where they are; one process tells nobody.

    Args:
        max_wait_seconds: For how long a process waits for another one that is in the run; None for ever.

    Raises:
        ConfigurationError: It is neither None nor a positive number.

    Example:
        >>> from pa_core.progress import Progress
        >>> watch = RunWatch(60.0)
        >>> with watch.run(Progress()), watch.at(Place.EVALUATION):
        ...     print(watch.place)
        in an evaluation
    """

    def __init__(self, max_wait_seconds: float | None) -> None:
        _check_max_wait_seconds(max_wait_seconds)
        self._limit = math.inf if max_wait_seconds is None else float(max_wait_seconds)
        self._run = WatchedRun(0, 0, Progress(), math.inf, "")
        self._heartbeat = _heartbeat_of_process() if math.isfinite(self._limit) else None

    @property
    def place(self) -> str:
        """What the run is in."""
        return self._run.place

    @place.setter
    def place(self, place: Place) -> None:
        self._run.place = place

    @contextmanager
    def at(self, place: Place) -> Generator[None]:
        """Within the context, the run is in another place.

        Args:
            place: That place.
        """
        before, self._run.place = self._run.place, place
        try:
            yield
        finally:
            self._run.place = before

    @contextmanager
    def run(self, progress: Progress) -> Generator[None]:
        """Watch over a run; one within another takes its place meanwhile.

        Args:
            progress: The counters of the run.
        """
        self._heartbeat = _heartbeat_of_process() if math.isfinite(self._limit) else None
        heartbeat = self._heartbeat
        outer = None if heartbeat is None or not heartbeat.is_in_run else heartbeat.run
        if heartbeat is not None and outer is None:
            heartbeat.num_runs += 1
        number = 0 if heartbeat is None else heartbeat.num_runs
        self._run = WatchedRun(number, threading.get_ident(), progress, self._limit, Place.START)
        if heartbeat is not None:
            heartbeat.run = self._run
            heartbeat.tell("")
        try:
            with self.explaining():
                yield
        finally:
            self._run.place = ""
            if heartbeat is not None and outer is not None:
                heartbeat.run = outer

    @contextmanager
    def explaining(self) -> Generator[None]:
        """Tell the others of an exception, and explain one that says no more than that another process is gone.

        Raises:
            OtherProcessError: Another process is gone, or did not come in time.
        """
        try:
            yield
        except BaseException as error:
            heartbeat = self._heartbeat
            lost = None if is_explained(error) else _LOST.search(str(error))
            if heartbeat is None:
                raise
            if lost is None:
                heartbeat.tell(f"raised {type(error).__name__}")
                raise
            raise _explain_lost(lost[0], heartbeat) from error


_heartbeats: Final[list[Heartbeat]] = []
"""The watch of this process, once it is one of several."""


def _heartbeat_of_process() -> Heartbeat | None:
    """Return the heartbeat of this process, which begins here if it is one of several."""
    if num_processes() == 1:
        return None
    if _heartbeats and not _heartbeats[-1].is_of_present_group:
        _end_heartbeat()
    if not _heartbeats:
        _heartbeats.append(Heartbeat(threading.get_ident()))
        atexit.register(_end_heartbeat)
    return _heartbeats[-1]


def _end_heartbeat() -> None:
    while _heartbeats:
        _heartbeats.pop().stop("ended its script")
    atexit.unregister(_end_heartbeat)


def _explain_lost(message: str, heartbeat: Heartbeat) -> OtherProcessError:
    run = heartbeat.num_runs
    try:
        gone = _wait_for_signs_of_gone(heartbeat)
    except Exception:  # whoever keeps the store has ended
        gone = {0: Sign(end="ended, and with it what connects the processes", run=run)}
    if heartbeat.has_verdict():  # in which all have their say
        time.sleep(_SECONDS_TO_END)
    heartbeat.tell("lost the connection to another process")
    return OtherProcessError(
        "Another process is gone, or did not come, while this one waited for it.",
        given=f"{describe_signs(gone, run) or 'all others are alive'}; here, torch says: {message}",
        do=_advice(gone, run),
    )


def _wait_for_signs_of_gone(heartbeat: Heartbeat) -> dict[int, Sign]:
    """Return the last signs of those processes that are about to end, or give no sign any more."""
    first = now = heartbeat.signs.of_others()
    give_up = time.monotonic() + _SECONDS_UNTIL_GONE
    while time.monotonic() < give_up and heartbeat.is_alive and not any(sign.end for sign in now.values()):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        now = heartbeat.signs.of_others()
    return {rank: sign for rank, sign in now.items() if sign.end or sign.beat == first[rank].beat}


def _advice(gone: Mapping[int, Sign], run: int) -> str:
    if any(sign.run < run for sign in gone.values()):
        return "Begin as many runs on each process as on the others."
    if any(sign.has_left(run) for sign in gone.values()):
        return "Where one process alone decides to stop, call run.request_stop() on it instead of leaving the loop."
    return f"See what {'the others' if len(gone) != 1 else f'rank {next(iter(gone))}'} printed last."


def _check_max_wait_seconds(value: object) -> None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf):
        return
    raise ConfigurationError(f"max_wait_seconds must be a positive number, or None to wait for ever, got {value!r}.")
