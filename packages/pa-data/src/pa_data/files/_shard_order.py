"""The order of samples in files: files in random order, and samples shuffled within windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.errors import DataError
from pa_data.orders._checks import check_count
from pa_data.orders._epoch_order import EpochOrder, index_list
from pa_data.orders._order import Order
from pa_data.rng import extend_key

__all__ = ["ShardOrder"]

_OF_SHARDS = -3  # extends the key of an epoch, whose samples and workers have other extensions
_SEQUENCE = -1  # extends the key of the shards, where windows have their numbers


@dataclass(frozen=True)
class ShardOrder(Order):
    """Visits each sample once per epoch, in an order that reads only a few files at a time.

    ``ShardedFiles`` has it as its ``default_order``, so you rarely create it. Instead, pass ``window``, ``lanes`` and
    ``block`` to ``ShardedFiles``. A full shuffle would open all files at once; this order trades some randomness for
    sequential reading. In each epoch, the files, here called shards, come in a random order. The sequence of all
    samples is cut into windows of consecutive samples, and each window is shuffled. A window that crosses the end of a
    shard mixes samples of several shards. Any position is computed directly, so a run resumes without reading the
    samples before that position.

    With several lanes, the sequence is cut into equally long parts that take turns: ``block`` samples of the first
    lane, then of the second, and so on. If ``lanes`` is the number of processes times their workers, and ``block`` is
    the batch size of a process, each worker reads its own lane. With other numbers of processes and workers, the order
    is the same, but several workers read the same files.

    Attributes:
        names: The name of each shard. The names only identify the order in saved states.
        counts: The number of samples of each shard, in the order of ``names``.
        window: The number of consecutive samples that are shuffled together, over all lanes. The default is 10,000. A
            larger window shuffles better, but reads more files at a time. A window of 1 keeps the samples of a shard in
            sequence.
        lanes: The number of parts that take turns, at most ``window``. The default is 1, for one process without
            workers.
        block: The number of samples in the turn of a lane. The default is 32, a common batch size.

    Raises:
        DataError: A number is out of its range.

    Example:
        >>> from pa_data.files import ShardOrder
        >>> order = ShardOrder(names=("a", "b"), counts=(3, 4), window=3).epoch_order(7, seed=3, epoch=1)
        >>> order.indices(0, 7).tolist()
        [5, 3, 4, 0, 1, 6, 2]
        >>> order.indices(4, 6).tolist()
        [1, 6]
    """

    name: ClassVar[str] = "shards-v1"
    equal_epochs: ClassVar[bool] = True
    names: tuple[str, ...]
    counts: tuple[int, ...]
    window: int = 10_000
    lanes: int = 1
    block: int = 32

    def __post_init__(self) -> None:
        """Raise an error for numbers out of range."""
        for name in ("window", "lanes", "block"):
            check_count(name, getattr(self, name))
        if self.lanes > self.window:
            raise DataError(f"window must be >= lanes={self.lanes}, which share it, got {self.window}.")

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch, with the shards in random order and their samples shuffled within windows.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the order.
        Nothing is computed before ``EpochOrder.indices`` is called.

        Args:
            num_samples: The number of samples of the dataset, which must be the sum of ``counts``.
            seed: The seed of the run.
            epoch: The epoch number, from 0. Each epoch has a different order.

        Returns:
            The order of the epoch, with each sample once.

        Raises:
            DataError: The dataset has a different number of samples, for example because it is a subset.

        Example:
            >>> from pa_data.files import ShardOrder
            >>> epoch = ShardOrder(names=("a", "b"), counts=(3, 4), window=1).epoch_order(7, seed=0, epoch=0)
            >>> epoch.indices(0, 7).tolist() in ([0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 0, 1, 2])
            True
        """
        if num_samples != sum(self.counts):
            raise DataError(
                f"The order of the files belongs to another dataset. Got a dataset of {num_samples} samples, an "
                f"order of {len(self.counts)} shards with {sum(self.counts)} samples. Pass the ShardedFiles itself "
                "as dataset; a part of it is shuffled by Shuffled()."
            )
        return _EpochOfShards(self, seed=seed, epoch=epoch)

    @override
    def parameters(self) -> Mapping[str, object]:
        """Return the names and counts of the shards and the window, which identify this order in saved states.

        You need not call it; ``fingerprint`` calls it, so that a run cannot resume with different files by mistake. The
        folder of the files is not a part of it.

        Returns:
            The arguments by name; ``"lanes"`` and ``"block"`` only if there are several lanes.

        Example:
            >>> from pa_data.files import ShardOrder
            >>> ShardOrder(names=("a", "b"), counts=(3, 4)).parameters()
            {'names': ['a', 'b'], 'counts': [3, 4], 'window': 10000}
        """
        lanes = {"lanes": self.lanes, "block": self.block} if self.lanes > 1 else {}
        return {"names": list(self.names), "counts": list(self.counts), "window": self.window, **lanes}


