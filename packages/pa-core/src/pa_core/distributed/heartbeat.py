"""A thread that tells the other processes where this one is, and ends all of them if one waits forever."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pa_core import _torch
from pa_core._torch import store_of_processes
from pa_core.distributed.collectives import runs_on_gloo
from pa_core.distributed.last_words import end_all_processes
from pa_core.distributed.main_thread import Waiting, activity_of
from pa_core.distributed.sign_of_life import Sign, Signs
from pa_core.distributed.stuck_processes import find_vain_wait
from pa_core.errors import OtherProcessError
from pa_core.progress import Progress

__all__ = ["Heartbeat", "WatchedRun"]

SECONDS_BETWEEN_BEATS: Final = 1.0
_SECONDS_UNTIL_OTHERS_ARE_ASKED = 2.0
_SECONDS_UNTIL_SILENT = 5.0
_SECONDS_A_LOOK_COUNTS = 5.0
_SLOWEST_STEPS = 10.0
"""How many times as long as the slowest step so far a process may wait in any case."""
_SHARE_OF_TIMEOUT = 0.9
_SECONDS_FOR_STORE = timedelta(seconds=10)
_IDLE = 0.2
"""The share of a processor that a process uses at most while it does nothing but wait."""


@dataclass(eq=False)
class WatchedRun:
    """What a run tells of itself, by mere assignments.

    Attributes:
        number: Which run of the process it is, counted from 1.
        thread: The thread that runs it.
        progress: Its counters.
        limit: For how many seconds it may wait for others; infinite for ever.
        place: What it is in; empty once it is over.
    """

    number: int
    thread: int
    progress: Progress
    limit: float
    place: str


class Heartbeat:
    """Sends a heartbeat each second, and checks whether this process would wait for others forever.

    Steps pay nothing for it: that a process gets on shows in the number of collectives it has entered, which torch
    counts, and only where that stands still the stack of its thread is looked at.

    Args:
        thread: The thread that makes runs, as ``threading.get_ident`` returns it there.

    Attributes:
        run: The run that is in progress, or the last one.
        num_runs: How many have begun.
    """

    def __init__(self, thread: int) -> None:
        # Not the group itself: whoever keeps it keeps gloo's threads alive, which abort a process that ends.
        self._group = id(dist.group.WORLD)
        self.run: WatchedRun | None = None
        self.num_runs: int = 0
        self._timeout = _torch.seconds_until_timeout()
        self._thread_of_runs = thread
        self._rank = dist.get_rank()
        # A connection of its own: the main thread may be waiting in the other one. Torch does not annotate clone().
        shared: Any = store_of_processes()
        store = PrefixStore("pa_core/watch", shared.clone())
        store.set_timeout(_SECONDS_FOR_STORE)
        self._store = store
        self.signs: Signs = Signs(store, self._rank, dist.get_world_size())
        self._end = ""
        self._beat = 0
        self._waiting = _Waiting()
        self._steps = _SlowestStep()
        self._beats_of_others: dict[int, tuple[int, float]] = {}
        self._is_stopped = False
        self._wake = threading.Event()
        self._last = self._look()  # a version of torch that cannot count is refused here, and not in the thread
        self._thread = threading.Thread(target=self._beat_until_stopped, name="pa_core heartbeat", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether there is still a store in which it can give signs."""
        return self._thread.is_alive()

    @property
    def is_in_run(self) -> bool:
        """Whether a run is in progress."""
        return self.run is not None and bool(self.run.place)

    @property
    def is_of_present_group(self) -> bool:
        """Whether it still beats, and the processes are connected as they were when it began."""
        return self.is_alive and self._group == id(dist.group.WORLD)

    def stop(self, end: str) -> None:
        """Give a last sign, and let the thread end.

        A thread that is in the store while Python ends would abort the process.

        Args:
            end: How the process ends.
        """
        self._is_stopped = True
        self.tell(end)
        self._thread.join(_SECONDS_FOR_STORE.total_seconds())

    def tell(self, end: str) -> None:
        """Tell the other processes at once that this one is about to end, or that it does not any more.

        Args:
            end: How, empty if it does not.
        """
        self._end = end
        self._wake.set()

    def has_verdict(self) -> bool:
        """Whether a process has found that all of them must end."""
        try:
            return self._store.check(["verdict"])
        except Exception:  # as above
            return False

    def _beat_until_stopped(self) -> None:
        with suppress(Exception):  # as above, or the processes have parted: there is nobody left to tell
            while not self._is_stopped:
                self._last = self._look()
                self.signs.post(self._last)
                self._look_for_verdict(self._last)
                self._wake.wait(SECONDS_BETWEEN_BEATS)
                self._wake.clear()
            done = 0 if self.run is None else self.run.progress.updates
            self.signs.post(replace(self._last, beat=self._beat + 1, place="", updates=done, end=self._end))

    def _look(self) -> Sign:
        """Describe this process."""
        run, now = self.run, time.monotonic()
        self._beat += 1
        collectives = _torch.collectives_begun()
        thread = self._thread_of_runs if run is None else run.thread
        waited = self._waiting.note(_torch.collectives_begun_in_all_groups(), thread, now)
        if run is not None and run.place:
            self._steps.note(run, now)
        return Sign(
            beat=self._beat,
            run=self.num_runs,
            place="" if run is None else run.place,
            updates=0 if run is None else run.progress.updates,
            collectives=collectives,
            waiting=waited,
            exchange=self._waiting.exchange,
            doing=self._waiting.doing,
            end=self._end,
        )

    def _look_for_verdict(self, own: Sign) -> None:
        """End the process if any process would wait forever, such as this one."""
        run = self.run
        if run is not None and run.place and self._waiting.stands_for >= _SECONDS_UNTIL_OTHERS_ARE_ASKED:
            others, now = self.signs.of_others(), time.monotonic()
            if not runs_on_gloo() and any(sign.collectives < own.collectives for sign in others.values()):
                # A process waits for an accelerator, which waits for the others: no stack tells.
                own = replace(own, waiting=self._waiting.stands_for)
            limit = min(max(run.limit, _SLOWEST_STEPS * self._steps.slowest), _SHARE_OF_TIMEOUT * self._timeout)
            silent = [rank for rank, sign in others.items() if self._silence(rank, sign, now) >= _SECONDS_UNTIL_SILENT]
            found = find_vain_wait(self._rank, own, others, silent, limit)
            if found is not None:
                self._store.compare_set("verdict", "", json.dumps([self._rank, *found.args]))
        if self._store.check(["verdict"]):
            rank, *parts = json.loads(self._store.get("verdict"))
            thread = self._thread_of_runs if run is None else run.thread
            end_all_processes(self._store, OtherProcessError(*parts), found_by=rank, thread=thread)

    def _silence(self, rank: int, sign: Sign, now: float) -> float:
        """For how many seconds another process has given no new sign, if it has ever given one."""
        if sign == Sign():
            return 0.0
        beat, since = self._beats_of_others.get(rank, (-1, now))
        if beat != sign.beat:
            since = now
        self._beats_of_others[rank] = sign.beat, since
        return now - since


