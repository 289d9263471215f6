"""The kinds of findings, by the part of a script that they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

Level: TypeAlias = Literal["mistake", "warning", "note"]

LEVELS: tuple[Level, ...] = get_args(Level)
"""From the worst to the mildest."""

_RATE = "the loss stays, or grows"

_STRANGE = "invalid for the loss"

_STATE = "a run could not be resumed"

_TWICE = "applied twice"

_UNFINISHED = "NaN or infinite numbers"

_MAYBE = "may be on purpose"

_NO_EFFECT = "torch ignores it"

_SCHEDULE = "rates that do not fit the run"

_UNTRAINED = "some weights do not learn"


class Kind(NamedTuple):
    """A kind of finding.

    Attributes:
        wrong: The problem, in the words of the page for users; kinds with the same words share a row of its table.
        level: The level of such a finding, unless the observation says otherwise.
        page: The page of ``docs`` that says more, with the anchor of a heading; None if there is no such page.
    """

    wrong: str
    level: Level = "mistake"
    page: str | None = None


REGISTRY: Mapping[str, Mapping[str, Kind]] = {
    "data": {
        "augmentation-in-evaluation": Kind("random augmentation", page="data.md#augmentation"),
        "augmentation-repeats": Kind("samples seed global generators", page="data.md#augmentation"),
        "batches-mix-samples": Kind("targets of other samples"),
        "classes-never-occur": Kind("outputs without samples", "warning"),
        "classes-never-trained": Kind("divided after sorting", "warning"),
        "classes-of-one-set": Kind("divided after sorting", "warning"),
        "dimensions-scrambled": Kind("`reshape` for `permute`", "warning"),
        "evaluation-inputs-differ": Kind("normalised differently"),
        "evaluation-targets-differ": Kind("normalised differently", "warning"),
        "inputs-blank": Kind("a constant number", "warning"),
        "inputs-not-finite": Kind(_UNFINISHED, page="troubleshooting.md#nan-and-invalid-losses"),
        "inputs-not-normalised": Kind("such as pixels to 255"),
        "one-class": Kind("all targets are equal"),
        "near-copies-in-evaluation": Kind("oversampled, then divided", "warning"),
        "one-token-dominates": Kind("unknown words", "warning"),
        "overlap-with-evaluation": Kind("windows that overlap", "warning"),
        "placeholder-among-numbers": Kind("missing values as -999", "warning"),
        "same-samples-in-evaluation": Kind("evaluated on training samples"),
        "samples-equal": Kind("an index that is not used"),
        "samples-repeat": Kind("an index that is not used", "warning"),
        "sampler-leaves-samples-out": Kind("most are never drawn"),
        "samples-never-used": Kind("too short a `__len__`", "warning"),
        "part-of-batch-not-used": Kind("unused flags", "warning"),
        "sorted-by-class": Kind("class after class", page="data.md#batches-and-shuffling"),
        "stored-data-change": Kind("augmented in place"),
        "target-among-inputs": Kind("a leak", "warning"),
        "targets-not-finite": Kind(_UNFINISHED, page="troubleshooting.md#nan-and-invalid-losses"),
        "targets-unrelated-to-inputs": Kind("shuffled apart", "warning"),
        "views-are-equal": Kind("augmented once", "warning"),
        "workers-are-the-bottleneck": Kind("steps wait for batches", "note", "speed-and-memory.md#profiling"),
    },
    "model and loss": {
        "activation-before-loss": Kind("such as a ReLU before `CrossEntropyLoss`", "warning"),
        "class-weights-inverted": Kind("rare classes count less", "warning"),
        "inputs-do-not-matter": Kind("all outputs are equal"),
        "inputs-shorter-than-targets": Kind(_STRANGE),
        "label-smoothing-too-high": Kind("a half or more", "warning"),
        "log-probabilities-missing": Kind("`NLLLoss` without `LogSoftmax`"),
        "loss-arguments-swapped": Kind(_STRANGE),
        "loss-at-start": Kind("far above a guess", page="troubleshooting.md#wrong-results"),
        "loss-follows-batch-size": Kind(
            "losses are added up", page="guarantees.md#across-processes-accumulation-and-batch-size"
        ),
        "logits-too-flat": Kind("similarities without a temperature", "warning"),
        "loss-not-finite": Kind("NaN, though inputs are finite", page="troubleshooting.md#nan-and-invalid-losses"),
        "loss-prefers-wrong-outputs": Kind("the sign of the loss", "warning"),
        "one-output-for-classes": Kind("softmax of one number"),
        "outputs-more-than-classes": Kind("a last layer for other classes"),
        "padding-in-the-loss": Kind("padded targets count", "warning"),
        "samples-cost-nothing": Kind("targets without a gradient", "warning"),
        "samples-mix": Kind("outputs depend on neighbours"),
        "sigmoid-before-bce-with-logits": Kind(_TWICE),
        "softmax-before-cross-entropy": Kind(_TWICE),
        "targets-broadcast": Kind("(B,) against (B, 1)", page="run.md#from-a-batch-to-a-loss"),
        "targets-do-not-matter": Kind("other targets, same loss"),
        "targets-not-probabilities": Kind(_STRANGE, "warning"),
        "targets-of-another-type": Kind(_STRANGE),
        "targets-out-of-range": Kind(_STRANGE),
        "targets-out-of-reach": Kind("a sigmoid for numbers above 1", "warning"),
        "triplets-of-equals": Kind("no two to compare"),
    },
    "training": {
        "batch-not-learnt": Kind(_RATE, page="schedulers.md#finding-a-learning-rate"),
        "batch-of-one-with-batch-norm": Kind("even the last batch", page="data.md#loaders"),
        "clipping-too-low": Kind("to less than a thousandth"),
        "disk-too-small": Kind("too few states fit", page="training-states.md#cost"),
        "evaluation-not-repeatable": Kind("dropout or noise in evaluations", page="troubleshooting.md#wrong-results"),
        "frozen-in-optimizer": Kind(_MAYBE, "note", "finetuning.md"),
        "gradients-not-cleared": Kind("updates add up"),
        "half-precision-weights": Kind("updates are rounded away", page="mixed-precision.md#what-stays-in-float32"),
        "metric-does-not-depend-on-outputs": Kind("such as `argmax` of a column", "warning"),
        "not-in-training-mode": Kind("dropout is off"),
        "optimizer-of-another-model": Kind(_UNTRAINED),
        "parameters-outside-optimizer": Kind(_UNTRAINED),
        "parameters-without-gradient": Kind(_UNTRAINED),
        "rate-is-zero": Kind("nothing learns", page="schedulers.md#preview-a-schedule"),
        "rate-too-high": Kind(_RATE, page="schedulers.md#finding-a-learning-rate"),
        "state-not-loaded": Kind(_STATE, page="training-states.md#what-belongs-to-a-state"),
        "state-not-saved": Kind(_STATE, page="training-states.md#what-belongs-to-a-state"),
        "step-fails": Kind("something raises an error", page="troubleshooting.md#the-most-common-errors"),
        "trains-in-evaluation": Kind("`model.train()` in evaluations"),
        "weight-decay-on-norms": Kind(_MAYBE, "note", "finetuning.md#weight-decay-groups"),
        "weights-do-not-change": Kind("nothing learns", page="troubleshooting.md#wrong-results"),
    },
    "dependence": {
        "draws-repeat": Kind("each step seeds", "warning"),
        "evaluation-unlike-training": Kind("the mode changes outputs", "warning"),
        "future-is-seen": Kind("no causal mask"),
        "graphs-kept": Kind("memory grows", "warning"),
        "inputs-ignored": Kind("some inputs change nothing", "warning"),
        "loss-divided-twice": Kind("gradients are scaled down", "warning"),
        "mode-changes-in-step": Kind("`eval()` in `forward()`", "warning"),
        "order-ignored": Kind("attention without positions", "note"),
        "order-of-samples-matters": Kind("outputs with wrong targets", "warning"),
        "padding-matters": Kind("outputs follow the padding", "warning"),
        "state-between-batches": Kind("batches follow each other", "warning"),
        "targets-not-shifted": Kind("the answer is the input", "warning"),
    },
    "settings": {
        "callback-settings": Kind("never acts, or too early", "warning"),
        "flag-without-effect": Kind(_NO_EFFECT),
        "frozen-norm-moves": Kind("statistics follow the batches", "note"),
        "layer-repeated": Kind("the same weights again", "warning"),
        "layers-not-registered": Kind("layers in a list", "warning"),
        "option-without-effect": Kind(_NO_EFFECT),
        "rate-far-below": Kind(_SCHEDULE, "warning"),
        "schedule-does-not-fit": Kind(_SCHEDULE, "warning"),
        "scheduler-not-given": Kind(_SCHEDULE, "warning"),
        "statistics-move-twice": Kind(
            "BatchNorm is recomputed", "warning", "speed-and-memory.md#activation-checkpointing"
        ),
        "units-are-identical": Kind("constant weights"),
        "unusual-option": Kind("such as swapped betas", "warning"),
        "weights-barely-move": Kind(_RATE, "warning"),
        "weights-not-initialised": Kind("numbers from memory", "warning"),
    },
}


KINDS: Mapping[str, Kind] = {name: kind for part in REGISTRY.values() for name, kind in part.items()}

CAUSES: Mapping[str, tuple[str, ...]] = {
    "batch-not-learnt": ("clipping-too-low", "inputs-do-not-matter", "rate-is-zero"),
    "loss-at-start": ("inputs-not-normalised",),
    "loss-not-finite": ("inputs-not-finite", "targets-not-finite"),
    "rate-too-high": ("inputs-not-finite", "targets-not-finite", "inputs-not-normalised"),
    "step-fails": ("optimizer-of-another-model",),
    "targets-do-not-matter": ("inputs-do-not-matter",),
}
"""The findings that are left out if their cause was found."""
