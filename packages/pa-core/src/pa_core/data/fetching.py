"""Making one batch from the indices of its samples, in this process or in a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core.data.keyed_random import seed_streams
from pa_core.data.order import extend_key, index_list
from pa_core.data.sample_notes import describe_collation, describe_samples
from pa_core.data.whole_batch import fetch_batch

__all__ = [
    "BatchFetcher",
    "BatchRequest",
    "SampleFetcher",
    "WholeBatchFetcher",
    "WorkerDataset",
]

BatchRequest: TypeAlias = tuple[int, list[int]]
"""What a worker is sent: the key of the epoch and the indices of the samples.

The epoch travels with every batch, so workers that live for several epochs never draw from an old one.
"""


class BatchFetcher(Protocol):
    """Makes the batch of some samples."""

    def __call__(self, key: int, indices: Tensor) -> Any:
        """Return the batch of the samples at ``indices`` in the epoch with this key."""
        ...


@dataclass(frozen=True)
class SampleFetcher:
    """Asks the dataset for one sample after the other and collates them.

    Attributes:
        dataset: The dataset.
        collate_fn: Makes a batch of the samples.
        keyed: Whether the random streams are seeded for each sample. What ``collate_fn`` draws follows on the
            stream of the last sample of the batch.
    """

    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any]
    keyed: bool

    def __call__(self, key: int, indices: Tensor) -> Any:
        """Return the batch of the samples at ``indices`` in the epoch with this key."""
        chosen = index_list(indices)
        samples = self._samples(key, chosen)
        try:
            return self.collate_fn(samples)
        except Exception as error:
            error.add_note(describe_collation(self.dataset, chosen, samples))
            raise

    def _samples(self, key: int, chosen: list[int]) -> list[Any]:
        get_samples = None if self.keyed else getattr(self.dataset, "__getitems__", None)
        if get_samples is None:
            return [self._sample(key, index) for index in chosen]
        try:
            return cast("list[Any]", get_samples(chosen))
        except Exception as error:
            error.add_note(describe_samples(self.dataset, chosen))
            raise

    def _sample(self, key: int, index: int) -> Any:
        if self.keyed:
            seed_streams(extend_key(key, index))
        try:
            return self.dataset[index]
        except Exception as error:
            error.add_note(describe_samples(self.dataset, [index]))
            raise


@dataclass(frozen=True)
class WholeBatchFetcher:
    """Fetches all samples at once from a dataset that cannot draw, so it needs no key.

    Attributes:
        dataset: A dataset that `pa_core.data.can_fetch_batch` accepts.
    """

    dataset: Dataset[Any]

    def __call__(self, key: int, indices: Tensor) -> Any:
        """Return the batch of the samples at ``indices``."""
        try:
            return fetch_batch(self.dataset, indices)
        except Exception as error:
            error.add_note(describe_samples(self.dataset, index_list(indices)))
            raise


class WorkerDataset(Dataset[Any]):
    """What torch's workers index: each request gives a whole batch, collated already."""

    def __init__(self, fetcher: BatchFetcher, dataset: Dataset[Any]) -> None:
        self.fetcher = fetcher
        self.dataset = dataset

    @override
    def __getitem__(self, index: BatchRequest) -> Any:
        key, indices = index
        return self.fetcher(key, torch.tensor(indices))
