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
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn, Self

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pa_distributed import _torch
from pa_distributed._errors import OtherProcessError
from pa_distributed._failures import tell_launcher
from pa_distributed._processes import num_processes, runs_on_gloo
from pa_distributed._signs import Doing, Sign, Signs, describe_signs, doing_of
from pa_distributed._thread_clock import ThreadClock

SECONDS_BETWEEN_BEATS: Final = 1.0
_SECONDS_UNTIL_OTHERS_ARE_ASKED = 2.0
_BEATS_UNTIL_GONE = 4
"""Enough for a process that is gone to be silent."""
_SECONDS_UNTIL_CERTAIN = 10.0
"""How long a process waits for one that has left the run before nothing but a mistake can be the reason."""
_SECONDS_A_LOOK_COUNTS = 5.0
_SECONDS_TO_PRINT = 3.0
_SECONDS_TO_END = 20.0
_SHARE_OF_TIMEOUT = 0.9
_STORE_TIMEOUT = timedelta(seconds=10)

_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Timed out waiting \d+ms|"
    r"pair closure|NCCL communicator was aborted|remote process exited|Watchdog caught collective operation timeout"
)


def _advise(_where: str, has_left: bool) -> str:
    if has_left:
        return "Where one process alone decides to stop, have all decide it together, such as by gather_objects."
    return "Take what only some of the processes come to out of the condition that it depends on."


def _outside(updates: int) -> tuple[str, int]:
    return "", updates


class HangDetector:
    """Ends all processes with a report of who is where if one waits for another one for too long.

    A process gets on as long as it makes steps or begins exchanges, and work that takes long may do neither. Wherever
    it waits in, its thread does not run meanwhile. A thread of each process sends a heartbeat each second, through the
    store by which they have found each other, and steps pay nothing for it. One process alone does nothing, nor does
    one that waits for ever.

    Args:
        max_wait_seconds: For how long a process waits for another one that is in the run; None for ever. Ten minutes
            are as long as NCCL waits by itself: a rank that saves or evaluates for the others is mostly done by then.
        advise: Returns what to do about processes that would wait for ever, when called with where they are, in words,
            and with whether some have left.

    Attributes:
        limit: The longest wait in seconds, infinite for ever.
        number: Which run of the process the last one of this detector is, counted from 1.
        thread: The thread that runs it.
        where: Returns what the run is in, empty outside of it, and how many updates of it are complete.
        clock: Looks at that thread.
        steps: How many steps of the run are complete, -1 before ``step`` is called.

    Raises:
        ValueError: The wait is neither None nor a positive number.

    Example:
        >>> with HangDetector(60.0).run() as detector:
        ...     for batch in range(3):
        ...         detector.step()
        ...     print(detector.where())
        ('in its loop', 3)
        >>> detector.where()
        ('', 3)
    """

    def __init__(self, max_wait_seconds: float | None = 600.0, *, advise: Callable[[str, bool], str] = _advise) -> None:
        self.limit: float = math.inf if max_wait_seconds is None else _checked(max_wait_seconds)
        self.advise: Callable[[str, bool], str] = advise
        self.number: int = 0
        self.thread: int = threading.get_ident()
        self.where: Callable[[], tuple[str, int]] = partial(_outside, 0)
        self.clock: ThreadClock = ThreadClock()
        self.steps: int = -1
        self._heartbeat = _heartbeat_of_process(self)

    @property
    def is_running(self) -> bool:
        """Whether a run is watched now."""
        return bool(self.where()[0])

    def step(self, steps: int | None = None) -> None:
        """Say that this process gets on, such as after each update; it costs no more than to write a number.

        Args:
            steps: How many steps are complete; None for one more than before.
        """
        self.steps = max(self.steps, 0) + 1 if steps is None else steps

    def _in_loop(self) -> tuple[str, int]:
        return "in its loop", self.steps

    @contextmanager
    def run(self, where: Callable[[], tuple[str, int]] | None = None) -> Generator[Self]:
        """Watch over a run; one within another takes its place meanwhile.

        Args:
            where: Returns what the run is in, such as "in an evaluation", and how many updates of it are complete, or
                -1; it is called from another thread. None for a loop that calls ``step``.
        """
        self._heartbeat = heartbeat = _heartbeat_of_process(self)
        outer = self if heartbeat is None else heartbeat.run
        self.number = outer.number if outer.is_running else outer.number + 1
        self.thread, self.clock, self.steps = threading.get_ident(), ThreadClock(), -1
        self.where = where = where or self._in_loop
        if heartbeat is not None:
            heartbeat.run = self
        try:
            with self.explaining():
                yield self
        finally:
            self.where = partial(_outside, where()[1])  # keeps nothing of the run
            if heartbeat is not None and outer.is_running:
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
            lost = None if isinstance(error, OtherProcessError) else _LOST.search(str(error))
            if lost is None or self._heartbeat is None:
                raise
            raise self._heartbeat.explain_lost(lost[0]) from error


