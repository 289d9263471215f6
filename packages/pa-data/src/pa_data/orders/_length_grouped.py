"""The order in which samples of similar length are neighbors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.errors import DataError
from pa_data.orders._checks import check_count, check_one_for_each_sample, lengths_of_samples
from pa_data.orders._epoch_order import ChunkedEpoch, EpochOrder
from pa_data.orders._keyed_numbers import as_int64
from pa_data.orders._order import Order
from pa_data.orders._permutation import permutations
from pa_data.rng import extend_key

__all__ = ["LengthGrouped"]

_GROUPS_OF_WINDOW = 50


class LengthGrouped(Order):
    """Visits each sample once per epoch in random order, with samples of similar length next to each other.

    Use it for texts or other sequences that are padded to the longest sample of a batch, as the ``order`` of a
    ``KeyedDataLoader``. Neighbors of similar length need less padding. All batches have the same number of samples; if
    their size should depend on the lengths, use ``TokenBudget``.

    The epoch is shuffled as a whole. Each window of consecutive samples is then sorted by length and cut into groups,
    and the groups are shuffled. A window is computed when it is needed.

    Args:
        lengths: The length of each sample, in the order of the dataset, in tokens or in any other unit, as whole
            numbers.
        group_size: The number of samples of similar length that stay together, at least 2. The best choice is the
            number of samples of an update (batch size x processes x accumulated batches), or a multiple of it.
        window: The number of samples that are sorted together, a multiple of ``group_size``. The default, None, means
            50 groups, which pads little and still mixes well. A larger window pads less, but its groups are less
            diverse.

    Attributes:
        group_size: The number of samples of similar length that stay together.
        window: The number of samples that are sorted together.

    Raises:
        TypeError: The lengths are not numbers in one dimension.
        DataError: A length is negative or not a whole number, there are no lengths, ``group_size`` is less than 2, or
            the window is not a multiple of it.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import LengthGrouped
        >>> texts = ["a cat", "seven brown dogs", "a bee", "several grey hens"]
        >>> order = LengthGrouped([len(text) for text in texts], group_size=2)
        >>> sorted(sorted(batch) for batch in KeyedDataLoader(texts, batch_size=2, order=order))
        [['a bee', 'a cat'], ['seven brown dogs', 'several grey hens']]
    """

    name: ClassVar[str] = "length-grouped-v1"

    def __init__(self, lengths: Sequence[int] | Tensor, *, group_size: int, window: int | None = None) -> None:
        check_count("group_size", group_size, minimum=2)  # a group of one sample would have no effect
        self._lengths = lengths_of_samples(lengths)
        self.group_size: int = group_size
        self.window: int = _GROUPS_OF_WINDOW * group_size if window is None else window
        check_count("window", self.window)
        if self.window % group_size:
            raise DataError(f"window must be a multiple of group_size={group_size}, got {self.window}.")

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch, in which samples of similar length are neighbors.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the order.
        Nothing is computed before ``EpochOrder.indices`` is called.

        Args:
            num_samples: The number of samples of the dataset, which must be the number of lengths.
            seed: The seed of the run.
            epoch: The epoch number, from 0. Each epoch has different groups.

        Returns:
            The order of the epoch, with each sample once.

        Raises:
            DataError: The dataset does not have one sample per length.

        Example:
            >>> from pa_data.orders import LengthGrouped
            >>> epoch = LengthGrouped([3, 90, 4, 80, 5, 70], group_size=3).epoch_order(6, seed=0, epoch=0)
            >>> sorted(epoch.indices(0, 3).tolist()) in ([0, 2, 4], [1, 3, 5])
            True
        """
        check_one_for_each_sample("lengths", len(self._lengths), num_samples)
        return _LengthGroupedEpoch(self._lengths, self.group_size, self.window, seed=seed, epoch=epoch)

    @override
    def parameters(self) -> Mapping[str, object]:
        """Return the lengths, the group size and the window, which identify this order in saved states.

        You need not call it; ``fingerprint`` calls it, so that a run cannot resume with different lengths by mistake.

        Returns:
            The lengths under ``"lengths"``, as an int64 tensor on the CPU, ``"group_size"`` and ``"window"``.

        Example:
            >>> from pa_data.orders import LengthGrouped
            >>> LengthGrouped([3, 90, 4, 80], group_size=2).parameters()["window"]
            100
        """
        return {"lengths": self._lengths.to(torch.int64), "group_size": self.group_size, "window": self.window}


class _LengthGroupedEpoch(ChunkedEpoch):
    algorithm = LengthGrouped.name

    def __init__(self, lengths: Tensor, group_size: int, window: int, *, seed: int, epoch: int) -> None:
        super().__init__(len(lengths), seed=seed, epoch=epoch)
        self._lengths, self._group_size, self._window = lengths, group_size, window
        self._permutation = permutations(torch.tensor(len(lengths)), torch.tensor(as_int64(self._key)))

    @override
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        start = position - position % self._window
        samples = self._permutation.of(torch.arange(start, min(start + self._window, self.num_samples)))
        samples = samples[self._lengths[samples].argsort(stable=True)]
        generator = torch.Generator().manual_seed(extend_key(self._key, start))
        # a group that is not full comes last, so that the others begin where a batch does
        num_full = len(samples) // self._group_size
        order = torch.randperm(num_full, generator=generator)
        full = samples[: num_full * self._group_size].view(num_full, self._group_size)
        return start, torch.cat([full[order].flatten(), samples[num_full * self._group_size :]])
