"""Mistakes in what a loss makes of the outputs of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import lines, masks, points
from tests.support.pa_preflight.scripts import Planting, Script, perceptron, script

planted = Planting()


@planted("loss-prefers-wrong-outputs")
def overlap_as_a_loss() -> Script:
    """The overlap of masks is minimised."""

    def overlap(outputs: Tensor, targets: Tensor) -> Tensor:
        filled, wanted = outputs.sigmoid(), targets.float()[:, None]
        return (2 * filled * wanted).sum() / (filled.sum() + wanted.sum())

    data = masks()
    return script(nn.Conv2d(1, 1, 3, padding=1), overlap, TensorDataset(data.tensors[0], data.tensors[1].float()))


@planted("loss-prefers-wrong-outputs")
def likelihood_without_its_sign() -> Script:
    """The likelihood of the right class is minimised."""

    def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.log_softmax(dim=1).gather(1, targets[:, None]).mean()

    return script(perceptron(8, 4), likelihood, points())


@planted("loss-prefers-wrong-outputs")
def negated_error() -> Script:
    """The error has a sign that was meant for a score."""

    def score(outputs: Tensor, targets: Tensor) -> Tensor:
        return -(outputs - targets).abs().clamp(max=3).mean()

    return script(perceptron(6, 1), score, lines())


@planted("samples-cost-nothing")
def zeros_in_a_hinge() -> Script:
    """A hinge loss, written by hand, is given 0 for -1."""

    def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 - targets * outputs).clamp(min=0).mean()

    inputs, targets = points(classes=2).tensors
    return script(perceptron(8, 1), hinge, TensorDataset(inputs, targets[:, None].float()))


class Matching(Trainer):
    """Finds the second half of each sample by the first."""

    factor = 0.1

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        first, second = (functional.normalize(self.model(one), dim=1) for one in batch)
        logits = first @ second.T * self.factor
        loss = functional.cross_entropy(logits, torch.arange(len(logits)))
        return {"loss": loss, "model_outputs": logits, "batch_size": len(logits)}


def halves() -> TensorDataset:
    """Two views of each sample."""
    inputs, _ = lines(features=12).tensors
    return TensorDataset(inputs[:, :6], inputs[:, :6] + 0.1 * inputs[:, 6:])


@planted("logits-too-flat")
def multiplied_by_the_temperature() -> Script:
    """Similarities are multiplied by a temperature of 0.1."""
    return script(perceptron(6, 8), None, halves(), kind=Matching)


class Counting(Trainer):
    """Logs the accuracy of two classes, which one output tells apart."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (self.predicted(output["model_outputs"]) == batch[1].flatten()).float().mean())
        return output

    def predicted(self, outputs: Tensor) -> Tensor:
        """The class of each sample."""
        return outputs.argmax(dim=1)


def two_classes(seed: int = 1) -> TensorDataset:
    """Points of two classes, with targets of shape (N, 1)."""
    inputs, targets = points(classes=2, seed=seed).tensors
    return TensorDataset(inputs, targets[:, None].float())


@planted("metric-does-not-depend-on-outputs")
def argmax_of_one_output() -> Script:
    """The accuracy takes the largest of one number, which is always the first."""
    loss_func, data = nn.BCEWithLogitsLoss(), two_classes()
    return script(perceptron(8, 1), loss_func, data, eval_dataset=two_classes(seed=2), kind=Counting)