class _EpochOfShards(EpochOrder):
    algorithm = "shards-v1"

    def __init__(self, order: ShardOrder, *, seed: int, epoch: int) -> None:
        super().__init__(sum(order.counts), seed=seed, epoch=epoch)
        self._lanes, self._block, self._counts = order.lanes, order.block, order.counts
        self._window = order.window // order.lanes
        self._lane_length = self.num_samples // (order.lanes * order.block) * order.block
        self._in_lanes = self._lane_length * order.lanes
        self._windows_of_lane = -(-self._lane_length // self._window)
        self._windows: dict[int, Tensor] = {}
        self._key_of_shards = extend_key(self._key, _OF_SHARDS)

    @cached_property
    def _sequence(self) -> tuple[Tensor, Tensor]:
        """The end of each shard in the sequence, and the number to add to a place in it for an index of the dataset."""
        generator = torch.Generator().manual_seed(extend_key(self._key_of_shards, _SEQUENCE))
        shards = torch.randperm(len(self._counts), generator=generator)
        counts = torch.tensor(self._counts)
        begins = counts.cumsum(0) - counts
        ends = counts[shards].cumsum(0)
        return ends, begins[shards] - (ends - counts[shards])

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        places = self._shuffled(torch.arange(start, stop))
        ends, shifts = self._sequence
        return places + shifts[torch.searchsorted(ends, places, right=True)]

    def _shuffled(self, positions: Tensor) -> Tensor:
        """Return the places of positions in the sequence."""
        turn = positions // self._block
        lane = (turn % self._lanes).masked_fill_(positions >= self._in_lanes, self._lanes)
        offset = torch.where(
            positions < self._in_lanes,
            turn // self._lanes * self._block + positions % self._block,
            positions - self._in_lanes,  # what fills no turn of every lane comes last
        )
        if self._window == 1:
            return lane * self._lane_length + offset
        number = offset // self._window
        window = lane * self._windows_of_lane + number
        for each in sorted(set(index_list(window))):
            of_window = window == each
            begin = (each - int(lane[of_window][0]) * self._windows_of_lane) * self._window
            offset[of_window] = self._permutation(each, begin)[offset[of_window] - begin] + begin
        return lane * self._lane_length + offset

    def _permutation(self, window: int, begin: int) -> Tensor:
        """Return the permutation of a window that begins at an offset of its lane; permutations in use are kept."""
        if window not in self._windows:
            is_last_lane = window >= self._windows_of_lane * self._lanes
            length = self.num_samples - self._in_lanes if is_last_lane else self._lane_length
            generator = torch.Generator().manual_seed(extend_key(self._key_of_shards, window))
            permutation = torch.randperm(min(self._window, length - begin), generator=generator)
            while len(self._windows) > self._lanes:
                del self._windows[next(iter(self._windows))]
            self._windows[window] = permutation
        return self._windows[window]
