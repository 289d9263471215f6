"""What each process of a run tells the others about itself, in the store through which they have found each other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from torch.distributed.distributed_c10d import Store

__all__ = ["Place", "Sign", "Signs"]


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
        collectives: How many collectives the process has entered.
        waiting: For how many seconds it has been waiting in the same collective.
        exchange: What it waits in, such as "all_gather".
        doing: What its thread is in, in words.
        end: How the process is about to end, or has ended; empty as long as it lives.
    """

    beat: int = 0
    run: int = 0
    place: str = ""
    updates: int = 0
    collectives: int = 0
    waiting: float = 0.0
    exchange: str = ""
    doing: str = ""
    end: str = ""

    def encode(self) -> str:
        """Return the sign as text."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Return the sign that a text holds."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def has_left(self, run: int) -> bool:
        """Whether the process has been in a run, and is in it no more.

        Args:
            run: The number of the run.
        """
        return self.run > run or (self.run == run and not self.place)


class Signs:
    """The signs of all processes.

    Args:
        store: Where they are kept.
        rank: The rank of this process.
        world: The number of processes.
    """

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self._store = store
        self._rank = rank
        self._world = world

    def post(self, sign: Sign) -> None:
        """Replace the sign of this process.

        Args:
            sign: The new one.
        """
        self._store.set(_key(self._rank), sign.encode())

    def of_others(self) -> dict[int, Sign]:
        """Return the newest signs of the other processes by rank; of one that has given none, an empty one."""
        others = [rank for rank in range(self._world) if rank != self._rank]
        # A key that is not there is waited for.
        if self._store.check([_key(rank) for rank in others]):
            found = self._store.multi_get([_key(rank) for rank in others])
            return {rank: Sign.decode(text) for rank, text in zip(others, found, strict=True)}
        return {rank: self._of(rank) for rank in others}

    def _of(self, rank: int) -> Sign:
        return Sign.decode(self._store.get(_key(rank))) if self._store.check([_key(rank)]) else Sign()


def _key(rank: int) -> str:
    return f"sign/{rank}"
