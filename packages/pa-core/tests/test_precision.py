"""Mixed precision is what the run was launched with, inside the model and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, Trainer, TrainerCallback
from pa_core.testing import make_classification

pytestmark = pytest.mark.runs_on("bf16")


class Noting(nn.Module):
    """A classifier that notes the precision it computes in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.output = nn.Linear(4, 16), nn.Linear(16, 3)
        self.computed_in: list[torch.dtype] = []

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.hidden(inputs)
        self.computed_in.append(hidden.dtype)
        logits: Tensor = self.output(hidden.relu())
        return logits


class OutputTypes(TrainerCallback):
    """Notes the precision of what the model returns to the loss."""

    def __init__(self) -> None:
        self.dtypes: set[torch.dtype] = set()

    @override
    def on_train_step_end(
        self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
    ) -> None:
        self.dtypes |= {batch_output["model_outputs"].dtype, batch_output["loss"].dtype}


def test_the_model_computes_in_bf16_and_its_weights_stay_fp32() -> None:
    """Training and evaluation run forward in bfloat16; weights, outputs and losses are float32."""
    model, outputs = Noting(), OutputTypes()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[outputs])
    trainer.train(make_classification(32), 3, make_classification(16))
    assert set(model.computed_in) == {torch.bfloat16}
    assert outputs.dtypes == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert trainer.run_config.mixed_precision == "bf16"
    assert "bf16" in trainer.describe_run()
    losses = [float(loss) for loss in trainer.run_history.get_metric_values("train_loss_epoch")]
    assert losses[-1] < losses[0]
