"""What pa-data's loader costs, compared with torchdata's `StatefulDataLoader` and torch's own `DataLoader`.

Runs as ``python -m benchmarks.loaders FIGURE ... SAMPLES WORKERS``, all variants in turn but for ``memory``:

- ``clock KIND``: microseconds of a sample, over whole epochs, of ``tensors`` in memory or of ``rows`` of JSON that
  Python parses. ``processor KIND``: the processor time of it, with that of the workers.
- ``resume PLACE``: milliseconds from making the loader to the first batch after the ``middle`` or at the ``end`` of an
  epoch.
- ``state``: the bytes of a state from the middle of an epoch, pickled.
- ``keys``: microseconds of a sample and of a batch, without keyed draws and with them. A batch costs so much for each
  sample, which is what a worker pays, and something once, for putting the streams of the main process back: the two are
  told apart by batches of two sizes.
- ``memory``, followed by the variant: MiB of all workers then. What processes share is divided among them.

The other loaders do not seed what a sample draws: *ours unkeyed* does the same work.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]  # has no annotations
from typing_extensions import override

from benchmarks.processes import in_turn, publish
from pa_data import KeyedDataLoader

BATCH_SIZE, ROUNDS = 32, 7
WIDTH = 16

Loader: TypeAlias = DataLoader[Any]
Resumable: TypeAlias = "StatefulDataLoader[Any] | KeyedDataLoader[Any]"


class Rows(Dataset[Tensor]):
    """Texts that Python makes numbers of, which takes about 60 microseconds each."""

    def __init__(self, samples: int) -> None:
        self._rows: list[str] = [json.dumps([index + number / 7 for number in range(100)]) for index in range(samples)]

    def __len__(self) -> int:
        return len(self._rows)

    @override
    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(json.loads(self._rows[index]))


class Ready(Dataset[Tensor]):
    """Samples that are there already, one by one."""

    def __init__(self, samples: int) -> None:
        self._samples: list[Tensor] = list(torch.zeros(samples, 1))

    def __len__(self) -> int:
        return len(self._samples)

    @override
    def __getitem__(self, index: int) -> Tensor:
        return self._samples[index]


def tensors(samples: int) -> Dataset[Any]:
    """Samples in memory, which tell their number."""
    return TensorDataset(torch.arange(samples).repeat(WIDTH, 1).T.contiguous())


def torchdata(dataset: Dataset[Any], workers: int) -> StatefulDataLoader[Any]:
    """As torchdata documents it: shuffling is by a sampler of its own, which has a state."""
    return StatefulDataLoader(
        dataset, BATCH_SIZE, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(0)
    )


def plain(dataset: Dataset[Any], workers: int) -> Loader:
    """Torch's own, which does not resume."""
    return DataLoader(
        dataset, BATCH_SIZE, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(0)
    )


def ours(dataset: Dataset[Any], workers: int) -> KeyedDataLoader[Any]:
    """As it is by default: what a sample draws is keyed by its index."""
    return KeyedDataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=workers)


def ours_unkeyed(dataset: Dataset[Any], workers: int) -> KeyedDataLoader[Any]:
    """Leaving the RNGs alone, as the others do."""
    return KeyedDataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=workers, keyed_augmentation=False)


RESUMABLE: Mapping[str, Callable[[Dataset[Any], int], Resumable]] = {"torchdata": torchdata, "ours": ours}
VARIANTS: Mapping[str, Callable[[Dataset[Any], int], Loader]] = {
    "torchdata": torchdata,
    "torch": plain,
    "ours": ours,
    "ours_unkeyed": ours_unkeyed,
}


