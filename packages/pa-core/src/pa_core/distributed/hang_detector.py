"""A thread in each process that tells the others where it is, and ends all of them if one waits for too long."""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pa_core import _torch
from pa_core.distributed.collectives import num_processes
from pa_core.distributed.fail_fast import tell_launcher
from pa_core.distributed.signs import Place, Sign, Signs, advice_for_parted, describe_signs
from pa_core.distributed.stacks import BACKWARD, activity_of, stack_of
from pa_core.errors import ConfigurationError, OtherProcessError, is_explained

__all__ = ["DEFAULT_MAX_WAIT_SECONDS", "HangDetector", "Place", "find_vain_wait"]

DEFAULT_MAX_WAIT_SECONDS: Final = 600.0
"""As long as NCCL waits by itself. A rank that saves or evaluates for the others is mostly done by then."""

SECONDS_BETWEEN_BEATS: Final = 1.0
_SECONDS_UNTIL_OTHERS_ARE_ASKED = 2.0
_SECONDS_UNTIL_SILENT = 5.0
_SECONDS_UNTIL_GONE = 3.0
"""After so many seconds without a heartbeat, a process whose connections were closed is gone."""
_SECONDS_UNTIL_CERTAIN = 10.0
"""How long a process waits for one that has left the run before nothing but a mistake can be the reason."""
_SECONDS_A_LOOK_COUNTS = 5.0
_SECONDS_TO_PRINT = 3.0
_SECONDS_TO_END = 20.0
_SHARE_OF_TIMEOUT = 0.9
_STORE_TIMEOUT = timedelta(seconds=10)
_IDLE = 0.2
"""The share of a processor that a process uses at most while it does nothing but wait."""

_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Timed out waiting \d+ms|"
    r"pair closure|NCCL communicator was aborted|remote process exited|Watchdog caught collective operation timeout"
)


class HangDetector:
    """Ends all processes with a report of who is where if one waits for another one for too long.

    One process alone does nothing for it, nor does one that waits for ever.

    Args:
        max_wait_seconds: For how long a process waits for another one that is in the run; None for ever.

    Attributes:
        limit: The same, infinite for ever.
        number: Which run of the process the last one of this detector is, counted from 1.
        place: What the run is in; empty outside of it.
        thread: The thread that runs it.
        updates: Returns how many updates of the run are complete.

    Raises:
        ConfigurationError: It is neither None nor a positive number.

    Example:
        >>> detector, steps = HangDetector(60.0), [1, 2, 3]
        >>> with detector.run(lambda: len(steps)), detector.at(Place.EVALUATION):
        ...     print(detector.place)
        in an evaluation
    """

    def __init__(self, max_wait_seconds: float | None) -> None:
        self.limit: float = math.inf if max_wait_seconds is None else _checked(max_wait_seconds)
        self.number: int = 0
        self.place: str = ""
        self.thread: int = threading.get_ident()
        self.updates: Callable[[], int] = int
        self._heartbeat = _heartbeat_of_process(self)

    @contextmanager
    def at(self, place: Place) -> Generator[None]:
        """Within the context, the run is in another place.

        Args:
            place: That place.
        """
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    @contextmanager
    def run(self, updates: Callable[[], int]) -> Generator[None]:
        """Watch over a run; one within another takes its place meanwhile.

        Args:
            updates: Returns how many updates of the run are complete; it is called from another thread.
        """
        self._heartbeat = heartbeat = _heartbeat_of_process(self)
        outer = self if heartbeat is None else heartbeat.run
        self.number = outer.number if outer.place else outer.number + 1
        self.thread, self.updates, self.place = threading.get_ident(), updates, Place.START
        if heartbeat is not None:
            heartbeat.run = self
        try:
            with self.explaining():
                yield
        finally:
            self.place = ""
            self.updates = partial(int, updates())  # keeps nothing of the run
            if heartbeat is not None and outer.place:
                heartbeat.run = outer

    @contextmanager
    def explaining(self) -> Generator[None]:
        """Explain an exception that says no more than that another process is gone.

        Raises:
            OtherProcessError: Another process is gone, or did not come in time.
        """
        try:
            yield
        except Exception as error:
            lost = None if is_explained(error) else _LOST.search(str(error))
            if lost is None or self._heartbeat is None:
                raise
            raise self._heartbeat.explain_lost(lost[0]) from error


