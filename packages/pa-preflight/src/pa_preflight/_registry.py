"""The kinds of findings, by the part of a script that they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

Level: TypeAlias = Literal["mistake", "warning", "note"]

LEVELS: tuple[Level, ...] = get_args(Level)
"""From the worst to the mildest."""

_RATE = "the loss grows or does not fall"

_STRANGE = "the loss gets invalid values"

_STATE = "the run could not be resumed"

_TWICE = "softmax or sigmoid is applied twice"

_UNFINISHED = "values are NaN or infinite"

_MAYBE = "this may be on purpose"

_NO_EFFECT = "torch ignores the setting"

_SCHEDULE = "the learning rates do not fit the run"

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
        "augmentation-in-evaluation": Kind("evaluation samples are augmented at random", page="data.md#augmentation"),
        "augmentation-repeats": Kind("a sample seeds the global generators", page="data.md#augmentation"),
        "batches-mix-samples": Kind("samples get the targets of other samples"),
        "classes-never-occur": Kind("some outputs have no samples", "warning"),
        "classes-never-trained": Kind("the sets were split from sorted data", "warning"),
        "classes-of-one-set": Kind("the sets were split from sorted data", "warning"),
        "dimensions-scrambled": Kind("`reshape` was used instead of `permute`", "warning"),
        "evaluation-inputs-differ": Kind("the two sets are normalized differently"),
        "evaluation-targets-differ": Kind("the two sets are normalized differently", "warning"),
        "inputs-blank": Kind("all numbers of an input are equal", "warning"),
        "inputs-not-finite": Kind(_UNFINISHED, page="troubleshooting.md#nan-and-invalid-losses"),
        "inputs-not-normalised": Kind("inputs have a large scale, for example pixels up to 255"),
        "one-class": Kind("all targets are equal"),
        "near-copies-in-evaluation": Kind("samples were repeated before the split", "warning"),
        "one-token-dominates": Kind("most words are unknown to the tokenizer", "warning"),
        "overlap-with-evaluation": Kind("windows of both sets overlap", "warning"),
        "placeholder-among-numbers": Kind("missing values are numbers like -999", "warning"),
        "same-samples-in-evaluation": Kind("the evaluation contains training samples"),
        "samples-equal": Kind("`__getitem__` ignores its index"),
        "samples-repeat": Kind("`__getitem__` ignores its index", "warning"),
        "sampler-leaves-samples-out": Kind("the sampler never draws most samples"),
        "samples-never-used": Kind("`__len__` is too small", "warning"),
        "part-of-batch-not-used": Kind("the step ignores a part of the batch", "warning"),
        "sorted-by-class": Kind("samples are in the order of their classes", page="data.md#batches-and-shuffling"),
        "stored-data-change": Kind("augmentation changes the stored data"),
        "target-among-inputs": Kind("an input reveals the target", "warning"),
        "targets-not-finite": Kind(_UNFINISHED, page="troubleshooting.md#nan-and-invalid-losses"),
        "targets-unrelated-to-inputs": Kind("inputs and targets were shuffled separately", "warning"),
        "views-are-equal": Kind("both views of a sample are equal", "warning"),
        "workers-are-the-bottleneck": Kind(
            "steps wait for the data", "note", "speed-and-memory.md#is-loading-data-the-bottleneck"
        ),
    },
    "model and loss": {
        "activation-before-loss": Kind("for example a ReLU before `CrossEntropyLoss`", "warning"),
        "class-weights-inverted": Kind("rare classes have smaller weights", "warning"),
        "inputs-do-not-matter": Kind("all outputs are equal"),
        "inputs-shorter-than-targets": Kind(_STRANGE),
        "label-smoothing-too-high": Kind("label smoothing is 0.5 or more", "warning"),
        "log-probabilities-missing": Kind("`NLLLoss` gets outputs without `LogSoftmax`"),
        "loss-arguments-swapped": Kind(_STRANGE),
        "loss-at-start": Kind("the first loss is far above chance level", page="troubleshooting.md#wrong-results"),
        "loss-follows-batch-size": Kind(
            "losses are summed, not averaged", page="guarantees.md#across-processes-accumulation-and-batch-size"
        ),
        "logits-too-flat": Kind("similarities have no temperature", "warning"),
        "loss-not-finite": Kind(
            "the loss is NaN, but the inputs are finite", page="troubleshooting.md#nan-and-invalid-losses"
        ),
        "loss-prefers-wrong-outputs": Kind("the loss has the wrong sign", "warning"),
        "one-output-for-classes": Kind("softmax of a single number is always 1"),
        "outputs-more-than-classes": Kind("the last layer has too many outputs"),
        "padding-in-the-loss": Kind("the loss includes padding", "warning"),
        "samples-cost-nothing": Kind("some targets have no gradient", "warning"),
        "samples-mix": Kind("the output of a sample depends on its batch"),
        "sigmoid-before-bce-with-logits": Kind(_TWICE),
        "softmax-before-cross-entropy": Kind(_TWICE),
        "targets-broadcast": Kind("shapes (B,) and (B, 1) are broadcast", page="run.md#from-a-batch-to-a-loss"),
        "targets-do-not-matter": Kind("the loss ignores the targets"),
        "targets-not-probabilities": Kind(_STRANGE, "warning"),
        "targets-of-another-type": Kind(_STRANGE),
        "targets-out-of-range": Kind(_STRANGE),
        "targets-out-of-reach": Kind("for example a sigmoid for targets above 1", "warning"),
        "triplets-of-equals": Kind("two parts of each triplet are equal"),
    },
    "training": {
        "batch-not-learnt": Kind(_RATE, page="schedulers.md#finding-a-learning-rate"),
        "batch-of-one-with-batch-norm": Kind("batch norm gets a batch of one sample", page="data.md#loaders"),
        "clipping-too-low": Kind("gradients are clipped to less than a thousandth of their size"),
        "disk-too-small": Kind("the planned states do not fit on the disk", page="training-states.md#cost"),
        "evaluation-not-repeatable": Kind("evaluations use dropout or noise", page="troubleshooting.md#wrong-results"),
        "frozen-in-optimizer": Kind(_MAYBE, "note", "finetuning.md"),
        "gradients-not-cleared": Kind("gradients of earlier updates are kept"),
        "half-precision-weights": Kind("updates are rounded away", page="mixed-precision.md#what-stays-in-float32"),
        "metric-does-not-depend-on-outputs": Kind("for example `argmax` of a single column", "warning"),
        "not-in-training-mode": Kind("dropout is off in training"),
        "optimizer-of-another-model": Kind(_UNTRAINED),
        "parameters-outside-optimizer": Kind(_UNTRAINED),
        "parameters-without-gradient": Kind(_UNTRAINED),
        "rate-is-zero": Kind("nothing learns", page="schedulers.md#preview-a-schedule"),
        "rate-too-high": Kind(_RATE, page="schedulers.md#finding-a-learning-rate"),
        "state-not-loaded": Kind(_STATE, page="training-states.md#what-belongs-to-a-state"),
        "state-not-saved": Kind(_STATE, page="training-states.md#what-belongs-to-a-state"),
        "step-fails": Kind("a step raises an error", page="troubleshooting.md#the-most-common-errors"),
        "trains-in-evaluation": Kind("evaluations call `model.train()`"),
        "weight-decay-on-norms": Kind(_MAYBE, "note", "finetuning.md#weight-decay-groups"),
        "weights-do-not-change": Kind("nothing learns", page="troubleshooting.md#wrong-results"),
    },
    "behavior": {
        "draws-repeat": Kind("each step seeds the generators", "warning"),
        "evaluation-unlike-training": Kind("`eval()` changes the outputs too much", "warning"),
        "future-is-seen": Kind("there is no causal mask"),
        "graphs-kept": Kind("memory grows with each update", "warning"),
        "inputs-ignored": Kind("some inputs do not change the outputs", "warning"),
        "loss-divided-twice": Kind("gradients are scaled down", "warning"),
        "mode-changes-in-step": Kind("`forward()` calls `eval()`", "warning"),
        "order-ignored": Kind("attention gets no positional encodings", "note"),
        "order-of-samples-matters": Kind("outputs are compared with the targets of other samples", "warning"),
        "padding-matters": Kind("outputs depend on padding", "warning"),
        "state-between-batches": Kind("the model keeps a state between batches", "warning"),
        "targets-not-shifted": Kind("each target is its own input", "warning"),
    },
    "settings": {
        "callback-settings": Kind("a callback never acts, or acts too early", "warning"),
        "flag-without-effect": Kind(_NO_EFFECT),
        "frozen-norm-moves": Kind("statistics of a frozen norm change", "note"),
        "layer-repeated": Kind("a layer occurs twice with the same weights", "warning"),
        "layers-not-registered": Kind("layers are in a plain list", "warning"),
        "option-without-effect": Kind(_NO_EFFECT),
        "rate-far-below": Kind(_SCHEDULE, "warning"),
        "schedule-does-not-fit": Kind(_SCHEDULE, "warning"),
        "scheduler-not-given": Kind(_SCHEDULE, "warning"),
        "statistics-move-twice": Kind(
            "checkpointing runs batch norm twice",
            "warning",
            "speed-and-memory.md#activation-checkpointing-gradient-checkpointing",
        ),
        "units-are-identical": Kind("all units of a layer are equal"),
        "unusual-option": Kind("for example swapped betas", "warning"),
        "weights-barely-move": Kind("the whole run barely moves the weights", "warning"),
        "weights-not-initialised": Kind("weights are uninitialized memory", "warning"),
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