def position_at(place: str, samples: int) -> int:
    """Where the last batch of an epoch begins, or one in the middle."""
    return {"middle": samples // 2, "end": samples - 1}[place] // BATCH_SIZE * BATCH_SIZE


def state_after(loader: Resumable, position: int) -> dict[str, Any]:
    """The state of a loader that has yielded so many samples."""
    if isinstance(loader, KeyedDataLoader):
        loader.start_epoch(0, position)
        return dict(loader.state_dict())
    loader.collate_fn = len  # no batch is looked at, so that workers need not send any
    for _ in itertools.islice(loader, position // BATCH_SIZE):
        pass
    state: dict[str, Any] = loader.state_dict()
    return state


def processor_time() -> float:
    """Seconds of this process, and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def microseconds_of_sample(make: Callable[[], Loader], clock: Callable[[], float], samples: int) -> float:
    """Of an epoch."""
    loader = make()
    start = clock()
    for _ in loader:
        pass
    return (clock() - start) / samples * 1e6


def milliseconds_to_resume(make: Callable[[], Resumable], state: dict[str, Any]) -> float:
    """From making the loader to its first batch."""
    start = time.perf_counter()
    loader = make()
    loader.load_state_dict(state)
    next(iter(loader))
    return (time.perf_counter() - start) * 1e3


def mebibytes_of_workers(loader: Loader, batches: int) -> float:
    """After so many batches, while the workers wait for what comes next."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return sum(_proportional_share(process.pid) for process in multiprocessing.active_children()) / 2**20


def _proportional_share(pid: int | None) -> int:
    """The memory of a process in bytes, of which what several share counts in part (PSS)."""
    found = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def compare_samples(clock: Callable[[], float], kind: str, samples: int, workers: int) -> dict[str, float]:
    """Microseconds of a sample."""
    dataset = Rows(samples) if kind == "rows" else tensors(samples)
    variants = {
        name: partial(microseconds_of_sample, partial(make, dataset, workers), clock, samples)
        for name, make in VARIANTS.items()
    }
    return in_turn(variants, ROUNDS)


def compare_resuming(place: str, samples: int, workers: int) -> dict[str, float]:
    """Milliseconds to the first batch."""
    dataset = tensors(samples)
    position = position_at(place, samples)
    variants = {
        name: partial(
            milliseconds_to_resume, partial(make, dataset, workers), state_after(make(dataset, workers), position)
        )
        for name, make in RESUMABLE.items()
    }
    return in_turn(variants, ROUNDS)


def compare_states(samples: int, workers: int) -> dict[str, float]:
    """Bytes of a state in mid-epoch."""
    dataset, position = tensors(samples), position_at("middle", samples)
    return {name: len(pickle.dumps(state_after(make(dataset, workers), position))) for name, make in RESUMABLE.items()}


def compare_keys() -> None:
    """Publish the microseconds of a sample, and of a batch beside its samples."""
    samples, small, large, names = 2048, 8, 64, ("plain", "keyed")
    dataset = Ready(samples)

    def microseconds_of_batch(size: int, *, keyed: bool) -> float:
        loader = partial(KeyedDataLoader[Tensor], dataset, size, keyed_augmentation=keyed)
        return size * microseconds_of_sample(loader, time.perf_counter, samples)

    variants = {
        f"{name} {size}": partial(microseconds_of_batch, size, keyed=name == "keyed")
        for name in names
        for size in (small, large)
    }
    times = in_turn(variants, rounds=15)
    of_sample = {name: (times[f"{name} {large}"] - times[f"{name} {small}"]) / (large - small) for name in names}
    publish("a_sample", **of_sample)
    publish("a_batch", **{name: times[f"{name} {small}"] - small * of_sample[name] for name in names})


def main(figure: str, *arguments: str) -> None:
    """Publish the medians."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    match figure, *arguments:
        case "clock" | "processor", kind, samples, workers:
            clock = time.perf_counter if figure == "clock" else processor_time
            publish(**compare_samples(clock, kind, int(samples), int(workers)))
        case "resume", place, samples, workers:
            publish(**compare_resuming(place, int(samples), int(workers)))
        case "state", samples, workers:
            publish(**compare_states(int(samples), int(workers)))
        case ("keys",):
            compare_keys()
        case "memory", samples, workers, variant:
            loader = VARIANTS[variant](tensors(int(samples)), int(workers))
            publish(**{variant: mebibytes_of_workers(loader, position_at("middle", int(samples)) // BATCH_SIZE)})
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
