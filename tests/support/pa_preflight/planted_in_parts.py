"""Mistakes in the parts of a batch: one that the step does not use, and two that are one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import lines
from tests.support.pa_preflight.scripts import Planting, Script, perceptron, script

planted = Planting()


def observed_for_some_time() -> TensorDataset:
    """Inputs, times until something happens, and whether it has happened when the observation ends."""
    inputs, times = lines().tensors
    happened = times[:, 0] < 0.5
    return TensorDataset(inputs, times.clamp(max=0.5), happened)


class Survival(Trainer):
    """Predicts times, of which some are known to be longer than the observation."""

    uses_flag = False

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, times, happened = batch
        outputs = self.model(inputs)
        errors = outputs - times
        if self.uses_flag:
            errors = torch.where(happened[:, None], errors, errors.clamp(max=0))
        return {"loss": errors.square().mean(), "model_outputs": outputs, "batch_size": len(inputs)}


@planted("part-of-batch-not-used")
def ends_that_are_not_used() -> Script:
    """Times of those who are still observed count as if it had happened to them."""
    return script(perceptron(6, 1), None, observed_for_some_time(), kind=Survival)


class TwoViews(Dataset[tuple[Tensor, Tensor]]):
    """Two noisy views of each sample."""

    draws_twice = True

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        view, other = (self.inputs[index] + 0.2 * torch.randn(6) for _ in range(2))
        return view, other if self.draws_twice else view.clone()


class OneView(TwoViews):
    """The same view twice."""

    draws_twice = False


class Comparing(Trainer):
    """Finds out which two views are of one sample."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        first, second = (functional.normalize(self.model(view), dim=1) for view in batch)
        loss = functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(first), device=first.device))
        return {"loss": loss, "model_outputs": first, "batch_size": len(first)}


@planted("views-are-equal")
def one_view_twice() -> Script:
    """Each sample is augmented once for both views."""
    return script(perceptron(6, 8), None, OneView(lines().tensors[0]), kind=Comparing)


@planted("views-are-equal", level="note")
def one_view_with_dropout() -> Script:
    """Dropout makes two views of one, as in SimCSE."""
    model = nn.Sequential(nn.Dropout(0.2), *perceptron(6, 8))
    return script(model, None, OneView(lines().tensors[0]), kind=Comparing)
