"""Checks of fetching: data that it changes, samples that are never fetched, and random draws that are repeated."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler

from pa_data.rng import mix, seed_rng
from pa_preflight._findings import Finding, noticed
from pa_preflight._samples import Job, Samples, is_loader
from pa_preflight._tensors import tensors_in

_LONGER, _LONGEST = 4, 1 << 24

_DRAWS, _FEW_DISTINCT = 100_000, 0.2

_NUMBERS, _PARALLEL = 8, 0.999

_POSITIONS = 2


def check_fetching(job: Job) -> Iterator[Finding]:
    """Yield findings about how samples are fetched.

    Args:
        job: The run.
    """
    train = job.train
    dataset, (batch_size, collate_fn) = train.dataset, job.batches(train)
    if dataset is None or len(dataset) < _POSITIONS:
        return
    yield from _check_sampler(train, job.options)
    yield from _check_collation(train, collate_fn)
    if type(dataset).__module__.startswith("torch."):
        return
    yield from _check_stored(dataset)
    yield from _check_length(dataset, batch_size)
    yield from _check_draws(dataset)


def _numbers(sample: Any) -> list[Tensor]:
    """Return the tensors and arrays of a sample, which share the memory of the sample."""
    parts = cast("list[Any]", sample) if isinstance(sample, (list, tuple)) else [sample]
    arrays: list[Tensor] = [
        torch.as_tensor(part) for part in parts if hasattr(part, "__array_interface__") and part.ndim
    ]
    return [
        tensor for tensor in (*tensors_in(sample), *arrays) if tensor.numel() >= _NUMBERS and tensor.is_floating_point()
    ]


def _fetched(dataset: Any, position: int, seed: int) -> list[Tensor]:
    seed_rng(mix(seed))
    return _numbers(dataset[position])


def _check_stored(dataset: Any) -> Iterator[Finding]:
    """Fetch samples again with the same random numbers: if the samples change each time, so do the stored data."""
    for position in range(_POSITIONS):
        kept = _fetched(dataset, position, 1)
        once = [tensor.clone() for tensor in kept]
        twice = [tensor.clone() for tensor in _fetched(dataset, position, 1)]
        thrice = _fetched(dataset, position, 1)
        shared = any(
            bool((before != now).any()) for before, now in zip(once, kept, strict=True) if before.shape == now.shape
        )
        if shared or any(map(_goes_on, once, twice, thrice)):
            yield noticed(
                "stored-data-change",
                f"Fetching sample {position} again changes the sample fetched before: the dataset modifies its data in "
                "place, so they drift with every epoch.",
                "Copy a sample before you augment it: clone() a tensor, copy() an array, and avoid +=.",
            )
            return


def _goes_on(once: Tensor, twice: Tensor, thrice: Tensor) -> bool:
    if not once.shape == twice.shape == thrice.shape:
        return False
    first, second = (twice - once).double().flatten(), (thrice - twice).double().flatten()
    product = float((first * first).sum() * (second * second).sum()) ** 0.5
    return bool(product > 0 and float((first * second).sum()) > _PARALLEL * product)


def _check_length(dataset: Any, batch_size: int) -> Iterator[Finding]:
    """Look for samples beyond the length of the dataset, up to an index that raises an error."""
    length = len(dataset)

    def exists(position: int) -> bool:
        try:
            seed_rng(0)
            dataset[position]
        except Exception:
            return False
        return True

    if not exists(length):
        return
    low, high = length, 2 * length
    while exists(high):
        low, high = high, 2 * high
        if high > _LONGEST:
            return  # every index has a sample
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    in_batches = length > 1 and length in {high // batch_size, -(-high // batch_size)}
    shapes = [[tensor.shape for tensor in tensors_in(dataset[position])] for position in (0, high - 1)]
    if shapes[0] == shapes[1] and (in_batches or high >= _LONGER * length):
        yield noticed(
            "samples-never-used",
            f"The dataset returns {high} samples, but its length is {length}: samples from position {length} on are "
            "never used." + (f" The length is the number of batches of {batch_size}." if in_batches else ""),
            "Let __len__ return the number of samples.",
        )


def _check_sampler(train: Samples, options: Mapping[str, Any]) -> Iterator[Finding]:
    loader: Any = cast("object", train.data) if is_loader(train.data) else None
    sampler: Any = options.get("sampler") if loader is None else loader.sampler
    size = len(cast("Sized", train.dataset))
    if sampler is None or type(sampler) in {RandomSampler, SequentialSampler}:
        return
    if isinstance(sampler, WeightedRandomSampler) and len(sampler.weights) < size:
        yield noticed(
            "sampler-leaves-samples-out",
            f"The sampler has {len(sampler.weights)} weights for {size} samples: it never draws the samples after "
            "them.",
            "Give it a weight for each sample, such as class_weights[targets].",
        )
        return
    drawn: list[Any] = list(islice(iter(sampler), _DRAWS))
    if not all(isinstance(position, int) for position in drawn):
        return
    distinct = len(set(drawn))
    if len(drawn) >= size / 2 and distinct < _FEW_DISTINCT * size:
        yield noticed(
            "sampler-leaves-samples-out",
            f"In an epoch of {len(drawn)} samples, the sampler draws only {distinct} of the {size} samples, each many "
            "times.",
            "Give it a weight for each sample, and check which weights are 0.",
            "warning",
        )


def _check_collation(train: Samples, collate_fn: Callable[[list[Any]], Any] | None) -> Iterator[Finding]:
    """Compare the rows of a batch with single samples: each row must have the inputs and the target of a sample."""
    if collate_fn is None or len(train.samples) < _NUMBERS:
        return
    try:
        batch, *singles = (tensors_in(collate_fn(some)) for some in (train.samples[:_NUMBERS], *_one_by_one(train)))
    except Exception:  # a collate_fn that requires a certain batch size
        return
    sizes = {len(tensor) if tensor.dim() else 0 for tensor in batch}
    if len(batch) < _POSITIONS or sizes != {_NUMBERS} or any(len(single) != len(batch) for single in singles):
        return
    rows: list[list[bool]] = [[], []]
    for number, parts in ((0, (0,)), (1, (0, -1))):
        for row in range(_NUMBERS):
            same = (all(_begins_alike(batch[part][row], single[part][0]) for part in parts) for single in singles)
            rows[number].append(any(same))
    have_targets = all(
        any(_begins_alike(batch[-1][row], single[-1][0]) for single in singles) for row in range(_NUMBERS)
    )
    if all(rows[0]) and have_targets and not all(rows[1]):
        yield noticed(
            "batches-mix-samples",
            f"In a batch of {_NUMBERS} samples, {rows[1].count(False)} have the inputs of a sample and the target of "
            "another.",
            "Look at collate_fn: if it sorts or filters samples, it must do so before it separates inputs and targets.",
        )


def _one_by_one(train: Samples) -> list[list[Any]]:
    return [[sample] for sample in train.samples[:_NUMBERS]]


def _begins_alike(row: Tensor, single: Tensor) -> bool:
    """Whether a row is this sample, perhaps with padding after it."""
    if row.dim() != single.dim() or row.shape[1:] != single.shape[1:]:
        return False
    if row.dim():
        shortest = min(len(row), len(single))
        row, single = row[:shortest], single[:shortest]
    return bool((row == single).all())


def _check_draws(dataset: Any) -> Iterator[Finding]:
    """Look for random number generators that get the same seed whenever a sample is fetched."""
    seeded: list[str] = []

    def note(_frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and getattr(argument, "__name__", "") in {"manual_seed", "default_rng", "RandomState"}:
            seeded.append(argument.__name__)
        elif event == "call" and _frame.f_code is random.Random.seed.__code__:
            seeded.append("random.Random")

    seed_rng(mix(1))
    first = _numbers(_watched(note, lambda: dataset[0]))
    if not seeded or not first:
        return
    second = _fetched(dataset, 0, 2)
    has_stored = any(
        isinstance(value, Sized) and not isinstance(value, (str, Mapping)) and len(value) >= len(dataset)
        for value in cast("dict[str, object]", getattr(dataset, "__dict__", {})).values()
        if not isinstance(value, Tensor) or value.dim()
    )
    if has_stored and len(first) == len(second) and all(map(torch.equal, first, second)):
        yield noticed(
            "augmentation-repeats",
            "The dataset makes a random number generator with the same seed whenever it returns a sample, so the "
            "augmentation of a sample is the same in all epochs.",
            "Leave seeding to the trainer, which gives each sample and epoch its own random numbers.",
            "warning",
        )


def _watched(note: Callable[[Any, str, Any], None], fetch: Callable[[], Any]) -> Any:
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        return fetch()
    finally:
        sys.setprofile(before)
