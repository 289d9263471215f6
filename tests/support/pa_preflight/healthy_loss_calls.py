"""Scripts without a mistake that call the losses of torch as those call them that have one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.support.pa_preflight.data import labels_of_several, lines, sequences
from tests.support.pa_preflight.planted_in_loss_calls import padded_tags, rare_points, soft_points
from tests.support.pa_preflight.scripts import Apply, Healthy, Script, perceptron, script

healthy = Healthy()


@healthy
def divergence_of_logarithms() -> Script:
    """KLDivLoss is given logarithms of probabilities, and probabilities."""
    model = nn.Sequential(*perceptron(8, 4), nn.LogSoftmax(1))
    return script(model, nn.KLDivLoss(reduction="batchmean"), soft_points())


@healthy
def sequences_aligned() -> Script:
    """CTCLoss has logarithms, enough steps, and labels other than the blank."""

    def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
        lengths = torch.full((len(outputs),), outputs.shape[1])
        return functional.ctc_loss(outputs.transpose(0, 1), targets, lengths, torch.full((len(outputs),), 3))

    return script(nn.Sequential(nn.Linear(6, 5), nn.LogSoftmax(2)), aligned, sequences(labels_from=1))


@healthy
def margin_of_signs() -> Script:
    """SoftMarginLoss has labels -1 and 1."""
    inputs, targets = labels_of_several().tensors
    return script(perceptron(8, 5), nn.SoftMarginLoss(), TensorDataset(inputs, 2 * targets - 1))


@healthy
def counts_of_events() -> Script:
    """PoissonNLLLoss has counts, and outputs that are their logarithms."""
    inputs, targets = lines().tensors
    return script(perceptron(6, 1), nn.PoissonNLLLoss(), TensorDataset(inputs, (2 * targets.exp()).round()))


@healthy
def soft_labels_smoothed() -> Script:
    """Cross entropy has probabilities as targets, and smooths them a little."""
    return script(perceptron(8, 4), nn.CrossEntropyLoss(label_smoothing=0.1), soft_points())


@healthy
def padding_ignored() -> Script:
    """Sequences are padded with 0, which the loss ignores."""
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 4), Apply(lambda logits: logits.transpose(1, 2)))
    return script(model, nn.CrossEntropyLoss(ignore_index=0), padded_tags())


@healthy
def sigmoid_for_shares() -> Script:
    """Targets are between 0 and 1, and the model ends in a sigmoid."""
    inputs, targets = lines(outputs=2).tensors
    return script(
        nn.Sequential(*perceptron(6, 2), nn.Sigmoid()), nn.MSELoss(), TensorDataset(inputs, targets.sigmoid())
    )


@healthy
def rare_ones_weighted() -> Script:
    """The weight of each class is the inverse of its frequency."""
    data = rare_points()
    weight = len(data) / data.tensors[1].bincount()
    return script(perceptron(8, 2), nn.CrossEntropyLoss(weight=weight), data)