class _Heartbeat:
    """Sends a heartbeat each second, and checks whether this process would wait for others forever.

    Steps pay nothing for it: that a process gets on shows in the number of collectives it has entered, which torch
    counts.

    Args:
        run: The run that is in progress or about to begin.
    """

    def __init__(self, run: HangDetector) -> None:
        # Not the group itself: whoever keeps it keeps gloo's threads alive, which abort a process that ends.
        self.group: int = id(dist.group.WORLD)
        self.run: HangDetector = run
        self._rank = dist.get_rank()
        self._is_on_gloo = dist.get_backend() == "gloo"
        self._timeout = _SHARE_OF_TIMEOUT * _torch.seconds_until_timeout()
        # A connection of its own: the main thread may be waiting in the other one. Torch does not annotate clone().
        shared: Any = _torch.store_of_processes()
        self._store = PrefixStore("pa_core/watch", shared.clone())
        self._store.set_timeout(_STORE_TIMEOUT)
        self._signs = Signs(self._store, self._rank, dist.get_world_size())
        self._beat = 0
        self._collectives: int = -1
        self._moved_at = self._waits_since = self._looked_at = time.monotonic()
        self._used = 0.0
        self._is_ahead = False
        self._has_ended = threading.Event()
        self._signs.post(self._look())  # a version of torch that cannot count is refused here, and not in the thread
        self._thread = threading.Thread(target=self._beat_until_the_end, name="pa_core heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say that the script has ended, and let the thread end: in the store, it would abort a Python that ends."""
        self._has_ended.set()
        self._thread.join(_STORE_TIMEOUT.total_seconds())

    def explain_lost(self, message: str) -> OtherProcessError:
        """Return the error of a process that has lost the connection to another one.

        Args:
            message: What torch says.
        """
        where, do = "whoever connects the processes has ended", "See what the others printed last."
        with suppress(Exception):  # whoever keeps the store has ended
            run, signs = self.run.number, self._signs.of_others()
            for _ in range(math.ceil(_SECONDS_UNTIL_GONE) + 1):
                time.sleep(SECONDS_BETWEEN_BEATS)
                signs = self._signs.of_others()
            where = describe_signs(signs, run, self._silent(signs, _SECONDS_UNTIL_GONE))
            if any(sign.run < run for sign in signs.values()):
                do = "Begin as many runs on each process as on the others."
            elif any(sign.has_left(run) for sign in signs.values()):
                do = advice_for_parted(Place.RUN_END)
            if self._store.check(["verdict"]):  # in which all have their say
                time.sleep(_SECONDS_TO_END)
        return OtherProcessError(
            "Another process is gone, or did not come, while this one waited for it.",
            given=f"{where}; here, torch says: {message}",
            do=do,
        )

    def _silent(self, signs: Mapping[int, Sign], seconds: float) -> list[int]:
        return [rank for rank in signs if self._signs.silent_for(rank) >= seconds]

    def _beat_until_the_end(self) -> None:
        with suppress(Exception):  # whoever keeps the store has ended, or the processes have parted
            while not self._has_ended.wait(SECONDS_BETWEEN_BEATS):
                sign = self._look()
                self._signs.post(sign)
                self._end_if_hung(sign)
            self._signs.post(Sign(self._beat + 1, self.run.number, updates=self.run.updates(), has_ended=True))

    def _look(self) -> Sign:
        """Describe this process."""
        run, now, used = self.run, time.monotonic(), time.process_time()
        passed = now - self._looked_at
        is_idle = used - self._used < _IDLE * passed
        begun = _torch.collectives_begun_in_all_groups()
        # A machine that was asleep has not waited.
        has_moved = begun != self._collectives or passed > _SECONDS_A_LOOK_COUNTS
        activity = activity_of(run.thread)
        if has_moved:
            self._moved_at, self._is_ahead = now, False
        is_in_exchange = is_idle if activity.exchange == BACKWARD else bool(activity.exchange)
        if has_moved or not (is_in_exchange or self._is_ahead):
            self._waits_since = now
        self._collectives, self._looked_at, self._used = begun, now, used
        self._beat += 1
        return Sign(
            beat=self._beat,
            run=run.number,
            place=run.place,
            updates=run.updates(),
            collectives=_torch.collectives_begun(),
            waiting=now - self._waits_since,
            doing="" if has_moved else activity.describe(),
        )

    def _end_if_hung(self, own: Sign) -> None:
        """End the process if any process would wait forever, such as this one."""
        if own.place and self._looked_at - self._moved_at >= _SECONDS_UNTIL_OTHERS_ARE_ASKED:
            signs = self._signs.of_others()
            silent = self._silent(signs, _SECONDS_UNTIL_SILENT)
            # A process that waits for an accelerator, which waits for the others, shows it by no stack.
            self._is_ahead = not self._is_on_gloo and any(one.collectives < own.collectives for one in signs.values())
            limit = min(self.run.limit, self._timeout)
            found = find_vain_wait(self._rank, {**signs, self._rank: own}, silent, limit)
            if found is not None:
                self._store.compare_set("verdict", "", json.dumps([self._rank, *found.args]))
        if self._store.check(["verdict"]):
            rank, *parts = json.loads(self._store.get("verdict"))
            self._end_with_others(OtherProcessError(*parts), found_by=rank)

    def _end_with_others(self, reason: OtherProcessError, *, found_by: int) -> NoReturn:
        """Print the stack of the run's thread and, last and on one process only, the reason; end with status 1."""
        # Whatever holds up the rest, such as a pipe that nobody reads: the process ends.
        guard = threading.Timer(_SECONDS_TO_END, os._exit, [1])
        guard.daemon = True
        guard.start()
        try:
            raise reason
        except OtherProcessError:
            tell_launcher(reason)
        self._write(f"This process ends. Its stack, the innermost call last:\n{stack_of(self.run.thread)}")
        time.sleep(_SECONDS_TO_PRINT)
        if self._rank == found_by:
            self._write(f"{type(reason).__module__}.{type(reason).__qualname__}: {reason}\n")
        else:
            time.sleep(_SECONDS_TO_PRINT)  # a launcher ends all processes once the first one has ended
        with suppress(Exception):
            for worker in multiprocessing.active_children():
                worker.kill()  # one that is stuck would live on, and a launcher wait for what it might print
        os._exit(1)

    def _write(self, text: str) -> None:
        """Print in one piece, with the rank before each line as torch has it."""
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.write("".join(f"[rank{self._rank}]: {line}" for line in text.splitlines(keepends=True)))
            sys.stderr.flush()


_heartbeats: Final[list[_Heartbeat]] = []
"""The one of this process, once it is one of several."""


def _heartbeat_of_process(run: HangDetector) -> _Heartbeat | None:
    """Return the heartbeat of this process, which begins here if it is one of several."""
    if math.isinf(run.limit) or num_processes() == 1:
        return None
    if _heartbeats and _heartbeats[-1].group != id(dist.group.WORLD):
        _end_heartbeat()
    if not _heartbeats:
        _heartbeats.append(_Heartbeat(run))
        atexit.register(_end_heartbeat)
    return _heartbeats[-1]


def _end_heartbeat() -> None:
    while _heartbeats:
        _heartbeats.pop().stop()
    atexit.unregister(_end_heartbeat)


def find_vain_wait(
    rank: int, signs: Mapping[int, Sign], silent: Collection[int], limit: float
) -> OtherProcessError | None:
    """Return why a process would wait forever, None as long as it may continue.

    A process in no run yet may take as long as it likes. One that has left the run that others are in never comes.

    Args:
        rank: The rank of the process that waits.
        signs: The signs of all processes.
        silent: Those that have sent no heartbeat for some seconds.
        limit: For how many seconds it may wait for what may still come.
    """
    run, waits_for = signs[rank].run, signs[rank].waiting
    do = "See in the stacks above what the others are doing; if they may take that long, raise max_wait_seconds."
    if any(sign.has_left(run) for sign in signs.values()):
        limit = min(limit, _SECONDS_UNTIL_CERTAIN)
        do = advice_for_parted(Place.RUN_END)
    elif any(sign.run < run and not sign.place and other not in silent for other, sign in signs.items()):
        return None
    elif all(sign.waiting > 0 for sign in signs.values()):
        do = advice_for_parted(describe_signs(signs, run))
    if waits_for < limit:
        return None
    return OtherProcessError(
        f"A process has waited for another one for {waits_for:.0f} seconds.",
        given=describe_signs(signs, run, silent),
        do=do,
    )


def _checked(seconds: object) -> float:
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf:
        return float(seconds)
    raise ConfigurationError(f"max_wait_seconds must be a positive number, or None to wait for ever, got {seconds!r}.")
