"""The open files of a process: the files that were used last, as many as a window covers."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from pa_data.files._shard_file import OpenShard

__all__ = ["OpenShards"]

_MOST = 128


class OpenShards:
    """Open files; the files that have been unused for the longest time are closed.

    Args:
        window: The number of samples that are read in random order.
        lanes: The number of places that are read in turn.
    """

    def __init__(self, window: int, lanes: int) -> None:
        self._window, self._lanes = window, lanes
        self._forget()

    def get(self, number: int, count: int, open_shard: Callable[[], OpenShard[Any]]) -> OpenShard[Any]:
        """Return an open shard that this process itself has opened, since store clients do not survive a fork.

        Args:
            number: The number of the shard.
            count: The number of its samples.
            open_shard: A function that opens it.
        """
        if self._process != os.getpid():
            self._forget()
        if number not in self._shards:
            self._shards[number] = open_shard(), count
            self._num_samples += count
            while len(self._shards) > 2 * self._lanes + 1 and (
                len(self._shards) > _MOST or self._num_samples > 2 * self._window
            ):
                _, (oldest, num_samples) = self._shards.popitem(last=False)
                self._num_samples -= num_samples
                if callable(close := getattr(oldest, "close", None)):
                    close()
        self._shards.move_to_end(number)
        return self._shards[number][0]

    def _forget(self) -> None:
        """Start without open files."""
        self._process = os.getpid()
        self._shards: OrderedDict[int, tuple[OpenShard[Any], int]] = OrderedDict()
        self._num_samples = 0

    @override
    def __reduce__(self) -> tuple[type[OpenShards], tuple[int, int]]:
        """Pickle no open files: a different process opens its own."""
        return OpenShards, (self._window, self._lanes)
