"""What is wrong with samples, before any batch is made."""

from __future__ import annotations

import hashlib
import pickle
import random
import time
from collections.abc import Callable, Iterator, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, Subset

from pa_data.rng import capture_rng_state, mix, seed_rng
from pa_preflight._findings import FILL_GAPS, Finding, noticed
from pa_preflight._observer import tensors_in

_SAMPLES = 500
_SECONDS = 5.0
_OVERLAP, _OWN_COPIES = 0.2, 0.05
_FEWEST = 20


class Samples:
    """Some samples of a dataset, and what there is to know of it.

    Args:
        data: A dataset, or a loader of one.

    Attributes:
        dataset: The dataset; None if its samples have no positions.
        samples: Samples from all over it.
    """

    def __init__(self, data: Any) -> None:
        self.data: Any = data
        dataset = _of_loader(data)
        has_positions = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")
        self.dataset: Any = dataset if has_positions and not isinstance(dataset, IterableDataset) else None
        size = 0 if self.dataset is None else len(self.dataset)
        self.positions = sorted(random.Random(0).sample(range(size), min(size, _SAMPLES)))
        self.samples: list[Any] = []
        until = time.monotonic() + _SECONDS
        for position in self.positions:
            seed_rng(mix(position))
            self.samples.append(cast("Any", dataset)[position])
            if time.monotonic() > until:
                break

    def batches(self, asked: dict[str, Any], options: dict[str, Any]) -> tuple[int, Callable[[list[Any]], Any] | None]:
        """Return the number of samples in a batch, and what makes a batch of them.

        Args:
            asked: The arguments of the run.
            options: The arguments of the loader.
        """
        if _is_loader(self.data):
            loader: Any = cast("object", self.data)
            return loader.batch_size or asked["per_device_batch_size"], loader.collate_fn
        return options.get("batch_size", asked["per_device_batch_size"]), options.get("collate_fn", asked["collate_fn"])

    def smallest_batch(self, asked: dict[str, Any], options: dict[str, Any]) -> int:
        """Return the number of samples of the smallest batch of an epoch, as far as it is known.

        Args:
            asked: The arguments of the run.
            options: The arguments of the loader.
        """
        size, _ = self.batches(asked, options)
        is_plain = not _is_loader(self.data) or not getattr(cast("object", self.data), "drop_last", False)
        is_plain &= asked["samples_per_update"] is None and asked["order"] is None and not options.get("drop_last")
        rest = len(self.dataset) % size if self.dataset is not None and is_plain and size else 0
        return rest or size

    def targets(self) -> Tensor | None:
        """The last part of the samples, if it is a number or a tensor of one shape."""
        if not self.samples or not all(isinstance(one, (tuple, list)) for one in self.samples):
            return None
        last: list[Any] = [one[-1] for one in self.samples]
        if all(isinstance(one, (int, float)) for one in last):
            return torch.tensor(last)
        are_alike = all(isinstance(one, Tensor) and one.shape == last[0].shape for one in last)
        return torch.stack(last) if are_alike else None


def _is_loader(data: object) -> bool:
    return isinstance(data, DataLoader)


def _of_loader(data: Any) -> Any:
    return getattr(cast("object", data), "dataset", None) if isinstance(data, DataLoader) else data


def check_samples(train: Samples, data: Any, options: dict[str, Any], *, is_torch_loss: bool) -> Iterator[Finding]:
    """Yield what is wrong with the training samples.

    Args:
        train: Some of them.
        data: The dataset or loader.
        options: The arguments of the loader.
        is_torch_loss: Whether the loss takes targets as they are.
    """
    if train.dataset is None or not train.samples:
        return
    if _reseeds(train.dataset):
        yield noticed(
            "augmentation-repeats",
            "Fetching a sample seeds the global random number generators, so that what is drawn afterwards is the "
            "same in each epoch, for augmentation and for dropout.",
            "Leave seeding to the trainer, which gives each sample and epoch its own random numbers.",
        )
    yield from _check_finite(train, is_torch_loss=is_torch_loss)
    targets = train.targets()
    is_in_order = options.get("shuffle") is False and "sampler" not in options
    if isinstance(data, DataLoader):
        is_in_order = isinstance(getattr(cast("object", data), "sampler", None), SequentialSampler)
    if is_in_order and targets is not None and targets.dim() == 1 and len(targets) >= _FEWEST:
        changes, classes = int((targets[1:] != targets[:-1]).sum()), len(set(map(float, targets)))
        if 1 < classes == changes + 1 < len(targets) / 4:
            yield noticed(
                "sorted-by-class",
                f"The samples are sorted by their target, {classes} classes one after the other, and are not shuffled.",
                "Leave out shuffle=False.",
            )


