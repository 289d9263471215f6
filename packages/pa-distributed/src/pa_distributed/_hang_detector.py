"""A thread in each process that reports the position of the process, and ends all processes if one of them hangs."""

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
"""Enough beats for a process that is gone to count as silent."""
_SECONDS_UNTIL_CERTAIN = 10.0
"""How long a process waits for a process that has left the run, before only a mistake can be the reason."""
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
    """Return the advice for a hang in which processes wait for each other, or for a process that has left."""
    if has_left:
        return "If one process alone decides to stop, let all of them decide together, for example with gather_objects."
    return "Take what only some of the processes come to out of the condition that it depends on."


def _outside(updates: int) -> tuple[str, int]:
    """Return the position of a process that is in no run."""
    return "", updates


class HangDetector:
    """Ends all processes with a report if a process waits for another process for too long.

    Without it, if a single rank skips a collective or fails in it, the run hangs until the backend times out, and no
    message says where each rank was. With it, each rank prints its stack, the last line names the position of each
    rank, and all ranks exit with status 1, so that a launcher can restart the run. For an exception on a single rank,
    use ``fail_fast`` as well.

    Create it after ``torch.distributed.init_process_group``, on every process, and put the loop into ``with
    detector.run():``. The detector does nothing in a process that has no process group, or with
    ``max_wait_seconds=None``.

    In each process a thread sends a heartbeat once a second, through the store of ``torch.distributed``, which does not
    slow the loop. A process makes progress as long as it completes steps or begins collectives. A rank that works for a
    long time, for example in an evaluation, is not mistaken for a rank that hangs: a process counts as waiting only if
    its main thread is in a collective, or is blocked without using the CPU.

    Args:
        max_wait_seconds: How long a process may wait for another process, in seconds, or None for no limit. The
            default, ten minutes, is the timeout of NCCL, and is usually enough for rank 0 to save a checkpoint or
            evaluate while the others wait. The report comes within nine tenths of the process group's timeout, so if
            you want to wait longer, increase that timeout, too.
        advise: A function that returns advice for the end of the report. It is called with the description of the
            positions of all processes (a text), and with whether a process has left the run. The default gives general
            advice. Pass a function to name the options of your loop.

    Attributes:
        limit: The longest wait in seconds, infinite for no limit.
        number: The number of the current or last run in this process, counted from 1; 0 before the first run.
        thread: The identifier of the thread that runs the loop.
        where: A function that returns the current position of the run, as a text that is empty outside of a run, and
            the number of complete updates.
        clock: The stopwatch with which the heartbeat thread measures how long the loop has been waiting; it is not
            meant for callers.
        steps: The number of complete steps of the run, or -1 before the first ``step`` call.

    Raises:
        ValueError: The wait is neither None nor a positive number.

    Example:
        >>> from pa_distributed import HangDetector
        >>> with HangDetector(max_wait_seconds=60.0).run() as detector:
        ...     for batch in range(3):
        ...         detector.step()  # after each update of the model
        ...     print(detector.where())
        ('in its loop', 3)
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
        """Whether the detector watches a loop at the moment.

        A bool: True within a ``with detector.run():`` block, even on a single process, and False before and after it.
        Read it in code that may be called within the loop or outside, for example to decide whether a position is worth
        logging.
        """
        return bool(self.where()[0])

    def step(self, steps: int | None = None) -> None:
        """Record that this process has made progress.

        You call it in the loop, for example after each update of the model. A call only stores a number, so it may be
        in the innermost loop. A loop with collectives in each step, for example of ``DistributedDataParallel``, is
        watched without it, but the report then lacks the number of steps.

        Args:
            steps: The number of complete steps. The default, None, adds one step. Pass a number if the loop resumes
                after some steps.

        Example:
            >>> from pa_distributed import HangDetector
            >>> with HangDetector().run() as detector:
            ...     detector.step(1000)  # resumed after 1000 updates
            ...     detector.step()
            ...     detector.steps
            1001
        """
        self.steps = max(self.steps, 0) + 1 if steps is None else steps

    def _in_loop(self) -> tuple[str, int]:
        """Return the position of a loop that calls ``step``."""
        return "in its loop", self.steps

    @contextmanager
    def run(self, where: Callable[[], tuple[str, int]] | None = None) -> Generator[Self]:
        """Watch the loop in the ``with`` block.

        You use it in a ``with`` statement on every process. Each process enters the block before its loop, and leaves
        the block after the loop. A process that leaves the block early is reported as the cause if the others wait for
        it. Blocks may be nested, for example for an evaluation with its own position; the outer run continues when the
        inner run ends. A hang does not raise an error in the block: it ends all processes with status 1.

        Args:
            where: A function that returns the current position for the report: a text such as ``"in an evaluation"``,
                and the number of complete updates, or -1 if unknown. It is called from a different thread about once a
                second, so it should only read variables. The default, None, reports the number of ``step`` calls.

        Yields:
            This detector.

        Raises:
            OtherProcessError: A collective in the block has lost the connection to another process. Other errors of the
                block are raised unchanged.

        Example:
            >>> from pa_distributed import HangDetector
            >>> updates = 0
            >>> with HangDetector().run(lambda: ("in its training loop", updates)) as detector:
            ...     for batch in range(5):
            ...         updates += 1
            ...     print(detector.is_running, detector.where())
            True ('in its training loop', 5)
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
        """Turn torch errors about a lost connection into an ``OtherProcessError`` that names the lost process.

        ``run`` does this already. You use it in a ``with`` statement around collectives outside of ``run``, for example
        before the first step of a loop. It only changes errors, and does not detect hangs.

        Raises:
            OtherProcessError: Another process is gone, or did not arrive in time. Other errors of the block are raised
                unchanged.

        Example:
            >>> from pa_distributed import HangDetector, gather_objects
            >>> with HangDetector().explaining():
            ...     metrics = gather_objects({"loss": 0.5})
            >>> metrics
            [{'loss': 0.5}]
        """
        try:
            yield
        except Exception as error:
            lost = None if isinstance(error, OtherProcessError) else _LOST.search(str(error))
            if lost is None or self._heartbeat is None:
                raise
            raise self._heartbeat.explain_lost(lost[0]) from error


