"""Mistakes in what losses of torch are called with, each of which raises no error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import labels_of_several, lines, points, sequences
from tests.support.pa_preflight.scripts import Apply, Planting, Script, perceptron, script

planted = Planting()


def soft_points() -> TensorDataset:
    """Points with the probabilities of their classes."""
    inputs, targets = points().tensors
    return TensorDataset(inputs, (3.0 * functional.one_hot(targets, 4)).softmax(dim=1))


def rare_points() -> TensorDataset:
    """Points of two classes, of which the second is rare."""
    inputs, targets = points(2000, classes=12).tensors
    return TensorDataset(inputs, (targets == 0).long())


@planted("log-probabilities-missing", do="Apply log_softmax")
def divergence_of_probabilities() -> Script:
    """KLDivLoss is given probabilities."""
    return script(nn.Sequential(*perceptron(8, 4), nn.Softmax(1)), nn.KLDivLoss(reduction="batchmean"), soft_points())


@planted("log-probabilities-missing", do="Apply log_softmax")
def alignment_of_logits() -> Script:
    """CTCLoss is given logits."""
    return script(nn.Linear(6, 5), _aligned, sequences(labels_from=1))


def _aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    lengths = torch.full((len(outputs),), outputs.shape[1])
    return functional.ctc_loss(outputs.transpose(0, 1), targets, lengths, torch.full((len(outputs),), 3))


@planted("targets-out-of-range", do="labels from 1 on")
def labels_from_the_blank_on() -> Script:
    """Labels begin at 0, which is the blank of CTCLoss."""
    model = nn.Sequential(nn.Linear(6, 5), nn.LogSoftmax(2))
    return script(model, _aligned, sequences(labels_from=0))


@planted("inputs-shorter-than-targets")
def shortened_too_much() -> Script:
    """The model leaves two steps of ten, and each sample has three labels."""
    model = nn.Sequential(Apply(lambda steps: steps[:, ::5]), nn.Linear(6, 5), nn.LogSoftmax(2))
    return script(model, _aligned, sequences(labels_from=1))


@planted("targets-out-of-range", do="2 * targets - 1")
def zeros_for_a_margin() -> Script:
    """SoftMarginLoss is given labels 0 and 1, where it needs -1 and 1."""
    return script(perceptron(8, 5), nn.SoftMarginLoss(), labels_of_several())


@planted("targets-out-of-range", do="(targets + 1) / 2")
def minus_ones_for_several_labels() -> Script:
    """MultiLabelSoftMarginLoss is given labels -1 and 1, where it needs 0 and 1."""
    inputs, targets = labels_of_several().tensors
    return script(perceptron(8, 5), nn.MultiLabelSoftMarginLoss(), TensorDataset(inputs, 2 * targets - 1))


@planted("targets-out-of-range", do="counts that are not standardised")
def standardised_counts() -> Script:
    """The targets of PoissonNLLLoss are standardised, and half of them negative."""
    return script(perceptron(6, 1), nn.PoissonNLLLoss(), lines())


@planted("targets-out-of-range", do="log_target=True")
def logarithms_as_targets() -> Script:
    """The targets of KLDivLoss are logarithms, and it was not told."""
    inputs, targets = soft_points().tensors
    model = nn.Sequential(*perceptron(8, 4), nn.LogSoftmax(1))
    return script(model, nn.KLDivLoss(reduction="batchmean"), TensorDataset(inputs, targets.log()))


@planted("loss-arguments-swapped")
def targets_first() -> Script:
    """The divergence is taken of the targets from the outputs."""

    def divergence(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.kl_div(targets.log(), outputs.softmax(dim=1), reduction="batchmean")

    return script(perceptron(8, 4), divergence, soft_points())


class _Triplets(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        first, second = self.model(batch[0]), self.model(batch[0])
        others = first.roll(1, 0)
        loss = functional.triplet_margin_loss(first, second, others)
        return {"loss": loss, "model_outputs": first, "batch_size": len(first)}


@planted("triplets-of-equals")
def anchors_that_are_positives() -> Script:
    """The anchor is compared with itself, as the second view is the same picture."""
    return script(perceptron(8, 4), None, points(), kind=_Triplets)


@planted("one-output-for-classes")
def cross_entropy_of_one_output() -> Script:
    """Two classes are predicted by one number, of which a softmax is taken."""

    class OneOutput(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            outputs = self.model(batch[0])
            loss = functional.cross_entropy(outputs, batch[1][:, None].float())
            return {"loss": loss, "model_outputs": outputs, "batch_size": len(outputs)}

    return script(perceptron(8, 1), None, points(classes=2), kind=OneOutput)


@planted("targets-not-probabilities")
def several_labels_in_cross_entropy() -> Script:
    """Samples have several labels, which a softmax cannot predict together."""
    return script(perceptron(8, 5), nn.CrossEntropyLoss(), labels_of_several())


@planted("label-smoothing-too-high")
def smoothed_by_nine_tenths() -> Script:
    """Label smoothing is 0.9, which was to be the share of the right class."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(label_smoothing=0.9), points())


