"""An epoch with a fixed number of samples of each of several sources, each visited in consecutive passes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from pa_data.orders._epoch_order import ChunkedEpoch
from pa_data.orders._interleaving import Interleaving
from pa_data.orders._keyed_numbers import extend_keys
from pa_data.orders._permutation import permutations
from pa_data.rng import extend_key, mix

__all__ = ["EpochOfSources", "SourcesOfSamples"]

_INTERLEAVING = -4  # extends the key of an epoch
_PASSES = -5  # extends the seed


class SourcesOfSamples:
    """The samples of each source in a dataset, and how many of them an epoch visits.

    Args:
        sizes: The number of samples of each source, as int64.
        counts: How many samples of each source an epoch visits, as int64.
        table: The samples of the first source, then the samples of the second, and so on; None if the dataset has them
            in this order.
        names: The names of the sources whose shares are reported; empty for none.
    """

    def __init__(self, sizes: Tensor, counts: Tensor, table: Tensor | None = None, names: tuple[str, ...] = ()) -> None:
        self.sizes = sizes
        self.counts = counts
        self.names = names
        self._table = table
        self._firsts = sizes.cumsum(0) - sizes

    def samples(self, sources: Tensor, numbers: Tensor, key: int) -> Tensor:
        """Return the indices of samples by their numbers, counted in each source from the beginning of the run.

        Each pass through a source is a separate permutation, so all samples come before any of them is repeated.
        """
        sizes = self.sizes[sources]
        keys = extend_keys(extend_keys(key, sources), numbers // sizes)
        places = self._firsts[sources] + permutations(sizes, keys).of(numbers % sizes)
        return places if self._table is None else self._table[places]


class EpochOfSources(ChunkedEpoch):
    """Visits the next samples of each source, from the end of the previous epoch on.

    Args:
        sources: The samples of each source.
        seed: The seed of the run.
        epoch: The number of the epoch.
    """

    repeats = True

    def __init__(self, sources: SourcesOfSamples, *, seed: int, epoch: int) -> None:
        super().__init__(int(sources.counts.sum()), seed=seed, epoch=epoch)
        self._sources = sources
        self._interleaving = Interleaving(sources.counts, extend_key(self._key, _INTERLEAVING))
        self._passes_key = mix(seed, _PASSES)
        self._done = sources.counts * epoch

    @override
    def chunk_at(self, position: int) -> tuple[int, Tensor]:
        stretch = self._interleaving.stretch_at(position)
        numbers = self._done[stretch.sources] + stretch.numbers
        return stretch.start, self._sources.samples(stretch.sources, numbers, self._passes_key)

    @override
    def shares(self, stop: int) -> Mapping[str, float]:
        self._require_positions(0, stop)
        if not self._sources.names or stop == 0:
            return {}
        taken = self._interleaving.taken(stop)
        return {name: int(number) / stop for name, number in zip(self._sources.names, taken, strict=True)}
