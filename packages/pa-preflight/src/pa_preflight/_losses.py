"""Checks of the outputs and targets of losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest

import torch
from torch import Tensor
from torch.nn import functional

from pa_core.steps.default_step import advise_on_targets
from pa_preflight._calls import FunctionCall
from pa_preflight._findings import FILL_GAPS, Finding, noticed

_DISTANCES = ("huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss")

_FEW, _MANY, _TOLERANCE, _ROUGHLY, _HALF = 4, 16, 1e-3, 0.05, 2

_MANY_OUTPUTS = 20
"""How many times as many outputs as classes: such a layer is left over from other classes, and is not a vocabulary."""

_NEARLY_ALL, _IMPROBABLE = 0.9, 20.0

_OVERFLOWS = (128, 256)

_FAR = 100.0
"""How many times the loss of a constant."""

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "Abs": (0.0, torch.inf),
    "Elu": (-1.0, torch.inf),
    "Exp": (0.0, torch.inf),
    "LogSigmoid": (-torch.inf, 0.0),
    "LogSoftmax": (-torch.inf, 0.0),
    "Relu": (0.0, torch.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, torch.inf),
    "Tanh": (-1.0, 1.0),
}
"""The ranges of the results of operations."""

_SOME, _MOST = 0.05, 0.5

_RATIO = 2.0
"""How many times as much a frequent class counts as a rare class, which is hardly an accident."""

_FEWEST_SEQUENCES, _LONG = 8, 3

_NUMBERED_FROM_0 = "Number the classes from 0, or change the number of outputs."


def check_loss(call: FunctionCall) -> Iterator[Finding]:
    """Yield findings about a call to a loss function.

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


def _check_distance(call: FunctionCall) -> Iterator[Finding]:
    outputs, targets = call.outputs, call.targets
    if _is_crossed(outputs, targets):
        yield broadcast(outputs, targets)
    elif not targets.is_floating_point():
        yield _wrong_type(call, "floating-point numbers")
    else:
        spread = (targets.double() - targets.double().mean()).square().mean()
        distance = (targets.double() - outputs.double()).square().mean()
        if spread > 0 and distance > _FAR * spread and len(targets) >= _FEW:
            yield _far_from_guess(float(distance), float(spread), "mean squared error", "the mean of the targets")


def _is_crossed(outputs: Tensor, targets: Tensor) -> bool:
    """Whether each output is compared with several targets, and each target with several outputs."""
    sizes = [*zip_longest(reversed(outputs.shape), reversed(targets.shape), fillvalue=1)]
    fit = all(size == other or 1 in (size, other) for size, other in sizes)
    return not fit or (any(size < other for size, other in sizes) and any(other < size for size, other in sizes))


def _check_binary(call: FunctionCall) -> Iterator[Finding]:
    outputs, targets = call.outputs, call.targets
    if outputs.shape != targets.shape:
        yield broadcast(outputs, targets)
    elif not targets.is_floating_point():
        yield _wrong_type(call, "floating-point numbers")
    elif bool((targets < 0).any() or (targets > 1).any()):
        yield _out_of_range(call, targets, "numbers from 0 to 1")


