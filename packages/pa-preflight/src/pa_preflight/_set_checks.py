"""Checks of training and evaluation samples: the properties and samples that both sets must share, or must not."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from pa_data.rng import mix, seed_rng
from pa_preflight._findings import Finding, noticed
from pa_preflight._samples import Samples, dataset_of, fetched, inputs_of, targets_of
from pa_preflight._tensors import features_of, is_continuous, scales_that_differ, tensors_in

_FEW, _SHORTEST, _SHARE = 20, 8, 0.2

_NEIGHBOURS, _JUMP, _COPIES, _DIRECTIONS = 50, 10.0, 0.05, 3.0

_MOST = 300

_CLASSES, _COMMON, _CHANCE, _CUT = 50, 0.1, 1e-8, 0.8

_OVERLAP, _OWN_COPIES = 0.2, 0.05


def check_sets(train: Samples, evaluation: Samples) -> Iterator[Finding]:
    """Yield findings about evaluation samples, compared with training samples.

    Args:
        train: Training samples.
        evaluation: Evaluation samples.
    """
    if min(len(train.samples), len(evaluation.samples)) < _FEW:
        return
    inputs, others = inputs_of(train), inputs_of(evaluation)
    are_alike = inputs is not None and others is not None and inputs.shape[1:] == others.shape[1:]
    if inputs is not None and others is not None and are_alike and is_continuous(inputs):
        windows = list(_check_windows(inputs, others))
        yield from windows or _check_copies(features_of(inputs), features_of(others)[:_MOST])
    targets, wanted = targets_of(train), targets_of(evaluation)
    if targets is not None and wanted is not None and targets.shape[1:] == wanted.shape[1:]:
        found = list(_check_targets(targets, wanted))
        yield from found
        is_complete = all(len(drawn.samples) == len(drawn.positions) for drawn in (train, evaluation))
        if is_complete and not found:
            yield from check_classes(targets, wanted)


def _check_windows(train: Tensor, evaluated: Tensor) -> Iterator[Finding]:
    """Look for runs of numbers in evaluation samples that training samples have too, perhaps at another place."""
    if train.dim() not in (2, 3) or train.shape[1] < _SHORTEST:
        return
    length = train.shape[1] // 2
    known = {run for sample in _runs(train, length) for run in sample}
    shared = sum(not known.isdisjoint(sample) for sample in _runs(evaluated, length))
    if shared > _SHARE * len(evaluated):
        yield noticed(
            "overlap-with-evaluation",
            f"{shared} of {len(evaluated)} evaluation samples share {length} or more numbers in a row with training "
            "samples, like overlapping windows of a series, so the evaluation measures memorization.",
            "Split a series by time, with a gap as long as a window, before you cut windows out of it.",
        )


def _runs(inputs: Tensor, length: int) -> list[set[bytes]]:
    """Return all runs of rows of each sample, except for samples with few different numbers."""
    width = inputs[0, 0].numel() * inputs.element_size()
    found: list[set[bytes]] = []
    for sample in inputs.contiguous():
        memory = sample.numpy().tobytes()
        starts = range(sample.shape[0] - length + 1)
        runs = {memory[start * width : (start + length) * width] for start in starts}
        varies = bool((sample.diff(dim=0) != 0).double().mean() > 0.5)  # noqa: PLR2004  # most
        found.append(runs if varies else set())
    return found


def _check_copies(train: Tensor, evaluated: Tensor) -> Iterator[Finding]:
    """Look for evaluation samples that are very near to some training samples, and far away from all others."""
    centred = train - train.mean(0)
    if train.shape[1] < _DIRECTIONS or _directions(centred) < _DIRECTIONS or len(train) <= _NEIGHBOURS + 1:
        return
    distances = torch.cdist(evaluated, train).topk(_NEIGHBOURS + 1, largest=False).values
    jumps = (distances[:, 1:] / distances[:, :-1].clamp(min=1e-12)).amax(1)
    have_copies = (jumps > _JUMP) & (distances[:, 0] > 1e-9)  # noqa: PLR2004  # exact copies are another finding
    share = float(have_copies.double().mean())
    if share > _COPIES:
        yield noticed(
            "near-copies-in-evaluation",
            f"{share:.0%} of the evaluation samples are nearly the same as some training samples, {_JUMP:g} times "
            "nearer than any other: copies with a little noise, as oversampling and augmentation make them.",
            "Split the samples first, and oversample or augment only the training set.",
        )


def _directions(centred: Tensor) -> float:
    """Return the number of directions in which samples differ: the participation ratio of their covariance."""
    gram = centred @ centred.T if centred.shape[0] < centred.shape[1] else centred.T @ centred
    return float(gram.diagonal().sum() ** 2 / (gram.square().sum() + 1e-12))


def _check_targets(train: Tensor, evaluated: Tensor) -> Iterator[Finding]:
    if train.is_floating_point() and evaluated.is_floating_point():
        are_finite = bool(train.isfinite().all()) and bool(evaluated.isfinite().all())
        scales = scales_that_differ(train, evaluated) if are_finite else None
        if scales is not None:
            do = "Scale the targets of both sets with the statistics of the training set."
            yield noticed("evaluation-targets-differ", f"Targets {scales}", do)
    elif train.dim() == 1 and not evaluated.is_floating_point():
        seen, classes = set(map(int, train)), set(map(int, evaluated))
        new = {label for label in classes - seen if label >= 0}
        share = sum(int((evaluated == label).sum()) for label in new) / len(evaluated)
        if new and share > _SHARE and len(train) >= 10 * len(seen) and min(seen) >= 0:
            yield noticed(
                "classes-never-trained",
                f"{share:.0%} of the evaluation samples have classes that do not occur among {len(train)} training "
                f"samples, such as {min(new)}; these have {len(seen)} classes, from {min(seen)} to {max(seen)}.",
                "Shuffle before you split the samples, or split each class.",
            )


def check_classes(train: Tensor, evaluated: Tensor) -> Iterator[Finding]:
    """Yield a finding if a class that is common in either set does not occur in the other set.

    Args:
        train: Targets of training samples from all parts of the training set, in its order.
        evaluated: Targets of evaluation samples.
    """
    if not _are_classes(train) or not _are_classes(evaluated):
        return
    classes, others = train.flatten().long(), evaluated.flatten().long()
    for present, other, name, name_of_other in (
        (classes, others, "training samples", "evaluation samples"),
        (others, classes, "evaluation samples", "training samples"),
    ):
        lacking = _lacking(present, other)
        if lacking:
            yield noticed(
                "classes-of-one-set",
                f"{sum(lacking.values()):.0%} of the {name} have classes that do not occur among {len(other)} "
                f"{name_of_other}, such as {next(iter(lacking))}: the distribution of classes differs, as if samples "
                "were sorted before they were split.",
                "Shuffle before you split the samples, for example with torch.utils.data.random_split, or split "
                "each class.",
                "warning" if _is_cut(classes, others) else "note",
            )
            return


def _are_classes(targets: Tensor) -> bool:
    if targets.numel() != len(targets):
        return False
    distinct = set(map(float, targets.flatten()))
    if targets.is_floating_point():
        return distinct <= {0.0, 1.0}
    return targets.dtype != torch.bool and len(distinct) <= _CLASSES


def _lacking(classes: Tensor, others: Tensor) -> dict[int, float]:
    """Return the classes that are common in a set and do not occur in another, unless that may be chance."""
    shares = {label: float((classes == label).double().mean()) for label in sorted(set(map(int, classes)))}
    missing = {
        label: share for label, share in shares.items() if share >= _COMMON and not bool((others == label).any())
    }
    return {label: share for label, share in missing.items() if len(shares) * (1 - share) ** len(others) < _CHANCE}


def _is_cut(train: Tensor, evaluated: Tensor) -> bool:
    """Whether both are pieces of a sorted list: the second begins where the first ends, with the rest of a class."""
    if not all(_is_sorted(targets) for targets in (train, evaluated)):
        return False
    is_after, is_before = bool(train[-1] == evaluated[0]), bool(evaluated[-1] == train[0])
    if is_after == is_before:
        return False
    classes = set(map(int, evaluated))
    share = float(torch.isin(train, evaluated).double().mean())
    return share < _CUT * len(classes) / len(set(map(int, train)))


def _is_sorted(classes: Tensor) -> bool:
    """Whether all samples of each class follow each other."""
    changes = int((classes[1:] != classes[:-1]).sum())
    return changes + 1 == len(set(map(int, classes)))


def check_evaluation_samples(train: Samples, evaluation: Samples, train_data: Any, data: Any) -> Iterator[Finding]:
    """Yield findings about evaluation samples.

    Args:
        train: Samples of the training data.
        evaluation: Samples of the evaluation data.
        train_data: The training data.
        data: The evaluation data.
    """
    shared = _shared(train, evaluation, dataset_of(train_data), dataset_of(data))
    if shared:
        yield noticed(
            "same-samples-in-evaluation",
            f"{shared} of the evaluation samples are among the training samples, so the evaluation measures "
            "memorization.",
            "Split the samples, for example with torch.utils.data.random_split.",
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
                f"Sample {position} of the evaluation data is different each time it is fetched.",
                "Give the evaluation a dataset without random augmentation.",
            )
            return


def _shared(train: Samples, evaluation: Samples, train_set: Any, other: Any) -> str | None:
    if train_set is other:
        return "All"
    train_base, base = (getattr(cast("object", data), "dataset", None) for data in (train_set, other))
    if train_base is not None and train_base is base:
        shared = set(train_set.indices) & set(other.indices)
        if shared:
            return f"{len(shared)} of {len(other.indices)}"
    if base is train_set:
        return "All"
    if train.dataset is None or not evaluation.samples:
        return None
    wanted = [_digest(sample) for sample in evaluation.samples]
    known = [_digest(sample) for sample in fetched(train.dataset, range(len(train.dataset)))]
    among = set(known)
    number = sum(digest in among for digest in wanted)
    has_copies = len(among) < (1 - _OWN_COPIES) * len(known)
    if number < _OVERLAP * len(wanted) or (has_copies and not _is_continuous(evaluation.samples[0])):
        return None  # samples may be equal by chance
    return f"{number} of {len(wanted)}"


def _is_continuous(sample: Any) -> bool:
    """Whether a sample has several numbers that are not whole, so that it hardly equals another by chance."""
    numbers = torch.cat(
        [tensor.flatten().double() for tensor in tensors_in(sample) if tensor.is_floating_point()] or [torch.empty(0)]
    )
    return int((numbers != numbers.round()).sum()) >= 3  # noqa: PLR2004  # digits enough


def _digest(sample: Any) -> str:
    tensors = tensors_in(sample)
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((tensor.shape, tensor.dtype)).encode())
        flat = (
            tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,))
        )  # a single element may have any stride
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    if not tensors:
        digest.update(pickle.dumps(sample))
    return digest.hexdigest()
