"""What a check can find: what is wrong, as the page for users has it, and what the check advises."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """A finding.

    Attributes:
        wrong: What is wrong; findings with the same words share a row of the table.
        do: What the check advises, in part.
        level: That of what was planted.
    """

    wrong: str
    do: str
    level: str = "mistake"


_RATE = "the loss stays, or grows"
_STRANGE = "what the loss cannot take"
_STATE = "a run could not be resumed"
_TWICE = "applied twice"
_UNFINISHED = "NaN or infinite numbers"
_MAYBE = "may be meant so"
_NO_EFFECT = "nobody reads it"
_SCHEDULE = "rates that do not fit the run"
_UNTRAINED = "some weights do not learn"

KNOWN: dict[str, dict[str, Known]] = {
    "data": {
        "augmentation-in-evaluation": Known("random augmentation", "dataset without random augmentation"),
        "augmentation-repeats": Known("samples seed global generators", "Leave seeding to the trainer"),
        "batches-mix-samples": Known("targets of other samples", "Look at collate_fn"),
        "classes-never-occur": Known("outputs without samples", "how targets are read", "warning"),
        "classes-never-trained": Known("divided after sorting", "or divide each class", "warning"),
        "classes-of-one-set": Known("divided after sorting", "or divide each class", "warning"),
        "dimensions-scrambled": Known("`reshape` for `permute`", "Use permute or transpose", "warning"),
        "evaluation-inputs-differ": Known("normalised differently", "Give both datasets the same"),
        "evaluation-targets-differ": Known("normalised differently", "numbers of the training set", "warning"),
        "inputs-blank": Known("one constant number", "how they are read and scaled", "warning"),
        "inputs-not-finite": Known(_UNFINISHED, "Look for missing values"),
        "inputs-not-normalised": Known("such as pixels to 255", "divide by its standard deviation"),
        "one-class": Known("all targets are equal", "how the dataset makes its targets"),
        "near-copies-in-evaluation": Known("oversampled, then divided", "Divide the samples first", "warning"),
        "one-token-dominates": Known("unknown words", "looked up in the vocabulary", "warning"),
        "overlap-with-evaluation": Known("windows that overlap", "Divide a series by time", "warning"),
        "placeholder-among-numbers": Known("missing values as -999", "Make them NaN", "warning"),
        "same-samples-in-evaluation": Known("trained on what is evaluated", "Divide the samples"),
        "samples-equal": Known("an index that is not used", "how __getitem__ uses its index"),
        "samples-repeat": Known("an index that is not used", "how __getitem__ uses its index", "warning"),
        "sampler-leaves-samples-out": Known("most are never drawn", "ne weight for each sample"),
        "samples-never-used": Known("too short a `__len__`", "Let __len__ return", "warning"),
        "part-of-batch-not-used": Known("unused flags", "Use it in calculate", "warning"),
        "sorted-by-class": Known("class after class", "Leave out shuffle=False"),
        "stored-data-change": Known("augmented in place", "Copy a sample"),
        "target-among-inputs": Known("a leak", "Leave that column out", "warning"),
        "targets-not-finite": Known(_UNFINISHED, "missing values"),
        "targets-unrelated-to-inputs": Known("shuffled apart", "inputs and targets part ways", "warning"),
        "views-are-equal": Known("augmented once", "other random numbers for each view", "warning"),
        "workers-are-the-bottleneck": Known("steps wait for batches", "Pass num_workers=", "note"),
    },
    "model and loss": {
        "activation-before-loss": Known("such as a ReLU before `CrossEntropyLoss`", "the last activation", "warning"),
        "class-weights-inverted": Known("rare classes count less", "Take the inverse", "warning"),
        "inputs-do-not-matter": Known("all outputs are equal", "Look for a layer whose outputs are all"),
        "inputs-shorter-than-targets": Known(_STRANGE, "Look at input_lengths"),
        "label-smoothing-too-high": Known("a half or more", "Smooth by about 0.1", "warning"),
        "log-probabilities-missing": Known("`NLLLoss` without `LogSoftmax`", "Use CrossEntropyLoss"),
        "loss-arguments-swapped": Known(_STRANGE, "what they are to become second"),
        "loss-at-start": Known("far above a guess", "smaller weights in the last layer"),
        "loss-follows-batch-size": Known("losses are added up", 'Use reduction="mean"'),
        "logits-too-flat": Known("similarities without a temperature", "Divide the similarities", "warning"),
        "loss-not-finite": Known("NaN, though inputs are finite", "Look for log(0)"),
        "loss-prefers-wrong-outputs": Known("the sign of the loss", "Turn the sign of the loss", "warning"),
        "one-output-for-classes": Known("softmax of one number", "Use BCEWithLogitsLoss"),
        "outputs-more-than-classes": Known("a last layer for other classes", "Replace the last layer by one with"),
        "padding-in-the-loss": Known("padded targets count", "Pass ignore_index=", "warning"),
        "samples-cost-nothing": Known("targets without a gradient", "which targets the loss needs", "warning"),
        "samples-mix": Known("outputs depend on neighbours", "and for batch_first=True"),
        "sigmoid-before-bce-with-logits": Known(_TWICE, "Leave the sigmoid out of the model"),
        "softmax-before-cross-entropy": Known(_TWICE, "Leave the softmax out of the model"),
        "targets-broadcast": Known("(B,) against (B, 1)", "unsqueeze(1)"),
        "targets-do-not-matter": Known("other targets, same loss", "what calculate_train_batch_loss compares"),
        "targets-not-probabilities": Known(_STRANGE, "multi-label", "warning"),
        "targets-of-another-type": Known(_STRANGE, "Convert them: targets."),
        "targets-out-of-range": Known(_STRANGE, "Number the classes from 0"),
        "targets-out-of-reach": Known("a sigmoid for numbers above 1", "Scale the targets", "warning"),
        "triplets-of-equals": Known("no two to compare", "how triplets are made"),
    },
    "training": {
        "batch-not-learnt": Known(_RATE, "Search for a rate with pa_schedulers.find_learning_rate"),
        "batch-of-one-with-batch-norm": Known("even the last batch", "drop_last=True"),
        "clipping-too-low": Known("to less than a thousandth", "such as a norm of 1"),
        "disk-too-small": Known("too few states fit", "Pass a smaller max_checkpoints"),
        "evaluation-not-repeatable": Known("dropout or noise in evaluations", "noise that ignores self.training"),
        "frozen-in-optimizer": Known(_MAYBE, "call requires_grad_(True)", "note"),
        "gradients-not-cleared": Known("updates add up", "optimizer_zero_grad that does not call zero_grad"),
        "half-precision-weights": Known("updates are rounded away", 'mixed_precision="bf16"'),
        "metric-does-not-depend-on-outputs": Known("such as `argmax` of a column", "argmax of one column", "warning"),
        "not-in-training-mode": Known("dropout is off", "Call model.train()"),
        "optimizer-of-another-model": Known(_UNTRAINED, "Make the optimizer with model.parameters()"),
        "parameters-outside-optimizer": Known(_UNTRAINED, "Make the optimizer after the last layer"),
        "parameters-without-gradient": Known(_UNTRAINED, "a layer that forward() does not call"),
        "rate-is-zero": Known("nothing learns", "what the scheduler multiplies it with"),
        "rate-too-high": Known(_RATE, "Search for a rate with pa_schedulers.find_learning_rate"),
        "state-not-loaded": Known(_STATE, "Let load_state_dict() restore"),
        "state-not-saved": Known(_STATE, "Let each state_dict() return tensors"),
        "step-fails": Known("something raises an error", "look at the traceback"),
        "trains-in-evaluation": Known("`model.train()` in evaluations", "Call model.eval()"),
        "weight-decay-on-norms": Known("may be meant so", "another parameter group, with weight_decay=0", "note"),
        "weights-do-not-change": Known("nothing learns", "optimizer_step that does not call the optimizer"),
    },
    "dependence": {
        "draws-repeat": Known("each step seeds", "Seed once", "warning"),
        "evaluation-unlike-training": Known("the mode changes outputs", "by self.training", "warning"),
        "future-is-seen": Known("no causal mask", "Pass a causal mask"),
        "graphs-kept": Known("memory grows", "keep value.detach()", "warning"),
        "inputs-ignored": Known("some inputs change nothing", "a slice that takes one step", "warning"),
        "loss-divided-twice": Known("gradients are scaled down", "Return the mean over the batch", "warning"),
        "mode-changes-in-step": Known("`eval()` in `forward()`", "Look for eval()", "warning"),
        "order-ignored": Known("attention without positions", "Add position embeddings", "note"),
        "order-of-samples-matters": Known("outputs with wrong targets", "Look for a view()", "warning"),
        "padding-matters": Known("outputs follow the padding", "Pass padding_idx=0", "warning"),
        "state-between-batches": Known("batches follow each other", "a new state", "warning"),
        "targets-not-shifted": Known("the answer is the input", "Predict the next step", "warning"),
    },
    "settings": {
        "callback-settings": Known("never acts, or too early", "", "warning"),
        "flag-without-effect": Known(_NO_EFFECT, "Call requires_grad_(False)"),
        "frozen-norm-moves": Known("statistics follow the batches", "Call eval() on frozen", "note"),
        "layer-repeated": Known("the same weights again", "Make a new layer each time", "warning"),
        "layers-not-registered": Known("layers in a list", "Use nn.ModuleList", "warning"),
        "option-without-effect": Known(_NO_EFFECT, "Call it lr"),
        "rate-far-below": Known(_SCHEDULE, "return factors", "warning"),
        "schedule-does-not-fit": Known(_SCHEDULE, "", "warning"),
        "scheduler-not-given": Known(_SCHEDULE, "create_scheduler_fn", "warning"),
        "statistics-move-twice": Known("BatchNorm is recomputed", "1 - math.sqrt(1 - m)", "warning"),
        "units-are-identical": Known("constant weights", "Initialise weights at random"),
        "unusual-option": Known("such as swapped betas", "unless it was chosen on purpose", "warning"),
        "weights-barely-move": Known(_RATE, "Raise the learning rate", "warning"),
        "weights-not-initialised": Known("numbers from memory", "torch.empty()", "warning"),
    },
}
"""By the part of a script that they are in."""
