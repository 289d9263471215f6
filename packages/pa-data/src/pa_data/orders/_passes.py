"""An epoch with a fixed number of samples from each of several sources, gone through one pass after the other."""

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
    """Which samples of a dataset each source has, and how many of them an epoch takes.

    Args:
        sizes: The number of samples of each source, int64.
        counts: How many samples of it an epoch takes, int64.
        table: The samples of the first source, then the samples of the second, and so on; None where the dataset has
            them in this order.
        names: The names of the sources whose shares are reported; empty for none.
    """

    def __init__(self, sizes: Tensor, counts: Tensor, table: Tensor | None = None, names: tuple[str, ...] = ()) -> None:
        self.sizes = sizes
        self.counts = counts
        self.names = names
        self._table = table
        self._firsts = sizes.cumsum(0) - sizes

    def samples(self, sources: Tensor, numbers: Tensor, key: int) -> Tensor:
        """Return the index of the samples with these numbers, counted from the beginning of the run in each source.

        Each pass over a source is its own permutation, so no sample comes again before all others have come.
        """
        sizes = self.sizes[sources]
        keys = extend_keys(extend_keys(key, sources), numbers // sizes)
        places = self._firsts[sources] + permutations(sizes, keys).of(numbers % sizes)
        return places if self._table is None else self._table[places]


class EpochOfSources(ChunkedEpoch):
    """Takes the next samples of each source, where the epoch before it ended.

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
        if not self._sources.names or stop == 0:
            return {}
        taken = self._interleaving.taken(stop)
        return {name: int(number) / stop for name, number in zip(self._sources.names, taken, strict=True)}
