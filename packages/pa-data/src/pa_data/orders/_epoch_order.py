"""The order of an epoch as a pure function of (seed, epoch): any part of it, at any time, on any process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.errors import DataError
from pa_data.orders._checks import check_count
from pa_data.orders._keyed_numbers import as_int64
from pa_data.orders._permutation import permutations
from pa_data.rng import mix

__all__ = ["RANDPERM_LIMIT", "ChunkedEpoch", "EpochOrder", "epoch_order", "index_list"]

_CHUNK = 65_536
RANDPERM_LIMIT = 10_000_000
"""Up to this many samples an epoch is shuffled with a table from `torch.randperm`, 80 MB at the limit."""


class EpochOrder(ABC):
    """The order in which one epoch visits the samples of a dataset; made by `epoch_order`.

    Attributes:
        algorithm: The versioned name of the function that gives the order. What a name means never changes:
            passed back to `epoch_order` with the same seed and epoch, it gives the same order again.
        repeats: Whether a sample may come more than once. Random draws for it then follow from its position in the
            epoch, so that they differ.
        num_samples: The number of samples that the epoch visits.

    Example:
        >>> order = epoch_order(10, seed=1, epoch=0)
        >>> sorted(order.indices(0, 10).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        >>> again = epoch_order(10, seed=1, epoch=0, algorithm=order.algorithm)
        >>> torch.equal(order.indices(4, 7), again.indices(4, 7))
        True
    """

    algorithm: ClassVar[str]
    repeats: ClassVar[bool] = False

    def __init__(self, num_samples: int, *, seed: int, epoch: int) -> None:
        self.num_samples: int = num_samples
        self._key = mix(seed, epoch)

    def indices(self, start: int, stop: int) -> Tensor:
        """Return which samples are at the positions ``[start, stop)`` of the epoch.

        Args:
            start: The first position.
            stop: The position after the last one.

        Returns:
            Dataset indices, int64, of shape ``(stop - start,)``; the tensor is the caller's own.

        Raises:
            IndexError: Unless ``0 <= start <= stop <= num_samples``.
        """
        if not 0 <= start <= stop <= self.num_samples:
            raise IndexError(f"positions [{start}, {stop}) are not within an epoch of {self.num_samples} samples")
        return self.compute_indices(start, stop)

    @abstractmethod
    def compute_indices(self, start: int, stop: int) -> Tensor:
        """Compute what `indices` returns; its arguments are in range. Custom orders override this.

        Args:
            start: The first position.
            stop: The position after the last one.
        """

    @property
    def batch_ends(self) -> Tensor | None:
        """The positions at which batches end that belong together, int64, the last one ``num_samples``.

        None where batches may be cut anywhere, with the batch size of the loader.
        """
        return None

    def shares(self, stop: int) -> Mapping[str, float]:
        """Return how large a part of the positions before ``stop`` each source of the data has, by its name.

        Args:
            stop: The position after the last one that counts.

        Returns:
            Nothing where the data has one source only.
        """
        return {}


class ChunkedEpoch(EpochOrder):
    """An epoch of which some positions that follow each other are computed at once, and kept for those that follow."""

    def __init__(self, num_samples: int, *, seed: int, epoch: int) -> None:
        super().__init__(num_samples, seed=seed, epoch=epoch)
        self._start, self._chunk = 0, torch.empty(0, dtype=torch.int64)

    @abstractmethod
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        """Return the first position of the chunk that has a position, and the samples of the chunk."""

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        parts = [torch.empty(0, dtype=torch.int64)]
        while start < stop:
            if not self._start <= start < self._start + self._chunk.numel():
                self._start, self._chunk = self.chunk_at(start)
            parts.append(self._chunk[start - self._start : stop - self._start])
            start += parts[-1].numel()
        return torch.cat(parts)


class _IdentityOrder(EpochOrder):
    algorithm = "identity"

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop)


class _RandpermOrder(ChunkedEpoch):
    algorithm = "randperm-v1"

    @override
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        generator = torch.Generator().manual_seed(self._key)
        return 0, torch.randperm(self.num_samples, generator=generator)


class _FeistelOrder(ChunkedEpoch):
    algorithm = "feistel-v1"

    @override
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        first = position - position % _CHUNK
        positions = torch.arange(first, min(first + _CHUNK, self.num_samples))
        return first, permutations(torch.tensor(self.num_samples), torch.tensor(as_int64(self._key))).of(positions)


_ORDERS: dict[str, type[EpochOrder]] = {
    order.algorithm: order for order in (_IdentityOrder, _RandpermOrder, _FeistelOrder)
}


def epoch_order(
    num_samples: int, *, seed: int, epoch: int, shuffle: bool = True, algorithm: str | None = None
) -> EpochOrder:
    """Return the order of one epoch.

    Nothing is computed before the first `EpochOrder.indices`. Up to `RANDPERM_LIMIT` samples the order is
    ``torch.randperm`` with its own generator; above, where that table would take seconds and up to gigabytes, it is
    computed 65,536 positions at a time and nothing of the size of the dataset is ever held.

    Args:
        num_samples: The number of samples of the dataset.
        seed: The seed of the run.
        epoch: The number of the epoch; each epoch has its own order.
        shuffle: ``False`` visits the samples as the dataset has them.
        algorithm: The `EpochOrder.algorithm` of an order to reproduce. It takes precedence over ``shuffle``
            and over the size of the dataset; by default those two decide.

    Returns:
        The order.

    Raises:
        DataError: If ``num_samples`` is negative or the algorithm is unknown.
    """
    check_count("num_samples", num_samples, minimum=0)
    if algorithm is None:
        shuffled: type[EpochOrder] = _RandpermOrder if num_samples <= RANDPERM_LIMIT else _FeistelOrder
        algorithm = (shuffled if shuffle else _IdentityOrder).algorithm
    if algorithm not in _ORDERS:
        raise DataError(
            "The order of the data was made by an algorithm that this version does not have. Got "
            f"algorithm={algorithm!r}, expected one of {', '.join(sorted(_ORDERS))}. Continue with the version that "
            "stored this name, or a later one."
        )
    return _ORDERS[algorithm](num_samples, seed=seed, epoch=epoch)


def index_list(indices: Tensor) -> list[int]:
    """Return the elements of an integer tensor of one dimension as python integers."""
    return cast("list[int]", indices.tolist())  # pyright: ignore[reportUnknownMemberType]  # open in torch