class _Heartbeat:
    """The thread that sends a heartbeat each second, and checks whether this process would wait for others forever.

    It does not slow the steps of a loop, because torch counts the collectives that a process has begun, and the run
    counts its updates.

    Args:
        run: The run to watch.
    """

    def __init__(self, run: HangDetector) -> None:
        # Not the group itself: a reference to it keeps gloo's threads alive, which abort a process that ends.
        self.group: int = id(dist.group.WORLD)
        self.run: HangDetector = run
        self._rank = dist.get_rank()
        self._is_on_gloo = runs_on_gloo()
        self._timeout = _SHARE_OF_TIMEOUT * _torch.seconds_until_timeout()
        # A separate connection: the main thread may be waiting in the first. Torch does not annotate clone().
        shared: Any = _torch.store_of_processes()
        self._store = PrefixStore("pa_distributed/watch", shared.clone())
        self._store.set_timeout(_STORE_TIMEOUT)
        self._signs = Signs(self._store, self._rank, dist.get_world_size())
        self._sign = Sign()
        self._progress = (-1, -1, -1)
        self._moved_at = self._explained_at = self._looked_at = time.monotonic()
        self._has_ended = threading.Event()
        self._look()  # raises the error about a version of torch that cannot count here, not in the thread
        self._thread = threading.Thread(target=self._beat_until_the_end, name="pa_distributed heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Announce that the script has ended, and end the thread, which could abort Python at exit."""
        self._has_ended.set()
        self._thread.join(_STORE_TIMEOUT.total_seconds())

    def explain_lost(self, message: str) -> OtherProcessError:
        """Return the error for a process that has lost the connection to a different process.

        Args:
            message: The message of torch.
        """
        where, do = "the process that connects the others has ended", "See what the others printed last."
        with suppress(Exception):  # the process that keeps the store has ended
            run, signs = self.run.number, self._signs.of_others()
            for _ in range(_BEATS_UNTIL_GONE):
                time.sleep(SECONDS_BETWEEN_BEATS)
                signs = self._signs.of_others()
            where = describe_signs(signs, run)
            if any(sign.run < run for sign in signs.values()):
                do = "Begin as many runs on each process as on the others."
            elif any(sign.has_left(run) for sign in signs.values()):
                do = self.run.advise(where, True)
            if self._store.check(["verdict"]):  # the report of all processes follows
                time.sleep(_SECONDS_TO_END)
        return OtherProcessError(
            f"Another process is gone, or did not come, while this one waited for it: {where}; here, torch says: "
            f"{message}. {do}"
        )

    def _beat_until_the_end(self) -> None:
        """Send heartbeats and look for hangs, until the script ends."""
        with suppress(Exception):  # the process that keeps the store has ended, or the group was destroyed
            while not self._has_ended.wait(SECONDS_BETWEEN_BEATS):
                self._look()
                self._end_if_hung()
            updates = self.run.where()[1]
            self._signs.post(self._sign._replace(beat=self._sign.beat + 1, updates=updates, has_ended=True))

    def _look(self) -> None:
        """Tell the other processes the position of this process."""
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
        """End this process if any process, including this process, would wait forever."""
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
        """Print the stack of the run's thread, and the reason as the last line of one process; exit with status 1."""
        # The process ends even if the rest hangs, for example on a full pipe.
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
                worker.kill()  # a stuck worker would survive, and a launcher would wait for its output
        os._exit(1)

    def _write(self, text: str) -> None:
        """Print a text without interruption, with the rank before each line as torch prints it."""
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.write("".join(f"[rank{self._rank}]: {line}" for line in text.splitlines(keepends=True)))
            sys.stderr.flush()


_heartbeats: Final[list[_Heartbeat]] = []
"""The heartbeat of this process, if the run has several processes."""


def _heartbeat_of_process(run: HangDetector) -> _Heartbeat | None:
    """Return the heartbeat of this process, or None if it needs none; the first call starts it."""
    if math.isinf(run.limit) or num_processes() == 1:
        return None
    if _heartbeats and _heartbeats[-1].group != id(dist.group.WORLD):
        _end_heartbeat()
    if not _heartbeats:
        _heartbeats.append(_Heartbeat(run))
        atexit.register(_end_heartbeat)
    return _heartbeats[-1]


def _end_heartbeat() -> None:
    """Stop the heartbeat of this process."""
    while _heartbeats:
        _heartbeats.pop().stop()
    atexit.unregister(_end_heartbeat)


def find_hang(
    rank: int, signs: Mapping[int, Sign], limit: float, advise: Callable[[str, bool], str]
) -> OtherProcessError | None:
    """Return the error for a process that would wait forever, or None as long as it may continue.

    A process waits if its thread is in a collective. In any other kind of wait, its thread does not run. A process that
    waits for an accelerator or a thread, or that polls, has begun more collectives than another process. A process that
    is in no run yet may take any time. A process that has left the run of the others never arrives.

    Args:
        rank: The rank of the process that may be waiting.
        signs: The signs of all processes by rank.
        limit: How many seconds the process may wait for a process that may still arrive.
        advise: A function that returns advice, in the form that ``HangDetector`` accepts.
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
    """Return a limit in seconds that was checked to be a positive number."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf:
        return float(seconds)
    raise ValueError(f"max_wait_seconds must be a positive number, or None to wait forever, got {seconds!r}.")
