"""Steps of two ranks that call the model in their own way, also where one has no sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD
from typing_extensions import override

from pa_core import Trainer
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification

pytestmark = pytest.mark.runs_on("two_ranks")


class TwoViews(Trainer[TinyClassifier]):
    """Calls the model several times in a step, as contrastive learning does."""

    views = 2

    @override
    def calculate_train_batch_loss(self, batch: list[Tensor]) -> dict[str, Any]:
        inputs, targets = batch
        outputs = [self.model(inputs * (1 + view)) for view in range(self.views)]
        loss = self.loss_func(torch.stack(outputs).mean(0), targets)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(targets)}


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_buffers_are_exchanged_as_often_as_the_other_rank_calls_the_model(views: int, accumulation: int) -> None:
    """A model with BatchNorm trains on a tail of two samples, which only the first rank gets."""
    torch.manual_seed(0)
    model = TinyClassifier(batch_norm=True)
    recorder = RecordingCallback()
    calls: list[int] = []
    model.register_forward_hook(lambda _module, inputs, _output: calls.append(len(inputs[0])))
    trainer = TwoViews(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[recorder])
    trainer.views = views

    trainer.train(
        make_classification(3 * 2 * 4 + 2), 2, per_device_batch_size=4, gradient_accumulation_steps=accumulation
    )

    first_rank, second_rank = 2 * (3 + 1), 2 * 3
    mine = first_rank if trainer.run_config.is_world_process_zero else second_rank
    assert recorder.events.count("on_train_step_end") == mine
    assert len(calls) == views * mine
    assert trainer.run_history.clock.samples == 2 * 26
    state = torch.cat([value.detach().double().flatten() for value in model.parameters()])
    assert torch.equal(*trainer.gather(state[None]))


class WrapsItself(Trainer[nn.Module]):
    """Prepares the model as scripts do that replace the trainer's own preparation."""

    @override
    def _prepare_model_optimizer_and_dataloaders(self) -> None:
        self.model = self._accelerator.prepare_model(self.model)


def test_a_trainer_may_wrap_its_model_itself() -> None:
    """It trains as one that leaves it to the loop, also where one rank has no sample."""
    weights: list[Tensor] = []
    for kind in (Trainer[nn.Module], WrapsItself):
        torch.manual_seed(0)
        model = TinyClassifier()
        trainer = kind(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
        trainer.train(make_classification(2 * 2 * 4 + 1), 2, per_device_batch_size=4, gradient_accumulation_steps=2)
        weights.append(parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)
