"""What training and evaluation samples must share, and must not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pa_preflight._class_shares import check_classes
from pa_preflight._data_checks import Samples
from pa_preflight._findings import Finding, noticed
from pa_preflight._tables import features_of, inputs_of, is_continuous, targets_of

_FEW, _SHORTEST, _SHARE = 20, 8, 0.2
_NEIGHBOURS, _JUMP, _COPIES, _DIRECTIONS = 50, 10.0, 0.05, 3.0
_AWAY, _WIDER = 3.0, 5.0
_MOST = 300


def check_sets(train: Samples, evaluation: Samples) -> Iterator[Finding]:
    """Yield what is wrong with samples to evaluate, next to training samples.

    Args:
        train: Training samples.
        evaluation: Samples to evaluate.
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
        is_complete = all(len(one.samples) == len(one.positions) for one in (train, evaluation))
        if is_complete and not found:
            yield from check_classes(targets, wanted)


def _check_windows(train: Tensor, evaluated: Tensor) -> Iterator[Finding]:
    """Look for runs of numbers in samples to evaluate that training samples have too, perhaps at another place."""
    if train.dim() not in (2, 3) or train.shape[1] < _SHORTEST:
        return
    length = train.shape[1] // 2
    known = {run for sample in _runs(train, length) for run in sample}
    shared = sum(not known.isdisjoint(sample) for sample in _runs(evaluated, length))
    if shared > _SHARE * len(evaluated):
        yield noticed(
            "overlap-with-evaluation",
            f"{shared} of {len(evaluated)} samples to evaluate share {length} or more numbers in a row with training "
            "samples, as windows of one series do that overlap: the evaluation shows what was learnt by heart.",
            "Divide a series by time, with a gap as long as a window, before windows are cut out of it.",
        )


def _runs(inputs: Tensor, length: int) -> list[set[bytes]]:
    """Return all runs of rows of each sample, apart from those that have few distinct numbers."""
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
    """Look for samples to evaluate with some training samples very near, and all others far away."""
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
            f"{share:.0%} of the samples to evaluate are nearly the same as some training samples, {_JUMP:g} times "
            "nearer than any other: copies with a little noise, as oversampling and augmentation make them.",
            "Divide the samples first, and oversample or augment only the training set.",
        )


def _directions(centred: Tensor) -> float:
    """Return in how many directions samples differ, as the participation ratio of their covariance."""
    gram = centred @ centred.T if centred.shape[0] < centred.shape[1] else centred.T @ centred
    return float(gram.diagonal().sum() ** 2 / (gram.square().sum() + 1e-12))


def _check_targets(train: Tensor, evaluated: Tensor) -> Iterator[Finding]:
    if train.is_floating_point() and evaluated.is_floating_point():
        one, other = train.double(), evaluated.double()
        if not (bool(one.isfinite().all()) and bool(other.isfinite().all())):
            return
        (mean, deviation), (other_mean, other_deviation) = ((float(x.mean()), float(x.std())) for x in (one, other))
        if not deviation or not other_deviation:
            return
        is_wider = max(deviation, other_deviation) > _WIDER * min(deviation, other_deviation)
        if is_wider or abs(mean - other_mean) > _AWAY * max(deviation, other_deviation):
            yield noticed(
                "evaluation-targets-differ",
                f"Targets in training have a mean of {mean:.3g} and a standard deviation of {deviation:.3g}, in the "
                f"evaluation {other_mean:.3g} and {other_deviation:.3g}.",
                "Scale the targets of both sets by the numbers of the training set.",
            )
    elif train.dim() == 1 and not evaluated.is_floating_point():
        seen, classes = set(map(int, train)), set(map(int, evaluated))
        new = {one for one in classes - seen if one >= 0}
        share = sum(int((evaluated == one).sum()) for one in new) / len(evaluated)
        if new and share > _SHARE and len(train) >= 10 * len(seen) and min(seen) >= 0:
            yield noticed(
                "classes-never-trained",
                f"{share:.0%} of the samples to evaluate have classes that do not occur among {len(train)} training "
                f"samples, such as {min(new)}; which have {len(seen)} classes, from {min(seen)} to {max(seen)}.",
                "Shuffle before the samples are divided, or divide each class.",
            )