class _Waiting:
    """How long a thread has been waiting in the same collective.

    Attributes:
        stands_for: For how many seconds no collective was begun.
        exchange: What it waits in.
        doing: What the thread is in, if it has not begun one for a while.
    """

    def __init__(self) -> None:
        self.stands_for: float = 0.0
        self.exchange: str = ""
        self.doing: str = ""
        self._collectives = -1
        self._begun = self._since = self._last_look = -math.inf
        self._used = 0.0

    def note(self, collectives: int, thread: int, now: float) -> float:
        """Look at the thread, and return for how many seconds it has been waiting.

        Args:
            collectives: How many it has begun.
            thread: The thread.
            now: The time.
        """
        used, passed = time.process_time(), now - self._last_look
        is_idle = used - self._used < _IDLE * passed
        self._used, self._last_look = used, now
        if collectives != self._collectives:
            self._collectives, self._begun, self._since = collectives, now, math.inf
            self.exchange = self.doing = ""
        self.stands_for = now - self._begun
        if self.stands_for <= 0:
            return 0.0
        activity = activity_of(thread)
        self.exchange, self.doing = activity.exchange, str(activity)
        is_waiting = activity.waiting is Waiting.YES or (activity.waiting is Waiting.PERHAPS and is_idle)
        if not is_waiting:
            self._since = math.inf
        elif self._since == math.inf or passed > _SECONDS_A_LOOK_COUNTS:  # a machine that was asleep has not waited
            self._since = now
        return max(0.0, now - self._since)


class _SlowestStep:
    """The longest time between two updates of the run in progress.

    Attributes:
        slowest: That time in seconds, as far as it was looked at.
    """

    def __init__(self) -> None:
        self.slowest: float = 0.0
        self._run: WatchedRun | None = None
        self._at: tuple[str, int] = "", 0
        self._since = 0.0

    def note(self, run: WatchedRun, now: float) -> None:
        """Look at the counters of a run.

        Args:
            run: The run.
            now: The time.
        """
        at = str(run.place), run.progress.updates
        if run is not self._run:
            self._run, self.slowest = run, 0.0
        elif at == self._at:
            return
        elif at[0] == self._at[0]:
            self.slowest = max(self.slowest, now - self._since)
        self._at, self._since = at, now
