"""Processes that come to the same place before they exchange anything, or learn that one of them comes alone."""

from __future__ import annotations

import itertools
import json
import time
from typing import Final

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pa_core import _torch
from pa_core._torch import store_of_processes
from pa_core.distributed.signs import Signs, describe_signs

__all__ = ["Absent", "MeetingPoint"]

SECONDS_UNTIL_ALONE: Final = 3.0
"""How long a process that waits elsewhere, or is ahead, keeps the others waiting before nobody expects it any more."""

_SECONDS_BETWEEN_LOOKS = 0.002
_SECONDS_BETWEEN_SIGNS = 0.5


_numbers = itertools.count(1)
"""Counts the meetings of this process, which are as many on the others."""


class Absent(Exception):
    """Some processes do not come to a place; its text says where they are."""


class MeetingPoint:
    """Lets processes wait for each other through the store by which they have found each other.

    Nothing is exchanged otherwise, so that it also works where the others are in an exchange that this process does not
    take part in: there, its own exchange would be taken for that one, and end in a crash or in wrong values.

    Example:
        >>> MeetingPoint().meet("in a callback")  # on one process, there is nobody to wait for
    """

    def __init__(self) -> None:
        self._is_alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
        if self._is_alone:
            return
        self._rank = dist.get_rank()
        self._others = [rank for rank in range(dist.get_world_size()) if rank != self._rank]
        self._store = PrefixStore("pa_core/meetings", store_of_processes())
        self._signs = Signs(PrefixStore("pa_core/watch", store_of_processes()), self._rank, dist.get_world_size())

    def meet(self, place: str) -> None:
        """Wait until all processes are in a place.

        Args:
            place: Where this process is, in words; the same words on all of them.

        Raises:
            Absent: Another process is somewhere else, where it waits for this one.
        """
        if self._is_alone:
            return
        number = next(_numbers)
        self._store.set(_key(self._rank, number), json.dumps([number, place]))
        since = next_signs = time.monotonic()
        collectives = _collectives_begun()
        while True:
            come = self._come(number)
            if elsewhere := {
                rank: where for rank, (other, where) in come.items() if other == number and where != place
            }:
                raise Absent("; ".join(f"rank {rank} {where}" for rank, where in elsewhere.items()))
            missing = [rank for rank in self._others if rank not in come or come[rank][0] < number]
            if not missing:
                return
            now = time.monotonic()
            if now - since > SECONDS_UNTIL_ALONE and now > next_signs:
                next_signs = now + _SECONDS_BETWEEN_SIGNS
                self._require_expected(missing, collectives)
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _come(self, number: int) -> dict[int, tuple[int, str]]:
        """Which meeting, and in which place, each of the others has come to: this one, one before or one after it."""
        keys = {_key(rank, number): rank for rank in self._others}
        there = list(keys) if self._store.check(list(keys)) else [key for key in keys if self._store.check([key])]
        texts = self._store.multi_get(there) if there else []  # a key that is not there would be waited for
        return {keys[key]: json.loads(text) for key, text in zip(there, texts, strict=True)}

    def _require_expected(self, missing: list[int], collectives: int) -> None:
        """Give up processes that cannot come: this one would have to come to them first."""
        signs = {rank: sign for rank, sign in self._signs.of_others().items() if rank in missing}
        is_one_ahead = any(sign.collectives > collectives or sign.end for sign in signs.values())
        if is_one_ahead or all(sign.waiting >= SECONDS_UNTIL_ALONE for sign in signs.values()):
            raise Absent(describe_signs(signs, max((sign.run for sign in signs.values()), default=0)))


def _key(rank: int, number: int) -> str:
    """Where a process says where it is; one that continues to the next meeting does not take it back."""
    return f"{rank}/{number % 2}"


def _collectives_begun() -> int:
    """How many exchanges of all processes this one has entered."""
    return _torch.collectives_begun()
