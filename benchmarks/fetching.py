"""What keyed draws cost: microseconds of fetching in this process, of a sample and of a batch, without keys and with.

Runs as ``python -m benchmarks.fetching``. A batch costs so much for each of its samples, which is what a
worker pays, and something once, for putting the streams of the main process back: the two are told apart by batches
of two sizes.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from benchmarks.processes import in_turn, publish
from pa_core.data import KeyedDataLoader

SAMPLES, SMALL, LARGE, ROUNDS = 2048, 8, 64, 15


class Ready(Dataset[Tensor]):
    """Samples that are there already."""

    def __init__(self) -> None:
        self._samples: list[Tensor] = list(torch.zeros(SAMPLES, 1))

    def __len__(self) -> int:
        return SAMPLES

    @override
    def __getitem__(self, index: int) -> Tensor:
        return self._samples[index]


def microseconds_of_batch(loader: KeyedDataLoader[Tensor]) -> float:
    """Of one batch, over an epoch."""
    start = time.perf_counter()
    batches = sum(1 for _ in loader)
    return (time.perf_counter() - start) / batches * 1e6


def main() -> None:
    """Publish the cost without keys and with them."""
    torch.set_num_threads(1)
    loaders = {
        f"{name} {size}": KeyedDataLoader(Ready(), size, keyed_augmentation=keyed)
        for name, keyed in {"plain": False, "keyed": True}.items()
        for size in (SMALL, LARGE)
    }
    times = in_turn({name: partial(microseconds_of_batch, loader) for name, loader in loaders.items()}, ROUNDS)
    names = ("plain", "keyed")
    of_sample = {name: (times[f"{name} {LARGE}"] - times[f"{name} {SMALL}"]) / (LARGE - SMALL) for name in names}
    publish("a_sample", **of_sample)
    publish("a_batch", **{name: times[f"{name} {SMALL}"] - SMALL * of_sample[name] for name in names})


if __name__ == "__main__":
    main()
