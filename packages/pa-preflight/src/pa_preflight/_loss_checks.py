"""What is wrong with the outputs and targets of a loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import zip_longest

import torch
from torch import Tensor

from pa_preflight._findings import FILL_GAPS, Finding, noticed
from pa_preflight._observer import LossCall

_DISTANCES = ("huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss")
_FEW, _MANY, _TOLERANCE, _ROUGHLY, _HALF = 4, 16, 1e-3, 0.05, 2
_MANY_OUTPUTS = 20
"""Times as many as classes: what is left of a model for other classes, and not a vocabulary."""
_NEARLY_ALL, _IMPROBABLE = 0.9, 20.0
_OVERFLOWS = (128, 256)
_FAR = 100.0
"""Times the loss of a constant."""


def check_loss(call: LossCall) -> Iterator[Finding]:
    """Yield what is wrong with a call of a loss function.

    Args:
        call: The call.
    """
    outputs, targets = call.outputs, call.targets
    if not outputs.numel() or not targets.numel():
        return
    if targets.is_floating_point() and not targets.isfinite().all():
        count = int((~targets.isfinite()).sum())
        yield noticed(
            "targets-not-finite",
            f"{count} of {targets.numel()} targets of the first batch are NaN or infinite.",
            FILL_GAPS,
        )
        return
    if call.name in _DISTANCES:
        yield from _check_distance(call)
    elif call.name.startswith("binary"):
        yield from _check_binary(call)
    else:
        yield from _check_classes(call)


def _check_distance(call: LossCall) -> Iterator[Finding]:
    outputs, targets = call.outputs, call.targets
    if _is_crossed(outputs, targets):
        yield broadcast(outputs, targets)
    elif not targets.is_floating_point():
        yield _wrong_type(call, "floating-point numbers", "targets.float()")
    else:
        spread = (targets.double() - targets.double().mean()).square().mean()
        distance = (targets.double() - outputs.double()).square().mean()
        if spread > 0 and distance > _FAR * spread and len(targets) >= _FEW:
            yield _far_from_guess(float(distance), float(spread), "mean squared error", "the mean of the targets")


def _is_crossed(outputs: Tensor, targets: Tensor) -> bool:
    """Whether each output is compared with several targets, and each target with several outputs."""
    sizes = [*zip_longest(reversed(outputs.shape), reversed(targets.shape), fillvalue=1)]
    fit = all(one == other or 1 in (one, other) for one, other in sizes)
    return not fit or (any(one < other for one, other in sizes) and any(other < one for one, other in sizes))


def _check_binary(call: LossCall) -> Iterator[Finding]:
    outputs, targets = call.outputs, call.targets
    if outputs.shape != targets.shape:
        yield broadcast(outputs, targets)
    elif not targets.is_floating_point():
        yield _wrong_type(call, "floating-point numbers", "targets.float()")
    elif bool((targets < 0).any() or (targets > 1).any()):
        yield _out_of_range(targets, "numbers from 0 to 1")


def check_sigmoid(calls: list[LossCall]) -> Iterator[Finding]:
    """Yield a finding if what is called logits are probabilities.

    Args:
        calls: The calls of loss functions in the first steps.
    """
    logits = [call.outputs.flatten() for call in calls if call.name == "binary_cross_entropy_with_logits"]
    outputs = torch.cat(logits) if logits else torch.empty(0)
    if len(outputs) < _MANY or not bool(
        (outputs >= 0).all() and (outputs <= 1).all() and (outputs != outputs[0]).any()
    ):
        return
    yield noticed(
        "sigmoid-before-bce-with-logits",
        f"All outputs lie between 0 and 1, from {outputs.min():.3g} to {outputs.max():.3g}, and the loss applies a "
        "sigmoid itself: predictions cannot get below 0.5.",
        "Leave the sigmoid out of the model, or use BCELoss.",
    )


def _check_classes(call: LossCall) -> Iterator[Finding]:
    outputs, targets = call.outputs, call.targets
    dimension = 1 if outputs.dim() > 1 else 0
    num_classes = outputs.shape[dimension]
    if targets.is_floating_point():
        if targets.shape != outputs.shape:
            yield _wrong_type(call, "class indices, which are whole numbers,", "targets.long()")
            return
    elif targets.dim() >= outputs.dim() > 1:
        yield noticed(
            "targets-broadcast",
            f"{call.name} was given class indices of shape {tuple(targets.shape)} for outputs of shape "
            f"{tuple(outputs.shape)}.",
            "Class indices have no dimension for the classes: targets.squeeze(1), or targets.argmax(1) if they are "
            "one-hot.",
        )
        return
    else:
        kept = targets[targets != call.options.get("ignore_index", -100)]
        if kept.numel() and bool(kept.min() < 0 or kept.max() >= num_classes):
            yield _out_of_range(kept, f"class indices from 0 to {num_classes - 1}, as there are {num_classes} outputs")
            return
    chances = outputs.float().exp() if call.name == "nll_loss" else outputs.float()
    sums = chances.sum(dimension)
    adds_up = bool(((sums - 1).abs() < (_TOLERANCE if outputs.dtype.itemsize > _HALF else _ROUGHLY)).all())
    are_probabilities = bool((outputs >= 0).all()) and adds_up
    if call.name == "nll_loss" and not adds_up:
        yield noticed(
            "log-probabilities-missing",
            "nll_loss needs the logarithms of probabilities, but the exponentials of the outputs add up to "
            f"{sums.mean():.3g}, not to 1.",
            "Use CrossEntropyLoss, or end the model with LogSoftmax.",
        )
    elif call.name == "cross_entropy" and are_probabilities and num_classes > 1:
        yield noticed(
            "softmax-before-cross-entropy",
            "The outputs are positive and add up to 1, and cross_entropy applies a softmax itself: the loss cannot get "
            f"below {math.log(math.e + num_classes - 1) - 1:.2g}.",
            "Leave the softmax out of the model; apply it to predictions.",
        )
    elif call.value is not None and call.value.dim() == 0 and call.options.get("reduction", "mean") == "mean":
        guess = math.log(num_classes) if num_classes > 1 else 1.0
        if float(call.value) > 3 * guess + 2:
            yield _far_from_guess(float(call.value), guess, call.name, f"equal chances for {num_classes} classes")


def check_all_targets(calls: list[LossCall], targets: Tensor | None) -> Iterator[Finding]:
    """Yield what is wrong with the targets of many samples.

    Args:
        calls: The calls of loss functions in the first batch.
        targets: The targets of many samples; None where samples have none.
    """
    if targets is None or targets.numel() < _FEW:
        return
    are_used = any(bool((call.targets == call.targets.flatten()[:1]).all()) for call in calls)
    if are_used and bool((targets == targets.flatten()[0]).all()):
        yield noticed(
            "one-class",
            f"All targets of {len(targets)} samples are {targets.flatten()[0]:.6g}.",
            "Look at how the dataset makes its targets.",
            "note" if all(call.name in _DISTANCES for call in calls) else "mistake",  # residuals are to be 0
        )
    for call in calls:
        if call.name != "cross_entropy" or call.targets.dim() != 1 or call.targets.is_floating_point():
            continue
        num_classes, used = call.outputs.shape[-1], int(max(targets.max(), call.targets.max())) + 1
        if targets.dim() == 1 and num_classes >= _MANY_OUTPUTS * used:
            yield noticed(
                "outputs-more-than-classes",
                f"The model has {num_classes} outputs, and the classes of {len(targets)} samples are below {used}.",
                f"Replace the last layer by one with {used} outputs.",
            )
        elif targets.dim() == 1 and used < _NEARLY_ALL * num_classes and _are_missing(targets, used, num_classes):
            yield noticed(
                "classes-never-occur",
                f"Among {len(targets)} samples there is none of the classes {used} to {num_classes - 1}, for which the "
                "model has outputs."
                + (f" {used - 1} is the largest number of a type such as uint8." if used in _OVERFLOWS else ""),
                "Look at how targets are read and stored: an overflow, as of uint8 at 255, counts from 0 again.",
            )


def _are_missing(targets: Tensor, used: int, num_classes: int) -> bool:
    """Whether classes as frequent as others would be among so many samples."""
    return len(targets) * math.log(used / num_classes) < -_IMPROBABLE and int(targets.min()) >= 0


def broadcast(outputs: Tensor, targets: Tensor) -> Finding:
    """Return the finding that outputs and targets have other shapes.

    Args:
        outputs: Of the model.
        targets: What they are compared with.
    """
    return noticed(
        "targets-broadcast",
        f"Outputs of shape {tuple(outputs.shape)} are compared with targets of shape {tuple(targets.shape)}: each with "
        "each, not in pairs.",
        "Give both the same shape: targets.unsqueeze(1), or outputs.squeeze(1).",
    )


def _wrong_type(call: LossCall, needed: str, do: str) -> Finding:
    return noticed(
        "targets-of-another-type",
        f"{call.name} needs {needed} as targets, got {call.targets.dtype} of shape {tuple(call.targets.shape)}.",
        f"Convert them: {do}.",
    )


def _out_of_range(targets: Tensor, needed: str) -> Finding:
    return noticed(
        "targets-out-of-range",
        f"The targets of the first batch lie between {targets.min():.6g} and {targets.max():.6g}, where the loss needs "
        f"{needed}.",
        "Number the classes from 0, or change the number of outputs.",
    )


def _far_from_guess(value: float, guess: float, measure: str, guessed: str) -> Finding:
    return noticed(
        "loss-at-start",
        f"The {measure} begins at {value:.3g}, where a guess of {guessed} has {guess:.3g}.",
        "Standardise the targets, or start with smaller weights in the last layer.",
    )
