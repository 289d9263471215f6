"""Scripts without a mistake that leave parts of a batch alone, or have equal ones."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer
from tests.support.pa_preflight.data import lines
from tests.support.pa_preflight.planted_in_parts import Comparing, Survival, TwoViews, observed_for_some_time
from tests.support.pa_preflight.scripts import Healthy, Script, perceptron, script

healthy = Healthy()


@healthy
def ends_that_are_used() -> Script:
    """Those who are still observed cost nothing if more time is predicted for them."""

    class WithFlag(Survival):
        uses_flag = True

    return script(perceptron(6, 1), None, observed_for_some_time(), kind=WithFlag)


@healthy
def flags_for_evaluations() -> Script:
    """Only the evaluation leaves samples out that are marked."""

    class Marked(Survival):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            inputs, times, happened = batch
            return Trainer.calculate_eval_batch_loss(self, (inputs[happened], times[happened]))

    data = observed_for_some_time()
    held_out = TensorDataset(*(part[:96] for part in data.tensors))
    train = TensorDataset(*(part[96:] for part in data.tensors))
    return script(perceptron(6, 1), functional.mse_loss, train, eval_dataset=held_out, kind=Marked)


@healthy
def weights_that_are_one() -> Script:
    """All samples have the weight 1, which the step does not read."""
    inputs, times, happened = observed_for_some_time().tensors
    return script(perceptron(6, 1), None, TensorDataset(inputs, times, torch.ones(len(happened))), kind=Survival)


@healthy
def two_views() -> Script:
    """Both views of a sample have their own noise."""
    return script(perceptron(6, 8), None, TwoViews(lines().tensors[0]), kind=Comparing)


class _Contracts(Trainer):
    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        outputs = self.model(0.9 * inputs)
        again = self.model(inputs)
        loss = functional.mse_loss(outputs, targets) + functional.mse_loss(again, targets)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(inputs)}


@healthy
def inputs_that_are_targets() -> Script:
    """An autoencoder is called twice, and the second part of a sample is what it must return."""
    inputs = lines(features=4, outputs=6).tensors[1]
    return script(perceptron(6, 6), None, TensorDataset(inputs, inputs.clone()), kind=_Contracts)
