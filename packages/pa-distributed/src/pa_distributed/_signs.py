"""The state that each process of a run publishes for the others, in the store of ``torch.distributed``."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

_LONGEST_LOOK = 2.0
_SECONDS_UNTIL_SILENT = 3.0

_EXCHANGES = ("torch.distributed", "torch.nn.parallel.distributed")
_CALLS_OF_OPERATORS = "torch._ops"
_WAIT_FOR_OTHER_THINGS = ("pa_distributed._", "torch.serialization", "torch.utils.data")
_GRADIENTS = ("pa_distributed.gradients", "pa_distributed.gradient_tree")
_LIBRARIES = {"accelerate", "pa_checkpoint", "pa_core", "pa_data", "pa_distributed", "torch"} | sys.stdlib_module_names


class Sign(NamedTuple):
    """The position of a process.

    Attributes:
        beat: The number of signs that the process has sent.
        run: The number of the current or last run of the process, counted from 1; 0 before the first run.
        place: The position in the run, such as "in an evaluation"; empty outside of a run.
        updates: The number of complete updates of the run; -1 if unknown.
        begun: The number of collectives of the group of all processes that the process has begun.
        runs_ahead: Whether an accelerator waits for these collectives, instead of the thread.
        still: For how many seconds the process has begun no collective of any group, and completed no step.
        waits: Whether its thread is in a collective.
        blocked: For how many seconds its thread has been in a call that may wait for other processes.
        idle: For how many seconds its thread has used hardly any processor time.
        doing: The current call in its thread, in words.
        has_ended: Whether its script has ended.
        silent: For how many seconds the reading process has seen no newer sign.
    """

    beat: int = 0
    run: int = 0
    place: str = ""
    updates: int = 0
    begun: int = 0
    runs_ahead: bool = False
    still: float = 0.0
    waits: bool = False
    blocked: float = 0.0
    idle: float = 0.0
    doing: str = ""
    has_ended: bool = False
    silent: float = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether the process has stopped sending heartbeats."""
        return self.silent >= _SECONDS_UNTIL_SILENT and not self.has_ended

    def has_left(self, run: int) -> bool:
        """Return whether the process will never arrive where others wait in a run.

        Args:
            run: The number of the run.
        """
        return self.run > run or (self.run == run and not self.place) or self.has_ended


class Signs:
    """The newest signs of all processes.

    Args:
        store: The store that keeps the signs.
        rank: The rank of this process.
        world: The number of processes.
    """

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self._store = store
        self._own_key = _key(rank)
        self._others = {other: Sign() for other in range(world) if other != rank}
        self._looked_at = time.monotonic()

    def post(self, sign: Sign) -> None:
        """Replace the sign of this process.

        Args:
            sign: The new sign.
        """
        self._store.set(self._own_key, json.dumps(sign._asdict()))

    def of_others(self) -> dict[int, Sign]:
        """Return the newest sign of each other process by rank; a process that has sent none has an empty sign."""
        now = time.monotonic()
        passed = min(now - self._looked_at, _LONGEST_LOOK)  # a machine that was asleep has not waited
        self._looked_at = now
        keys = {_key(rank): rank for rank in self._others}
        # A key that is not there would be waited for.
        there = list(keys) if self._store.check(list(keys)) else [key for key in keys if self._store.check([key])]
        for key, text in zip(there, self._store.multi_get(there) if there else [], strict=True):
            last, sign = self._others[keys[key]], Sign(**json.loads(text))
            silent = last.silent + passed if sign.beat == last.beat else 0.0
            self._others[keys[key]] = sign._replace(silent=silent)
        return dict(self._others)


def _key(rank: int) -> str:
    """Return the key of a rank in the store."""
    return f"sign/{rank}"


class Doing(NamedTuple):
    """The current call in a thread.

    Attributes:
        waits: Whether the thread waits for other processes.
        explains: Whether the thread may wait for anything else, such as data, for any time.
        is_in_standard_library: Whether the thread may wait for a thread or a program.
        text: The call in words.
    """

    waits: bool = False
    explains: bool = False
    is_in_standard_library: bool = False
    text: str = ""


def doing_of(thread: int) -> Doing:
    """Return the current call in a thread, according to its frames.

    Args:
        thread: The identifier of the thread, as ``threading.get_ident`` returns it there.
    """
    exchange = event = line = innermost = ""
    explains = False
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]  # documented in spite of its name
    for caller, number in traceback.walk_stack(frame) if frame is not None else ():
        code, module = caller.f_code, str(caller.f_globals.get("__name__"))
        if not innermost and module != _CALLS_OF_OPERATORS:
            innermost = module
            exchange = _exchange_of(module, code.co_name)
        explains = explains or module.startswith(_WAIT_FOR_OTHER_THINGS)
        if not line and module.partition(".")[0] not in _LIBRARIES:
            line = f"{Path(code.co_filename).name}:{number}"
        if not event and code.co_name.startswith("on_") and "." in code.co_qualname:
            event = f"{code.co_name} of {code.co_qualname.split('.')[-2]}"
    where = ", in ".join(filter(None, (exchange, event)))
    text = f"{where} ({line})" if where and line else where or line
    return Doing(bool(exchange), explains, innermost.partition(".")[0] in sys.stdlib_module_names, text)


def _exchange_of(module: str, function: str) -> str:
    """Return the name of the collective that a function implements, or an empty text."""
    if module in _GRADIENTS:
        return "the exchange of gradients"
    return function if module.startswith(_EXCHANGES) else ""


def describe_signs(signs: Mapping[int, Sign], run: int) -> str:
    """Return a text about the positions of processes, with ranks in the same position together.

    Args:
        signs: The signs by rank.
        run: The number of the run that the text is about.
    """
    by_text: dict[str, list[int]] = {}
    for rank, sign in sorted(signs.items()):
        silence = "has sent no heartbeat since it " if sign.is_silent else ""
        by_text.setdefault(silence + _describe(sign, run), []).append(rank)
    return "; ".join(f"{name_ranks(ranks)} {text}" for text, ranks in by_text.items())


def _describe(sign: Sign, run: int) -> str:
    """Return the position of a process in words."""
    done = f", after {sign.updates} update{'' if sign.updates == 1 else 's'}" if sign.updates >= 0 else ""
    if sign.beat == 0:
        return "was started"
    if sign.has_ended:
        return f"ended its script{done}"
    if not sign.place:
        at = f", and was in {sign.doing}" if sign.doing else ""
        return f"was in no run yet{at}" if sign.run < run else f"left the run{done.removeprefix(',')}{at}"
    doing = f"in {sign.doing}, " if sign.doing else ""
    return f"{'waited' if sign.waits else 'was'} {doing}{sign.place}{done}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words, with consecutive ranks as a range.

    Args:
        ranks: The ranks in ascending order.

    Example:
        >>> name_ranks([1]), name_ranks([0, 2, 3, 4])
        ('rank 1', 'ranks 0, 2-4')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    ranges: list[tuple[int, int]] = []
    for rank in ranks:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1] = ranges[-1][0], rank
        else:
            ranges.append((rank, rank))
    return "ranks " + ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