def _check_finite(train: Samples, *, is_torch_loss: bool) -> Iterator[Finding]:
    for position, sample in zip(train.positions, train.samples, strict=False):
        tensors = tensors_in(sample)
        for number, one in enumerate(tensors):
            if one.is_floating_point() and not bool(one.isfinite().all()):
                is_target = number == len(tensors) - 1 > 0
                yield noticed(
                    "targets-not-finite" if is_target else "inputs-not-finite",
                    f"Sample {position} of the training data has {'a target' if is_target else 'an input'} that is NaN "
                    "or infinite.",
                    FILL_GAPS,
                    "note" if is_target and not is_torch_loss else "mistake",
                )
                return


def _reseeds(dataset: Any) -> bool:
    states: list[dict[str, Any]] = []
    for seed in (1, 2):
        seed_rng(mix(seed))
        dataset[0]
        states.append(capture_rng_state(torch.device("cpu")))
    return any(repr(states[0][name]) == repr(states[1][name]) for name in ("python", "numpy")) or torch.equal(
        states[0]["torch"], states[1]["torch"]
    )


def check_evaluation_samples(train: Samples, evaluation: Samples, train_data: Any, data: Any) -> Iterator[Finding]:
    """Yield what is wrong with samples to evaluate.

    Args:
        train: Samples of the training data.
        evaluation: Samples to evaluate.
        train_data: The training data.
        data: The data to evaluate.
    """
    shared = _shared(train, evaluation, _of_loader(train_data), _of_loader(data))
    if shared:
        yield noticed(
            "same-samples-in-evaluation",
            f"{shared} of the samples to evaluate are among the training samples: the evaluation shows what was "
            "learnt by heart.",
            "Divide the samples, for example with torch.utils.data.random_split.",
        )
    dataset = evaluation.dataset
    if dataset is None or not evaluation.samples:
        return
    for position in evaluation.positions[:5]:
        found: list[str] = []
        for seed in (1, 2):
            seed_rng(mix(seed))
            found.append(_digest(dataset[position]))
        if found[0] != found[1]:
            yield noticed(
                "augmentation-in-evaluation",
                f"Sample {position} of the data to evaluate is another one each time it is fetched.",
                "Give the evaluation a dataset without random augmentation.",
            )
            return


def _shared(train: Samples, evaluation: Samples, train_set: Any, other: Any) -> str | None:
    if train_set is other:
        return "All"
    train_base, base = (getattr(cast("object", one), "dataset", None) for one in (train_set, other))
    if train_base is not None and train_base is base:
        shared = set(train_set.indices) & set(other.indices)
        if shared:
            return f"{len(shared)} of {len(other.indices)}"
    if base is train_set:
        return "All"
    if train.dataset is None or not evaluation.samples:
        return None
    wanted = [_digest(one) for one in evaluation.samples]
    known: list[str] = []
    until = time.monotonic() + _SECONDS
    for position in range(len(train.dataset)):
        seed_rng(mix(position))
        known.append(_digest(train.dataset[position]))
        if time.monotonic() > until:
            break
    among = set(known)
    number = sum(digest in among for digest in wanted)
    has_copies = len(among) < (1 - _OWN_COPIES) * len(known)
    if number < _OVERLAP * len(wanted) or (has_copies and not _is_continuous(evaluation.samples[0])):
        return None  # samples that are alike by chance
    return f"{number} of {len(wanted)}"


def _is_continuous(sample: Any) -> bool:
    """Whether two samples are hardly equal by chance, as they have several numbers that are not whole."""
    numbers = torch.cat(
        [one.flatten().double() for one in tensors_in(sample) if one.is_floating_point()] or [torch.empty(0)]
    )
    return int((numbers != numbers.round()).sum()) >= 3  # noqa: PLR2004  # digits enough


def _digest(sample: Any) -> str:
    tensors = tensors_in(sample)
    digest = hashlib.sha256()
    for one in tensors:
        digest.update(repr((one.shape, one.dtype)).encode())
        flat = one.detach().cpu().contiguous().as_strided((one.numel(),), (1,))  # one element has any stride
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    if not tensors:
        digest.update(pickle.dumps(sample))
    return digest.hexdigest()


def subset(data: Dataset[Any], size: int) -> Dataset[Any]:
    """Return the first samples of a dataset.

    Args:
        data: One with positions.
        size: How many, or fewer if there are not so many.
    """
    return Subset(data, range(min(size, len(cast("Sized", data)))))


def spread(data: Dataset[Any], batches: int, size: int) -> Dataset[Any]:
    """Return samples from all over a dataset, as neighbours may differ little: as many as make some batches.

    Args:
        data: One with positions.
        batches: How many batches, or fewer if there are not so many samples.
        size: The number of samples in a batch.
    """
    length = len(cast("Sized", data))
    count = min(length, batches * size)
    positions = [number * length // count for number in range(count)]
    return Subset(data, [one for first in range(batches) for one in positions[first::batches]])