@planted("padding-in-the-loss")
def padded_targets_that_count() -> Script:
    """Sequences of tags are padded with 0, which is trained as if it were a tag."""
    tokens, tags = padded_tags().tensors
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 4), Apply(lambda logits: logits.transpose(1, 2)))
    return script(model, nn.CrossEntropyLoss(), TensorDataset(tokens, tags))


def padded_tags() -> TensorDataset:
    """Sequences of 6 to 12 tokens, and their tags from 1 to 3, both padded with 0."""
    draws = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 20, (320, 12), generator=draws)
    is_padding = torch.arange(12) >= torch.randint(6, 13, (320, 1), generator=draws)
    tags = 1 + tokens % 3
    return TensorDataset(tokens.masked_fill(is_padding, 0), tags.masked_fill(is_padding, 0))


@planted("activation-before-loss")
def relu_before_cross_entropy() -> Script:
    """The last layer has an activation like all others."""
    return script(nn.Sequential(*perceptron(8, 4), nn.ReLU()), nn.CrossEntropyLoss(), points())


@planted("activation-before-loss")
def tanh_before_the_loss() -> Script:
    """Outputs are between -1 and 1, and the loss applies a sigmoid."""
    return script(nn.Sequential(*perceptron(8, 5), nn.Tanh()), nn.BCEWithLogitsLoss(), labels_of_several())


@planted("activation-before-loss", do="log_input=False")
def exponential_for_the_logarithm_of_counts() -> Script:
    """The model predicts counts, and the loss takes them for logarithms."""
    inputs, targets = lines().tensors
    model = nn.Sequential(*perceptron(6, 1), nn.Softplus())
    return script(model, nn.PoissonNLLLoss(), TensorDataset(inputs, (2 * targets.exp()).round()))


@planted("targets-out-of-reach", level="mistake")
def sigmoid_for_positions_in_pixels() -> Script:
    """Targets are positions in pixels, and the model ends in a sigmoid."""
    inputs, targets = lines(outputs=2).tensors
    model = nn.Sequential(*perceptron(6, 2), nn.Sigmoid())
    return script(model, nn.SmoothL1Loss(), TensorDataset(inputs, 32 + 8 * targets))


@planted("targets-out-of-reach")
def relu_for_signed_numbers() -> Script:
    """Targets are of both signs, and the model ends in a ReLU."""
    return script(nn.Sequential(*perceptron(6, 1), nn.ReLU()), nn.MSELoss(), lines())


@planted("class-weights-inverted")
def frequent_ones_weighted() -> Script:
    """The weight of each class is its frequency, not the inverse."""
    data = rare_points()
    weight = data.tensors[1].bincount() / len(data)
    return script(perceptron(8, 2), nn.CrossEntropyLoss(weight=weight), data)


@planted("class-weights-inverted")
def positives_weighted_by_their_share() -> Script:
    """pos_weight is positives by negatives."""
    inputs, targets = rare_points().tensors
    data = TensorDataset(inputs, targets[:, None].float())
    return script(perceptron(8, 1), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.09)), data)
