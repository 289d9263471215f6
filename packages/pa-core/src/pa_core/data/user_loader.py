"""Loaders whose order is the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from pa_core.data.slice import DataLoaderSlice

__all__ = ["innermost", "plain_dataloader"]


def plain_dataloader(dataset: Dataset[Any], kwargs: Mapping[str, Any]) -> DataLoader[Any]:
    """Create a ``DataLoader`` with a sampler of the user's own, or over an ``IterableDataset``.

    Args:
        dataset: The samples.
        kwargs: Arguments of ``DataLoader``. Those that it refuses beside a sampler, a batch sampler or an iterable
            dataset, and that the trainer adds to every loader, are left out.
    """
    excluded: set[str] = set()
    if isinstance(dataset, IterableDataset) or kwargs.get("sampler") is not None:
        excluded |= {"shuffle"}
    if kwargs.get("batch_sampler") is not None:
        excluded |= {"batch_size", "shuffle", "sampler", "drop_last"}
    return DataLoader(dataset, **{key: value for key, value in kwargs.items() if key not in excluded})


def innermost(loader: object) -> object:
    """Return the loader inside any number of ``DataLoaderSlice``."""
    while isinstance(loader, DataLoaderSlice):
        loader = loader.wrapped
    return loader
