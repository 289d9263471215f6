"""Checking that all processes have the same dataset, by a few of its samples."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset

from pa_core.data.custom_loader import length_of
from pa_core.distributed import gather_objects
from pa_core.errors import RanksDifferError
from pa_data.digests import digest_samples

_MOST_SHOWN = 4


def require_same_samples(loader: DataLoader[Any]) -> None:
    """Raise an error if the first, middle and last samples of a dataset differ on all processes.

    Every process must call this. It fetches the samples three times, so that values that a dataset draws from its own
    generator are left out.

    Args:
        loader: A loader that is divided over the processes.

    Raises:
        RanksDifferError: None of these samples is the same on all processes.
    """
    kind = type(loader.dataset).__name__
    differing = [_first_difference(of_each) for of_each in zip(*gather_objects(_digests(loader)), strict=False)]
    if not differing or None in differing:
        return
    raise RanksDifferError(
        f"The processes of this run do not have the same dataset: sample 0 of {kind}: {differing[0]}. Pass the "
        "whole dataset on each process: the trainer divides it. A script that draws for it, as in random_split, "
        "needs a seed: torch.manual_seed(0). A DataLoader of the share of its process is not divided if you set "
        f"{kind}.own_share = True. If all have the same samples after all, pass own_share=False among the arguments "
        "for the loader."
    )


def _digests(loader: DataLoader[Any]) -> list[dict[str, str]]:
    if isinstance(loader.dataset, IterableDataset) or not length_of(loader.dataset):
        return []
    last = len(cast("Sized", loader.dataset)) - 1
    return digest_samples(loader, sorted({0, last // 2, last}))


def _first_difference(of_each: Sequence[dict[str, str]]) -> str | None:
    """Describe the first difference between the digests of a sample on the processes; None if they are equal."""
    for place in of_each[0]:
        texts = [digests[place] for digests in of_each if place in digests]
        if len(texts) == len(of_each) and len(set(texts)) > 1:
            shown = ", ".join(f"{text:.60} on rank {rank}" for rank, text in enumerate(texts[:_MOST_SHOWN]))
            return f"{place} {shown}".strip()
    return None
