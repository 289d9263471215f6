"""What each process of a run tells the others about itself, in the store through which they have found each other."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from torch.distributed.distributed_c10d import Store

__all__ = ["Place", "Sign", "Signs", "advice_for_parted", "describe_signs", "name_ranks"]

_LONGEST_LOOK = 2.0


class Place(StrEnum):
    """What a run is in, as far as processes must be in the same to come together."""

    START = "at the start of the run"
    TRAINING = "in the training of an epoch"
    EVALUATION = "in an evaluation"
    PREDICTION = "in a prediction"
    EPOCH_END = "at the end of an epoch"
    RUN_END = "at the end of the run"


@dataclass(frozen=True)
class Sign:
    """Where a process is.

    Attributes:
        beat: Counts the signs of the process.
        run: Which of its runs this is, counted from 1; 0 before the first.
        place: What the run is in, such as "in an evaluation"; empty where the process is in no run.
        updates: The updates of the run that are complete.
        collectives: How many collectives of all processes it has entered.
        waiting: For how many seconds it has been waiting in the same collective.
        doing: What its thread is in, in words.
        has_ended: Whether its script has ended.
    """

    beat: int = 0
    run: int = 0
    place: str = ""
    updates: int = 0
    collectives: int = 0
    waiting: float = 0.0
    doing: str = ""
    has_ended: bool = False

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
        self._others = [other for other in range(world) if other != rank]
        self._beats = dict.fromkeys(self._others, -1)
        self._silence = dict.fromkeys(self._others, 0.0)
        self._last_look = time.monotonic()

    def post(self, sign: Sign) -> None:
        """Replace the sign of this process.

        Args:
            sign: The new one.
        """
        self._store.set(self._own_key, json.dumps(asdict(sign)))

    def of_others(self) -> dict[int, Sign]:
        """Return the newest signs of the other processes by rank; of one that has given none, an empty one."""
        keys = {_key(rank): rank for rank in self._others}
        # A key that is not there would be waited for.
        there = list(keys) if self._store.check(list(keys)) else [key for key in keys if self._store.check([key])]
        signs = dict.fromkeys(self._others, Sign())
        for key, text in zip(there, self._store.multi_get(there) if there else [], strict=True):
            signs[keys[key]] = Sign(**json.loads(text))
        self._note_silence(signs)
        return signs

    def silent_for(self, rank: int) -> float:
        """Return for how many seconds a process has sent no new heartbeat; 0 for one that has never sent any.

        Args:
            rank: Another process.
        """
        return self._silence[rank]

    def _note_silence(self, signs: Mapping[int, Sign]) -> None:
        now = time.monotonic()
        passed = min(now - self._last_look, _LONGEST_LOOK)  # a machine that was asleep has not waited
        self._last_look = now
        for rank, sign in signs.items():
            is_new = sign.beat != self._beats[rank]
            self._beats[rank] = sign.beat
            self._silence[rank] = 0.0 if is_new or sign == Sign() else self._silence[rank] + passed


def describe_signs(signs: Mapping[int, Sign], run: int, silent: Collection[int] = ()) -> str:
    """Return what processes are doing, each of them or each group that does the same.

    Args:
        signs: Their signs by rank.
        run: The number of the run that is spoken of.
        silent: The ones that have sent no heartbeat for long.
    """
    by_text: dict[str, list[int]] = {}
    for rank, sign in sorted(signs.items()):
        silence = "has sent no heartbeat since it " if rank in silent and not sign.has_ended else ""
        by_text.setdefault(silence + _describe(sign, run), []).append(rank)
    return "; ".join(f"{name_ranks(ranks)} {text}" for text, ranks in by_text.items())


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


def advice_for_parted(places: str) -> str:
    """Return what to do about processes that are in different places.

    Args:
        places: Where they are, as text.
    """
    if Place.RUN_END in places:
        return "Where one process alone decides to stop, call run.request_stop() on it instead of leaving the loop."
    return "Take what only some of the processes come to out of the condition that it depends on."


def _describe(sign: Sign, run: int) -> str:
    done = f"after {sign.updates} update{'' if sign.updates == 1 else 's'}"
    if sign == Sign():
        return "was started"
    if sign.has_ended:
        return f"ended its script, {done}"
    if not sign.place:
        at = f", and was in {sign.doing}" if sign.doing else ""
        return f"was in no run yet{at}" if sign.run < run else f"left the run {done}{at}"
    if not sign.doing:
        return f"was {sign.place}, {done}"
    return f"{'waited' if sign.waiting > 0 else 'was'} in {sign.doing}, {sign.place}, {done}"


def _key(rank: int) -> str:
    return f"sign/{rank}"
