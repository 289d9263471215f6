"""Batches of samples of similar length, whose padded size is limited to a number of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.errors import DataError
from pa_data.orders._checks import check_count, check_one_for_each_sample, lengths_of_samples
from pa_data.orders._epoch_order import ChunkedEpoch, EpochOrder, index_list
from pa_data.orders._keyed_numbers import extend_keys
from pa_data.orders._order import Order
from pa_data.orders._permutation import permutations
from pa_data.rng import extend_key

__all__ = ["TokenBudget"]

_BATCHES = -1  # extends the key of an epoch for the order of its batches, where buckets are numbered from 0
_CHUNK = 8192  # some 5 ms
_MIXED_BATCHES, _MOST_CELLS = 2, 8


class TokenBudget(Order):
    """Forms batches of samples of similar length, each as large as a number of tokens allows.

    Use it for sequences of very different lengths, as ``order`` of a ``KeyedDataLoader`` without a batch size. The size
    of a batch is its padded size, that is, the number of its samples times the length of the longest sample, and is at
    most ``max_tokens``. So a batch has few long samples or many short samples, and every step takes about the same time
    and memory. Every sample comes once per epoch. Since batches have different numbers of samples, average the loss
    over tokens, not over batches. If all batches should have the same number of samples, use ``LengthGrouped``.

    Samples are sorted into buckets by length, on a grid that grows geometrically; up to eight neighboring cells with
    fewer than two batches are joined. In each epoch, the samples of each bucket and the order of the batches are
    shuffled.

    The number of batches is the same in every epoch, for every seed and on every number of processes. In a step, each
    process takes the next batch of the order. The buckets are computed once, when the first epoch begins.

    Args:
        lengths: The length of each sample in tokens, in the order of the dataset, as whole numbers. A length of 0
            counts as 1.
        max_tokens: The largest padded size of a batch of a process, in tokens.
        max_samples: The largest number of samples in a batch, for very short samples. The default, None, sets no limit.
        pad_to_multiple_of: The number whose multiples your ``collate_fn`` pads to. The default, 1, pads to the longest
            sample.
        bucket_growth: The ratio between the longest lengths of neighboring cells of the grid, at least 1. A larger
            number mixes more lengths and pads more. With the default of 1.02, batches have 1 to 2 % more padding than
            batches of sorted samples.

    Attributes:
        max_tokens: The largest padded size of a batch of a process, in tokens.
        max_samples: The largest number of samples in a batch, or None.
        pad_to_multiple_of: The number whose multiples batches are padded to.
        bucket_growth: The ratio between the longest lengths of neighboring cells.

    Raises:
        DataError: A sample is longer than ``max_tokens``, a length is negative or not a whole number, or an argument is
            out of its range.
        TypeError: The lengths are not numbers in one dimension.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import TokenBudget
        >>> samples = ["abc", "abcde", "a" * 30, "abcd", "b" * 28, "bcdef"]
        >>> order = TokenBudget([len(sample) for sample in samples], max_tokens=60)
        >>> loader = KeyedDataLoader(samples, order=order)
        >>> sorted(len(batch) for batch in loader)
        [2, 4]
    """

    name: ClassVar[str] = "token-budget-v1"
    makes_batches: ClassVar[bool] = True

    def __init__(
        self,
        lengths: Sequence[int] | Tensor,
        max_tokens: int,
        *,
        max_samples: int | None = None,
        pad_to_multiple_of: int = 1,
        bucket_growth: float = 1.02,
    ) -> None:
        check_count("max_tokens", max_tokens)
        check_count("max_samples", 1 if max_samples is None else max_samples)
        check_count("pad_to_multiple_of", pad_to_multiple_of)
        if not 1 <= bucket_growth < float("inf"):
            raise DataError(f"bucket_growth must be a number >= 1, got {bucket_growth}.")
        self._lengths = lengths_of_samples(lengths)
        self.max_tokens: int = max_tokens
        self.max_samples: int | None = max_samples
        self.pad_to_multiple_of: int = pad_to_multiple_of
        self.bucket_growth: float = bucket_growth
        self._require_samples_within_budget()

    @property
    def num_batches(self) -> int:
        """The number of batches of every epoch, over all processes, an integer.

        On several processes, the number of steps of an epoch is this number divided by the number of processes, rounded
        up. The first use sorts the samples into buckets, which takes some time for a large dataset.
        """
        return len(self._layout.batch_ends)

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch, with the ends of its batches in ``batch_ends``.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the batches.
        The first call sorts the samples into buckets.

        Args:
            num_samples: The number of samples of the dataset, which must be the number of lengths.
            seed: The seed of the run.
            epoch: The epoch number, from 0. Each epoch has different batches, but the same number of them.

        Returns:
            The order of the epoch, with each sample once. ``batch_ends`` is an int64 tensor of the positions after the
            last sample of each batch.

        Raises:
            DataError: The dataset does not have one sample per length.

        Example:
            >>> from pa_data.orders import TokenBudget
            >>> order = TokenBudget([3, 5, 30, 4, 28, 5], max_tokens=60)
            >>> epoch = order.epoch_order(6, seed=0, epoch=0)
            >>> ends = [0, *epoch.batch_ends.tolist()]
            >>> sorted(sorted(epoch.indices(*ends[batch : batch + 2]).tolist()) for batch in range(order.num_batches))
            [[0, 1, 3, 5], [2, 4]]
        """
        check_one_for_each_sample("lengths", len(self._lengths), num_samples)
        return _TokenBudgetEpoch(self._layout, seed=seed, epoch=epoch)

    @override
    def parameters(self) -> Mapping[str, object]:
        """Return the lengths and the other arguments, which identify this order in saved states.

        You need not call it; ``fingerprint`` calls it, so that a run cannot resume with different batches by mistake.

        Returns:
            The lengths under ``"lengths"``, as an int64 tensor on the CPU, and ``"max_tokens"``, ``"max_samples"``,
            ``"pad_to_multiple_of"`` and ``"bucket_growth"``.

        Example:
            >>> from pa_data.orders import TokenBudget
            >>> TokenBudget([3, 5], max_tokens=60).parameters()["max_tokens"]
            60
        """
        return {
            "lengths": self._lengths.to(torch.int64),
            "max_tokens": self.max_tokens,
            "max_samples": self.max_samples,
            "pad_to_multiple_of": self.pad_to_multiple_of,
            "bucket_growth": self.bucket_growth,
        }

    @cached_property
    def _layout(self) -> _Layout:
        padded = self._padded(self._lengths)
        grid = torch.tensor(_grid(int(padded.max()), self.pad_to_multiple_of, self.bucket_growth), dtype=padded.dtype)
        counts = torch.bincount(torch.bucketize(padded, grid), minlength=len(grid))
        edges = torch.tensor(_join(index_list(grid), index_list(counts), self.max_tokens), dtype=padded.dtype)
        buckets = torch.bucketize(padded, edges, out_int32=True)
        longest = torch.zeros_like(edges).scatter_reduce_(0, buckets.long(), padded, "amax")
        most_samples = self.max_samples or self.max_tokens
        capacities = [min(self.max_tokens // length, most_samples) for length in index_list(longest)]
        bucket_ends = torch.bincount(buckets).cumsum(0)
        samples = buckets.argsort(stable=True)
        fits = len(samples) <= torch.iinfo(torch.int32).max
        return _Layout(
            samples.to(torch.int32) if fits else samples, bucket_ends, _cut(index_list(bucket_ends), capacities)
        )

    def _padded(self, lengths: Tensor) -> Tensor:
        multiple = self.pad_to_multiple_of
        return (lengths.clamp(min=1) + (multiple - 1)).div_(multiple, rounding_mode="floor").mul_(multiple)

    def _require_samples_within_budget(self) -> None:
        padded = self._padded(self._lengths)
        longest, most = int(padded.argmax()), int(padded.max())
        if most > self.max_tokens:
            number = int((padded > self.max_tokens).sum())
            raise DataError(
                f"A sample is longer than the budget of a batch. Got max_tokens={self.max_tokens}, and {number} of "
                f"{len(padded)} samples are longer; the longest is sample {longest} with {most} tokens. Pass "
                f"max_tokens={most} or more, or cut the samples off, in the dataset and in lengths."
            )


@dataclass(frozen=True, eq=False)
class _Layout:
    """The common parts of all epochs: the samples of each bucket, and the ends of batches.

    Attributes:
        samples: The samples, bucket after bucket, shorter samples first.
        bucket_ends: The end of each bucket in ``samples``.
        batch_ends: The end of each batch in ``samples``.
    """

    samples: Tensor
    bucket_ends: Tensor
    batch_ends: Tensor

    @cached_property
    def bucket_sizes(self) -> Tensor:
        """The number of samples in each bucket."""
        return self.bucket_ends.diff(prepend=torch.zeros(1, dtype=torch.int64))


class _TokenBudgetEpoch(ChunkedEpoch):
    algorithm = TokenBudget.name

    def __init__(self, layout: _Layout, *, seed: int, epoch: int) -> None:
        super().__init__(len(layout.samples), seed=seed, epoch=epoch)
        self._layout = layout

    @cached_property
    def _order_of_batches(self) -> Tensor:
        generator = torch.Generator().manual_seed(extend_key(self._key, _BATCHES))
        return torch.randperm(len(self._layout.batch_ends), generator=generator)

    @cached_property
    def _batch_ends(self) -> Tensor:
        sizes = self._layout.batch_ends.diff(prepend=torch.zeros(1, dtype=torch.int64))
        return sizes[self._order_of_batches].cumsum(0)

    @property
    @override
    def batch_ends(self) -> Tensor:
        """The positions after the last sample of each batch."""
        return self._batch_ends

    @override
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        start = position - position % _CHUNK
        positions = torch.arange(start, min(start + _CHUNK, self.num_samples))
        batches = torch.searchsorted(self._batch_ends, positions, right=True)
        # how far it is to the end of its batch is the same here as in the layout
        rest_of_batch = self._batch_ends[batches] - positions
        places = self._layout.batch_ends[self._order_of_batches[batches]] - rest_of_batch
        buckets = torch.searchsorted(self._layout.bucket_ends, places, right=True)
        begins = (self._layout.bucket_ends - self._layout.bucket_sizes)[buckets]
        sizes, keys = self._layout.bucket_sizes[buckets], extend_keys(self._key, buckets)
        return start, self._layout.samples[permutations(sizes, keys).of(places - begins) + begins].long()


def _grid(most: int, multiple: int, growth: float) -> list[int]:
    """Return lengths that grow geometrically, in multiples of a number, up to ``most``."""
    edges = [multiple]
    while edges[-1] < most:
        grown = -int(-(edges[-1] * growth) // multiple) * multiple
        edges.append(min(most, max(edges[-1] + multiple, grown)))
    return edges


def _join(grid: Sequence[int], counts: Sequence[int], max_tokens: int) -> list[int]:
    """Return the longest length of each bucket; no bucket is empty.

    Args:
        grid: The longest length of each cell of the grid.
        counts: The number of samples in each cell.
        max_tokens: The size of a batch.
    """
    edges: list[int] = []
    num_cells = num_samples = 0
    for edge, count in zip(grid, counts, strict=True):
        num_samples += count
        num_cells += num_samples > 0
        if num_samples * edge >= _MIXED_BATCHES * max_tokens or num_cells == _MOST_CELLS:
            edges.append(edge)
            num_cells = num_samples = 0
    if num_samples > 0:
        edges.append(grid[-1])
    return edges


def _cut(bucket_ends: Sequence[int], capacities: Sequence[int]) -> Tensor:
    """Cut the samples, bucket after bucket, into batches as large as their longest sample allows.

    The rest of a bucket is joined with samples of the next bucket, as long as their capacity allows it.

    Args:
        bucket_ends: The end of each bucket.
        capacities: The largest number of samples in a batch whose longest sample is in the bucket.
    """
    parts: list[Tensor] = []
    begin = first = 0  # of the bucket, and of the batch that is not full yet
    for end, capacity in zip(bucket_ends, capacities, strict=True):
        if begin - first >= capacity:
            parts.append(torch.tensor([begin]))
            first = begin
        full = (end - first) // capacity
        ends = first + capacity * torch.arange(1, full + 1)
        first += capacity * full
        parts.append(ends)
        begin = end
    if first < begin:
        parts.append(torch.tensor([begin]))
    return torch.cat(parts)