def check_sigmoid(calls: list[FunctionCall]) -> Iterator[Finding]:
    """Yield a finding if the outputs for a loss of logits are probabilities.

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
        f"All outputs lie between 0 and 1, from {outputs.min():.3g} to {outputs.max():.3g}, but the loss applies a "
        "sigmoid itself, so predictions are never below 0.5.",
        "Leave the sigmoid out of the model, or use BCELoss.",
    )


def _check_classes(call: FunctionCall) -> Iterator[Finding]:
    outputs, targets = call.outputs, call.targets
    dimension = 1 if outputs.dim() > 1 else 0
    num_classes = outputs.shape[dimension]
    if targets.is_floating_point():
        if targets.shape != outputs.shape:
            yield _wrong_type(call, "class indices, which are whole numbers,")
            return
    elif targets.dim() >= outputs.dim() > 1:
        yield noticed(
            "targets-broadcast",
            f"{call.name} was given class indices of shape {tuple(targets.shape)} for outputs of shape "
            f"{tuple(outputs.shape)}.",
            _advice(call),
        )
        return
    else:
        kept = targets[targets != call.arguments["ignore_index"]]
        if kept.numel() and bool(kept.min() < 0 or kept.max() >= num_classes):
            yield _out_of_range(
                call, kept, f"class indices from 0 to {num_classes - 1}, as there are {num_classes} outputs"
            )
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
            "The outputs are positive and add up to 1, but cross_entropy applies a softmax itself: the loss cannot get "
            f"below {math.log(math.e + num_classes - 1) - 1:.2g}.",
            "Leave the softmax out of the model; apply it to predictions.",
        )
    elif call.value is not None and call.value.dim() == 0 and call.arguments["reduction"] == "mean":
        guess = math.log(num_classes) if num_classes > 1 else 1.0
        if float(call.value) > 3 * guess + 2:
            yield _far_from_guess(float(call.value), guess, call.name, f"equal chances for {num_classes} classes")


def check_all_targets(calls: list[FunctionCall], targets: Tensor | None) -> Iterator[Finding]:
    """Yield findings about the targets of many samples.

    Args:
        calls: The calls of loss functions in the first batch.
        targets: The targets of many samples; None if the samples have no targets.
    """
    if targets is None or targets.numel() < _FEW:
        return
    are_used = any(bool((call.targets == call.targets.flatten()[:1]).all()) for call in calls)
    if are_used and bool((targets == targets.flatten()[0]).all()):
        yield noticed(
            "one-class",
            f"All targets of {len(targets)} samples are equal: {targets.flatten()[0]:.6g}.",
            "Look at how the dataset reads or computes its targets.",
            "note" if all(call.name in _DISTANCES for call in calls) else "mistake",  # the target of residuals is 0
        )
    for call in calls:
        if call.name != "cross_entropy" or call.targets.dim() != 1 or call.targets.is_floating_point():
            continue
        num_classes, used = call.outputs.shape[-1], int(max(targets.max(), call.targets.max())) + 1
        if targets.dim() == 1 and num_classes >= _MANY_OUTPUTS * used:
            yield noticed(
                "outputs-more-than-classes",
                f"The model has {num_classes} outputs, and the classes of {len(targets)} samples are below {used}.",
                f"Replace the last layer by a layer with {used} outputs.",
            )
        elif targets.dim() == 1 and used < _NEARLY_ALL * num_classes and _are_missing(targets, used, num_classes):
            yield noticed(
                "classes-never-occur",
                f"The model has outputs for the classes {used} to {num_classes - 1}, but {len(targets)} samples have "
                "no such targets."
                + (f" {used - 1} is the largest number of a type such as uint8." if used in _OVERFLOWS else ""),
                "Look at how targets are read and stored: after an overflow, such as of uint8 at 255, numbers start "
                "from 0 again.",
            )


def _are_missing(targets: Tensor, used: int, num_classes: int) -> bool:
    """Whether so many samples would contain these classes if they were as frequent as the others."""
    return len(targets) * math.log(used / num_classes) < -_IMPROBABLE and int(targets.min()) >= 0


def broadcast(outputs: Tensor, targets: Tensor) -> Finding:
    """Return the finding that outputs and targets have different shapes.

    Args:
        outputs: The outputs of the model.
        targets: The targets that they are compared with.
    """
    return noticed(
        "targets-broadcast",
        f"Outputs of shape {tuple(outputs.shape)} are compared with targets of shape {tuple(targets.shape)}: each "
        "output with each target, and not in pairs.",
        advise_on_targets(None, outputs, targets),
    )


def _advice(call: FunctionCall) -> str:
    return advise_on_targets(getattr(functional, call.name), call.outputs, call.targets)


def _wrong_type(call: FunctionCall, needed: str) -> Finding:
    return noticed(
        "targets-of-another-type",
        f"{call.name} needs {needed} as targets, got {call.targets.dtype} of shape {tuple(call.targets.shape)}.",
        _advice(call),
    )


def _out_of_range(call: FunctionCall, targets: Tensor, needed: str, do: str = _NUMBERED_FROM_0) -> Finding:
    return noticed(
        "targets-out-of-range",
        f"The targets of {call.name} lie between {float(targets.min()):.6g} and {float(targets.max()):.6g}, but the "
        f"loss needs {needed}.",
        do,
    )


def _far_from_guess(value: float, guess: float, measure: str, guessed: str) -> Finding:
    return noticed(
        "loss-at-start",
        f"The {measure} begins at {value:.3g}, far above the {guess:.3g} of guessing {guessed}.",
        "Standardise the targets, or start with smaller weights in the last layer.",
    )


def check_calls(calls: list[FunctionCall], targets: Tensor | None) -> Iterator[Finding]:
    """Yield findings about the calls of losses in a step.

    Args:
        calls: The calls.
        targets: The targets of many samples; None if they are not known.
    """
    for call in calls:
        if call.value is not None and all(bool(tensor.isfinite().all()) for tensor in _floats(call)):
            for check in _CHECKS.get(call.name, ()):
                yield from check(call)
            yield from _check_weights(call, targets)


def _floats(call: FunctionCall) -> list[Tensor]:
    given = call.arguments.values()
    return [tensor for tensor in given if isinstance(tensor, Tensor) and tensor.numel() and tensor.is_floating_point()]


def _check_log_probabilities(call: FunctionCall) -> Iterator[Finding]:
    logs: Tensor = call.arguments["input" if call.name == "kl_div" else "log_probs"]
    if float(logs.max()) > _TOLERANCE:
        yield noticed(
            "log-probabilities-missing",
            f"{call.name} needs logarithms of probabilities, which are negative, but got numbers from "
            f"{float(logs.min()):.3g} to {float(logs.max()):.3g}.",
            "Apply log_softmax to the outputs.",
        )


def _check_divergence(call: FunctionCall) -> Iterator[Finding]:
    targets = call.targets
    is_log: bool = call.arguments["log_target"]
    if is_log and float(targets.min()) >= 0 < float(targets.max()):
        needed = "logarithms of probabilities because of log_target=True"
        yield _out_of_range(call, targets, needed, "Pass log_target=False.")
    elif not is_log and float(targets.min()) < -_TOLERANCE:
        yield _out_of_range(call, targets, "probabilities", "Pass log_target=True, or the exponentials.")
    elif "target" in call.made_by and "input" not in call.made_by:
        yield noticed(
            "loss-arguments-swapped",
            "The arguments of kl_div are swapped: its target is trained, and its input is not.",
            "Pass the logarithms of the trained outputs as the input, and their goal as the target.",
        )


def _check_signs(call: FunctionCall) -> Iterator[Finding]:
    if not bool((call.targets.abs() == 1).all()):
        yield _out_of_range(call, call.targets, "-1 and 1", "Pass 2 * targets - 1 if the targets are 0 and 1.")


def _check_counts(call: FunctionCall) -> Iterator[Finding]:
    targets = call.targets
    if float(targets.min()) < 0:
        yield _out_of_range(call, targets, "counts, which are not negative", "Pass counts that are not standardised.")
    elif call.arguments["log_input"] and call.made_by.get("input") in {"Exp", "Relu", "Softplus"}:
        yield _activated(call, "the loss needs the logarithms of the counts", "leave it out, or pass log_input=False")


def _check_zeros_and_ones(call: FunctionCall) -> Iterator[Finding]:
    if float(call.targets.min()) < 0 or float(call.targets.max()) > 1:
        yield _out_of_range(
            call, call.targets, "numbers from 0 to 1", "Pass (targets + 1) / 2 if the targets are -1 and 1."
        )


def _check_blanks(call: FunctionCall) -> Iterator[Finding]:
    targets, blank = call.arguments["targets"], call.arguments["blank"]
    lengths, inputs = (torch.as_tensor(call.arguments[name]) for name in ("target_lengths", "input_lengths"))
    if targets.dim() > 1:
        targets = targets[torch.arange(targets.shape[1]) < lengths.cpu()[:, None]]
    if bool((targets == blank).any()):
        yield _out_of_range(call, targets, f"labels that differ from the blank, {blank}", "Number the labels from 1.")
    if bool((inputs < lengths).any()):
        count = int((inputs < lengths).sum())
        yield noticed(
            "inputs-shorter-than-targets",
            f"{count} of {len(lengths)} samples have fewer steps than labels: ctc_loss cannot align them.",
            "Check that input_lengths count the steps of the outputs; let the model shorten its inputs less.",
        )


def _check_triplets(call: FunctionCall) -> Iterator[Finding]:
    anchor, positive, negative = (call.arguments[name] for name in ("anchor", "positive", "negative"))
    for name, first, other in (
        ("anchor and positive", anchor, positive),
        ("anchor and negative", anchor, negative),
        ("positive and negative", positive, negative),
    ):
        if first.shape == other.shape and len(first) > 1 and bool((first == other).all()):
            saw = f"{name.capitalize()} are equal in all {len(first)} triplets."
            do = "Check how triplets are made, and that the model gets their three parts."
            yield noticed("triplets-of-equals", saw, do)


def _check_probabilities(call: FunctionCall) -> Iterator[Finding]:
    outputs, targets = call.arguments["input"], call.arguments["target"]
    dimension = 1 if outputs.dim() > 1 else 0
    if outputs.shape[dimension] == 1:
        yield noticed(
            "one-output-for-classes",
            f"{call.name} got a single output for each sample, whose softmax is always 1, so the loss is 0 or "
            "meaningless.",
            "Use BCEWithLogitsLoss, or an output for each class.",
        )
    elif targets.is_floating_point() and targets.shape == outputs.shape:
        sums = targets.double().sum(dimension)
        wrong = float(((sums - 1).abs() > _TOLERANCE).double().mean())
        if wrong > _SOME or float(targets.min()) < 0:
            yield noticed(
                "targets-not-probabilities",
                f"cross_entropy needs targets that sum to 1 in each sample; in {wrong:.0%} of the samples they sum to "
                f"other numbers, from {float(sums.min()):.3g} to {float(sums.max()):.3g}.",
                "Use BCEWithLogitsLoss if a sample may have several labels (multi-label); otherwise normalise the "
                "targets.",
            )
    if call.arguments.get("label_smoothing", 0.0) >= _MOST:
        smoothing = call.arguments["label_smoothing"]
        saw = f"label_smoothing={smoothing:g} leaves less than half of the weight to the right class."
        yield noticed("label-smoothing-too-high", saw, "Pass about 0.1.")


def _check_padding(call: FunctionCall) -> Iterator[Finding]:
    """Look for sequences of classes that end with runs of the same class, which no mask leaves out."""
    targets = call.targets
    is_summed = call.arguments["reduction"] != "none" and call.arguments["weight"] is None
    if targets.is_floating_point() or targets.dim() != 2 or not is_summed or len(targets) < _FEWEST_SEQUENCES:  # noqa: PLR2004  # of sequences
        return
    length = targets.shape[1]
    padding = targets[:, -1].mode().values
    if length < _FEWEST_SEQUENCES or int(padding) == call.arguments["ignore_index"]:
        return
    is_padding = targets == padding
    runs = is_padding.flip(1).long().cumprod(1).sum(1)
    share_in_runs = float(runs.sum() / is_padding.sum())
    are_many = float((runs > 0).double().mean()) >= _MOST and int(runs.max()) >= _LONG
    if share_in_runs == 1.0 and are_many and len(set(map(int, runs))) >= _LONG and int(runs.max()) < length:
        yield noticed(
            "padding-in-the-loss",
            f"The loss counts padding: {float((runs > 0).double().mean()):.0%} of the sequences of targets end with "
            f"runs of {int(padding)}, which occurs nowhere else.",
            f"Pass ignore_index={int(padding)}, or pad targets with -100.",
        )


def _check_logits(call: FunctionCall) -> Iterator[Finding]:
    operation = call.made_by.get("input", "")
    needed = {
        "Relu": "the loss applies a softmax or sigmoid to numbers of any sign, and negative numbers are cut off",
        "Tanh": "the loss applies a softmax or sigmoid itself, and numbers between -1 and 1 never make it certain",
        "Sigmoid": "the loss applies a softmax or sigmoid itself, and numbers between 0 and 1 never make it certain",
    }
    if operation in needed and (operation, call.name) != ("Sigmoid", "binary_cross_entropy_with_logits"):
        yield _activated(call, needed[operation], "let the model end with its last linear layer")


def _activated(call: FunctionCall, why: str, do: str) -> Finding:
    return noticed(
        "activation-before-loss",
        f"The input of {call.name} is the result of a {call.made_by['input'].lower()}, but {why}.",
        f"Look at the last activation: {do}.",
    )


def _check_bounds(call: FunctionCall) -> Iterator[Finding]:
    targets = call.targets
    operation = call.made_by.get("input", "")
    low, high = _BOUNDS.get(operation, (-torch.inf, torch.inf))
    outside = float(((targets < low) | (targets > high)).double().mean())
    if outside <= _SOME:
        return
    yield noticed(
        "targets-out-of-reach",
        f"The outputs are the results of a {operation.lower()}, between {low:g} and {high:g}, but {outside:.0%} of the "
        f"targets lie outside of that range: they go from {float(targets.min()):.4g} to {float(targets.max()):.4g}.",
        "Scale the targets into the range, or leave the activation out.",
        "mistake" if outside > _MOST else "warning",
    )


def _check_weights(call: FunctionCall, targets: Tensor | None) -> Iterator[Finding]:
    positive, weight = call.arguments.get("pos_weight"), call.arguments.get("weight")
    target: Tensor | None = call.arguments.get("target")
    if target is None:
        return
    known = targets if targets is not None and targets.shape[1:] == target.shape[1:] else target
    if isinstance(positive, Tensor):
        shares = known.double().flatten(1).mean(0) if positive.numel() > 1 else known.double().mean().reshape(1)
        yield from _check_inverted("pos_weight", positive.flatten().double(), shares / (1 - shares))
    elif isinstance(weight, Tensor) and call.name in {"cross_entropy", "nll_loss"} and not known.is_floating_point():
        counts = known[(known >= 0) & (known < len(weight))].flatten().bincount(minlength=len(weight))
        yield from _check_inverted("weight", weight.double(), counts.double())


def _check_inverted(name: str, weights: Tensor, frequencies: Tensor) -> Iterator[Finding]:
    """Look for weights that rise with frequencies, or are on the same side of 1, so that rare classes count less."""
    is_known = (weights > 0) & (frequencies > 0) & frequencies.isfinite()
    logs, of_classes = weights[is_known].log(), frequencies[is_known].log()
    if name == "weight" and len(logs) > 1:
        logs, of_classes = logs - logs.mean(), of_classes - of_classes.mean()
    elif name == "weight":
        return
    if not len(logs) or float(logs.abs().max()) < torch.tensor(_RATIO).log() / 2:
        return
    product, size = float((logs * of_classes).sum()), float(of_classes.square().sum())
    alike = product / (math.sqrt(float(logs.square().sum()) * size) + 1e-12)
    if alike > 0.8 and product > 0.2 * size:  # noqa: PLR2004  # nearly parallel, and not flat
        yield noticed(
            "class-weights-inverted",
            f"{name} gives rare classes a lower weight than frequent classes: {_shown(weights)} for classes with the "
            f"relative frequencies {_shown(frequencies)}.",
            "Invert the weights to compensate for the imbalance: pass negatives / positives as pos_weight, or "
            "1 / frequency as weight.",
        )


def _shown(numbers: Tensor) -> str:
    first = ", ".join(f"{number:.3g}" for number in map(float, numbers[:4]))
    return f"{first}, ..." if len(numbers) > 4 else first  # noqa: PLR2004  # the numbers in first


_CHECKS: Mapping[str, tuple[Callable[[FunctionCall], Iterator[Finding]], ...]] = {
    "binary_cross_entropy_with_logits": (_check_logits,),
    "cosine_embedding_loss": (_check_signs,),
    "cross_entropy": (_check_probabilities, _check_logits, _check_padding),
    "ctc_loss": (_check_log_probabilities, _check_blanks),
    "hinge_embedding_loss": (_check_signs,),
    "huber_loss": (_check_bounds,),
    "kl_div": (_check_log_probabilities, _check_divergence),
    "l1_loss": (_check_bounds,),
    "margin_ranking_loss": (_check_signs,),
    "mse_loss": (_check_bounds,),
    "multilabel_soft_margin_loss": (_check_zeros_and_ones,),
    "nll_loss": (_check_padding,),
    "poisson_nll_loss": (_check_counts,),
    "smooth_l1_loss": (_check_bounds,),
    "soft_margin_loss": (_check_signs,),
    "triplet_margin_loss": (_check_triplets,),
}

WATCHED = tuple(_CHECKS)
"""Functions whose calls are checked."""