class _Heartbeat:
    """Sends a heartbeat each second, and checks whether this process would wait for others forever.

    Steps pay nothing for it: that a process gets on shows in the number of exchanges that it has begun, which torch
    counts, and of its updates.

    Args:
        run: The run that is watched, or about to be.
    """

    def __init__(self, run: HangDetector) -> None:
        # Not the group itself: whoever keeps it keeps gloo's threads alive, which abort a process that ends.
        self.group: int = id(dist.group.WORLD)
        self.run: HangDetector = run
        self._rank = dist.get_rank()
        self._is_on_gloo = runs_on_gloo()
        self._timeout = _SHARE_OF_TIMEOUT * _torch.seconds_until_timeout()
        # A connection of its own: the main thread may be waiting in the other one. Torch does not annotate clone().
        shared: Any = _torch.store_of_processes()
        self._store = PrefixStore("pa_distributed/watch", shared.clone())
        self._store.set_timeout(_STORE_TIMEOUT)
        self._signs = Signs(self._store, self._rank, dist.get_world_size())
        self._sign = Sign()
        self._progress = (-1, -1, -1)
        self._moved_at = self._explained_at = self._looked_at = time.monotonic()
        self._has_ended = threading.Event()
        self._look()  # a version of torch that cannot count is refused here, and not in the thread
        self._thread = threading.Thread(target=self._beat_until_the_end, name="pa_distributed heartbeat", daemon=True)
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
            for _ in range(_BEATS_UNTIL_GONE):
                time.sleep(SECONDS_BETWEEN_BEATS)
                signs = self._signs.of_others()
            where = describe_signs(signs, run)
            if any(sign.run < run for sign in signs.values()):
                do = "Begin as many runs on each process as on the others."
            elif any(sign.has_left(run) for sign in signs.values()):
                do = self.run.advise(where, True)
            if self._store.check(["verdict"]):  # in which all have their say
                time.sleep(_SECONDS_TO_END)
        return OtherProcessError(
            f"Another process is gone, or did not come, while this one waited for it: {where}; here, torch says: "
            f"{message}. {do}"
        )

    def _beat_until_the_end(self) -> None:
        with suppress(Exception):  # whoever keeps the store has ended, or the processes have parted
            while not self._has_ended.wait(SECONDS_BETWEEN_BEATS):
                self._look()
                self._end_if_hung()
            updates = self.run.where()[1]
            self._signs.post(self._sign._replace(beat=self._sign.beat + 1, updates=updates, has_ended=True))

    def _look(self) -> None:
        """Tell the others where this process is."""
        run, now = self.run, time.monotonic()
        place, updates = run.where()
        progress = (_torch.collectives_begun_in_all_groups(), updates, run.steps)
        # A machine that was asleep has not waited.
        has_moved = progress != self._progress or now - self._looked_at > _SECONDS_A_LOOK_COUNTS
        if has_moved:
            self._moved_at = now
        self._progress, self._looked_at = progress, now
        run.clock.look()
        doing = Doing() if has_moved else doing_of(run.thread)
        if has_moved or doing.explains:
            self._explained_at = now
        self._sign = Sign(
            beat=self._sign.beat + 1,
            run=run.number,
            place=place,
            updates=updates,
            begun=_torch.collectives_begun(),
            runs_ahead=not self._is_on_gloo,
            still=now - self._moved_at,
            waits=doing.waits,
            blocked=0.0 if doing.is_in_standard_library else now - max(self._explained_at, run.clock.blocked_since),
            idle=now - max(self._explained_at, run.clock.idle_since),
            doing=doing.text,
        )
        self._signs.post(self._sign)

    def _end_if_hung(self) -> None:
        """End the process if any process would wait forever, such as this one."""
        own = self._sign
        if own.place and own.still >= _SECONDS_UNTIL_OTHERS_ARE_ASKED:
            signs = {**self._signs.of_others(), self._rank: own}
            found = find_hang(self._rank, signs, min(self.run.limit, self._timeout), self.run.advise)
            if found is not None:
                self._store.compare_set("verdict", "", json.dumps([self._rank, str(found)]))
        if self._store.check(["verdict"]):
            rank, reason = json.loads(self._store.get("verdict"))
            self._end_with_others(OtherProcessError(reason), found_by=rank)

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
        frame = sys._current_frames().get(self.run.thread)  # pyright: ignore[reportPrivateUsage]  # documented in spite of its name
        stack = "".join(traceback.format_stack(frame))
        self._write(f"This process ends. Its stack, the innermost call last:\n{stack}")
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


def find_hang(
    rank: int, signs: Mapping[int, Sign], limit: float, advise: Callable[[str, bool], str]
) -> OtherProcessError | None:
    """Return why a process would wait forever, None as long as it may continue.

    It waits if its thread is in an exchange. Wherever else it waits, its thread does not run. Where it waits for an
    accelerator or another thread, or asks again and again, it has begun more exchanges than another one. A process in
    no run yet may take as long as it likes. One that has left the run that others are in never comes.

    Args:
        rank: The rank of the process that waits.
        signs: The signs of all processes.
        limit: For how many seconds it may wait for what may still come.
        advise: As of a ``HangDetector``.
    """
    own, longest = signs[rank], limit
    do = "See in the stacks above what the others are doing; if they may take that long, raise max_wait_seconds."
    if any(sign.has_left(own.run) for sign in signs.values()):
        limit = min(limit, _SECONDS_UNTIL_CERTAIN)
        do = advise(describe_signs(signs, own.run), True)
    elif any(sign.run < own.run and not sign.place and not sign.is_silent for sign in signs.values()):
        return None
    elif all(sign.waits for sign in signs.values()):
        do = advise(describe_signs(signs, own.run), False)
    is_ahead = any(sign.begun < own.begun for sign in signs.values())
    waits = own.still >= limit and (own.waits or (own.runs_ahead and is_ahead))
    stands = own.blocked >= longest or (is_ahead and own.idle >= longest)
    if not waits and (not stands or any(sign.waits for sign in signs.values())):
        return None
    return OtherProcessError(
        f"A process has waited for another one for {own.still:.0f} seconds: {describe_signs(signs, own.run)}. {do}"
    )


def _checked(seconds: object) -> float:
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf:
        return float(seconds)
    raise ValueError(f"max_wait_seconds must be a positive number, or None to wait for ever, got {seconds!r}.")
