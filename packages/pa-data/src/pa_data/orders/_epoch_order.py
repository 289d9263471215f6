"""The order of a single epoch as a function of seed and epoch: any part of it, at any time, on any process."""

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
"""The largest number of samples that is shuffled with a table of ``torch.randperm``, which takes 80 MB at the limit."""


class EpochOrder(ABC):
    """The order in which a single epoch visits the samples of a dataset.

    The ``epoch_order`` function and the ``epoch_order`` method of each ``Order`` return it; ``KeyedDataLoader.order``
    is the order of the loader's current epoch. Call ``indices`` to look up which sample comes at which position. Derive
    from it, and implement ``compute_indices``, for a custom order that computes any position without a table; for a
    table, derive from ``TableOrder``. An ``Order`` makes such an object for each epoch.

    Args:
        num_samples: The number of samples that the epoch visits, which may differ from the length of the dataset.
        seed: The seed of the run.
        epoch: The epoch number, from 0.

    Attributes:
        algorithm: The versioned name of the algorithm, which a derived class must set. Its meaning never changes: with
            the same seed and epoch, ``epoch_order`` returns the same order for it in all later versions.
        repeats: Whether a sample may appear more than once. Random augmentation then depends on the position instead of
            the sample, so that it differs each time. False by default.
        num_samples: The number of samples that the epoch visits.

    Example:
        >>> import torch
        >>> from pa_data.orders import epoch_order
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
        """Return the samples at the positions ``[start, stop)`` of the epoch.

        You call it, as loaders do, to find out which samples come when. Any range may be requested at any time, on any
        process, with the same result; consecutive ranges are fastest. To define an order, override ``compute_indices``
        instead.

        Args:
            start: The first position, from 0. A position is the place of a sample in this epoch.
            stop: The position after the last, at most ``num_samples``.

        Returns:
            Indices into the dataset, as int64 of shape ``(stop - start,)`` on the CPU. The caller may change the
            tensor.

        Raises:
            IndexError: The positions are not in the range ``0 <= start <= stop <= num_samples``.

        Example:
            >>> from pa_data.orders import epoch_order
            >>> epoch_order(10, seed=1, epoch=0, shuffle=False).indices(4, 7)
            tensor([4, 5, 6])
        """
        self._require_positions(start, stop)
        return self.compute_indices(start, stop)

    @abstractmethod
    def compute_indices(self, start: int, stop: int) -> Tensor:
        """Compute the samples at some positions. Custom orders implement this method; callers use ``indices``.

        ``indices`` calls it after checking the range, in the main process and at any time, often with consecutive
        ranges and after a resume with any range. The result must depend only on the arguments of the constructor and
        the range, so do not draw from global generators. Return a new tensor each time, since the caller may change it.

        Args:
            start: The first position, checked to be in range.
            stop: The position after the last, checked to be in range. It may equal ``start``.

        Returns:
            Indices into the dataset, as int64 of shape ``(stop - start,)`` on the CPU. They are not checked.

        Example:
            >>> import torch
            >>> from torch import Tensor
            >>> from pa_data.orders import EpochOrder
            >>> class Reversed(EpochOrder):
            ...     algorithm = "reversed-v1"
            ...     def compute_indices(self, start: int, stop: int) -> Tensor:
            ...         return self.num_samples - 1 - torch.arange(start, stop)
            >>> Reversed(10, seed=0, epoch=0).indices(0, 3)
            tensor([9, 8, 7])
        """

    @property
    def batch_ends(self) -> Tensor | None:
        """The positions after the last sample of each batch, as an int64 tensor of one dimension on the CPU, or None.

        None, the default, means that batches may be cut anywhere, with the batch size of the loader. ``[2, 7, 9]``
        means batches of 2, 5 and 2 samples. The numbers increase, and the last is ``num_samples``. A loader reads it
        when an epoch is chosen. Override it in a custom order that makes batches, whose ``Order`` must set
        ``makes_batches = True``.
        """
        return None

    def shares(self, stop: int) -> Mapping[str, float]:
        """Return the fraction of the first positions that belongs to each data source, by name.

        You call it to log how much each dataset of a ``Mixture`` has contributed so far in the epoch. Other orders
        return an empty mapping, unless a derived class overrides the method.

        Args:
            stop: The number of positions to count, from the first position on, at most ``num_samples``.

        Returns:
            Fractions that sum to 1, or an empty mapping for data with a single source or if ``stop`` is 0.

        Raises:
            IndexError: The position is not in the range ``0 <= stop <= num_samples``.

        Example:
            >>> from pa_data.orders import Mixture
            >>> mixture = Mixture({"ours": range(10), "others": range(30)})
            >>> mixture.default_order.epoch_order(40, seed=0, epoch=0).shares(40)
            {'ours': 0.25, 'others': 0.75}
        """
        self._require_positions(0, stop)
        return {}

    def _require_positions(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_samples:
            raise IndexError(f"positions [{start}, {stop}) are not within an epoch of {self.num_samples} samples")


class ChunkedEpoch(EpochOrder):
    """An epoch that computes consecutive positions in chunks, and keeps the last chunk."""

    def __init__(self, num_samples: int, *, seed: int, epoch: int) -> None:
        super().__init__(num_samples, seed=seed, epoch=epoch)
        self._start, self._chunk = 0, torch.empty(0, dtype=torch.int64)

    @abstractmethod
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        """Return the first position of the chunk that contains a position, and the samples of the chunk."""

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
    """Return the order of an epoch: a random permutation of the samples, or their original sequence.

    Use it directly for a custom loader; ``KeyedDataLoader`` uses it by default. For other orders, create an object such
    as ``Weighted`` and call its ``epoch_order`` method. Each position depends only on the seed and the epoch, so any
    process can compute any part at any time.

    Nothing is computed before the first ``EpochOrder.indices`` call. For up to 10 million samples, the order is the
    result of ``torch.randperm`` with a separate generator. For more samples, such a table would take seconds and up to
    gigabytes of memory, so 65,536 positions are computed at a time, without a table.

    Args:
        num_samples: The number of samples of the dataset, at least 0.
        seed: The seed of the run, any integer.
        epoch: The epoch number, from 0. Each epoch has a different order.
        shuffle: Whether the order is random. The default is True, for training. With False the samples are visited in
            the order of the dataset.
        algorithm: The ``EpochOrder.algorithm`` of an order to reproduce: ``"identity"``, ``"randperm-v1"`` or
            ``"feistel-v1"``. By default, the algorithm depends on ``shuffle`` and the number of samples; a name takes
            precedence over both.

    Returns:
        The order, whose ``indices(start, stop)`` returns the samples at any positions.

    Raises:
        DataError: ``num_samples`` is negative, or the algorithm is unknown.

    Example:
        >>> from pa_data.orders import epoch_order
        >>> epoch_order(1000, seed=0, epoch=0).indices(0, 4)
        tensor([811, 104, 283, 389])
        >>> epoch_order(1000, seed=0, epoch=0, shuffle=False).indices(0, 4)
        tensor([0, 1, 2, 3])
    """
    check_count("num_samples", num_samples, minimum=0)
    if algorithm is None:
        shuffled: type[EpochOrder] = _RandpermOrder if num_samples <= RANDPERM_LIMIT else _FeistelOrder
        algorithm = (shuffled if shuffle else _IdentityOrder).algorithm
    if algorithm not in _ORDERS:
        raise DataError(
            "The order of the data was made by an algorithm that this version does not have. Got "
            f"algorithm={algorithm!r}, expected one of {', '.join(sorted(_ORDERS))}. Continue with the version that "
            "stored this name, or a later version."
        )
    return _ORDERS[algorithm](num_samples, seed=seed, epoch=epoch)


def index_list(indices: Tensor) -> list[int]:
    """Return the elements of a one-dimensional integer tensor as Python integers."""
    return cast("list[int]", indices.tolist())  # pyright: ignore[reportUnknownMemberType]  # open in torch
