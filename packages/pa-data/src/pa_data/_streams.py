"""Streams with a length, which are read forwards so that their samples can be found by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any, cast

from torch.utils.data import Dataset, IterableDataset

from pa_data._sample_notes import describe_samples
from pa_data.errors import DataError
from pa_data.rng import extend_key, seed_rng

__all__ = ["SizedStream"]

_ITERATOR, _COLLATION = -3, -4  # extend the key of an epoch where no position does
_END = object()


class SizedStream(Dataset[Any]):
    """A stream as each process and worker reads it: completely, keeping only its own samples.

    The random numbers of a sample depend on its position, even if this process does not keep it, so a stream that
    shuffles does so in the same way everywhere.

    Args:
        dataset: A stream with a length.
        keyed: Whether the random number generators are seeded for each sample.

    Attributes:
        dataset: The stream.
    """

    def __init__(self, dataset: IterableDataset[Any], *, keyed: bool) -> None:
        self.dataset: IterableDataset[Any] = dataset
        self._keyed = keyed
        self._key: int | None = None
        self._reading: Iterator[Any] = iter(())
        self._next = 0
        self._kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(cast("Sized", self.dataset))

    def read(self, key: int, positions: Sequence[int], ahead: range) -> list[Any]:
        """Return the samples at consecutive positions, after the samples of the previous batch.

        Args:
            key: The key of the epoch. With a different key, or for positions that were passed, the stream begins again.
            positions: The positions of the samples.
            ahead: A range: samples before its start are kept for later batches; samples before its stop are read now.

        Raises:
            DataError: The stream has fewer samples than its length, or has more and is read to its end.
        """
        first, after = positions[0], positions[-1] + 1
        if key != self._key or (first < self._next and first not in self._kept):
            self._begin(key)
        length = len(self)
        for position in range(self._next, min(max(after, ahead.stop), length + 1)):
            sample = self._read_next(position, length)
            if first <= position < max(after, ahead.start):
                self._kept[position] = sample
        samples = [self._kept[position] for position in positions]
        self._kept = {position: sample for position, sample in self._kept.items() if position >= after}
        self._seed(_COLLATION, after)
        return samples

    def _begin(self, key: int) -> None:
        self._key, self._next = key, 0
        self._kept.clear()
        self._seed(_ITERATOR)
        self._reading = iter(self.dataset)

    def _read_next(self, position: int, length: int) -> Any:
        """Read the sample at a position; after the last sample, there must be none."""
        self._seed(position)
        try:
            sample = next(self._reading, _END)
        except Exception as error:
            error.add_note(describe_samples(self.dataset, [position]))
            raise
        if (sample is _END) != (position == length):
            kind = type(self.dataset).__name__
            raise DataError(
                "A stream yielded a different number of samples than its length. Got "
                f"{position if sample is _END else f'more than {length}'} samples of {kind}, whose length is "
                f"{length}. Let __len__ return how many samples it yields each time it is iterated over, on each "
                "process and in each worker: they are divided by position, and the stream itself must not divide "
                "them."
            )
        self._next = position + 1
        return sample

    def _seed(self, *place: int) -> None:
        if self._keyed:
            key = cast("int", self._key)
            for number in place:
                key = extend_key(key, number)
            seed_rng(key)
