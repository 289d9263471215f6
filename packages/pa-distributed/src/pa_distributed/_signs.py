"""What each process of a run tells the others about itself, in the store through which they have found each other."""

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
    """Where a process is.

    Attributes:
        beat: Counts the signs of the process.
        run: Which of its runs this is, counted from 1; 0 before the first.
        place: What the run is in, such as "in an evaluation"; empty where the process is in no run.
        updates: The updates of the run that are complete; -1 where nobody counts them.
        begun: How many exchanges of the group of all processes it has begun.
        runs_ahead: Whether what it has begun, an accelerator waits for, and not its thread.
        still: For how many seconds it has begun no exchange of any group, and made no step.
        waits: Whether its thread is in an exchange with others.
        blocked: For how many seconds its thread has stood in a call that may be a wait for others, wherever it is.
        idle: For how many seconds its thread has hardly run.
        doing: What its thread is in, in words.
        has_ended: Whether its script has ended.
        silent: For how many seconds the process that reads it has seen no newer one.
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
        """Whether the process sends no heartbeat any more."""
        return self.silent >= _SECONDS_UNTIL_SILENT and not self.has_ended

    def has_left(self, run: int) -> bool:
        """Whether the process never comes to what others wait for in a run.

        Args:
            run: The number of the run.
        """
        return self.run > run or (self.run == run and not self.place) or self.has_ended


class Signs:
    """The newest signs of all processes.

    Args:
        store: Where they are kept.
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
            sign: The new one.
        """
        self._store.set(self._own_key, json.dumps(sign._asdict()))

    def of_others(self) -> dict[int, Sign]:
        """Return the newest signs of the other processes by rank; of one that has given none, an empty one."""
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
    return f"sign/{rank}"


class Doing(NamedTuple):
    """What a thread is in.

    Attributes:
        waits: Whether it waits for other processes.
        explains: Whether it may wait for something else, such as data, for as long as it likes.
        is_in_standard_library: Whether it may wait for a thread or a program.
        text: What it is in, in words.
    """

    waits: bool = False
    explains: bool = False
    is_in_standard_library: bool = False
    text: str = ""


def doing_of(thread: int) -> Doing:
    """Return what a thread is in, as its frames tell it.

    Args:
        thread: Its identifier, as ``threading.get_ident`` returns it there.
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
    """Return the exchange that a function is, empty if it is none."""
    if module in _GRADIENTS:
        return "the exchange of gradients"
    return function if module.startswith(_EXCHANGES) else ""


def describe_signs(signs: Mapping[int, Sign], run: int) -> str:
    """Return what processes are doing, each of them or each group that does the same.

    Args:
        signs: Their signs by rank.
        run: The number of the run that is spoken of.
    """
    by_text: dict[str, list[int]] = {}
    for rank, sign in sorted(signs.items()):
        silence = "has sent no heartbeat since it " if sign.is_silent else ""
        by_text.setdefault(silence + _describe(sign, run), []).append(rank)
    return "; ".join(f"{name_ranks(ranks)} {text}" for text, ranks in by_text.items())


def _describe(sign: Sign, run: int) -> str:
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
    """Return ranks in words, those that follow each other as one range.

    Args:
        ranks: In ascending order.

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
