"""Scripts that know nothing but the paths of pytorch-accelerated."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset
from typing_extensions import override

import pa_core
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import EarlyStoppingCallback, StopTrainingError, TrainerCallback
from pytorch_accelerated.finetuning import ModelFreezer
from pytorch_accelerated.schedulers import CosineLrScheduler, StatefulSchedulerBase
from pytorch_accelerated.trainer import TrainerPlaceholderValues
from pytorch_accelerated.utils import ModelEma


def make_images(number: int) -> TensorDataset:
    """Noisy images with a bright half, and which half it is."""
    generator = torch.Generator().manual_seed(0)
    halves = torch.arange(number) % 2
    images = torch.randn(number, 1, 6, 6, generator=generator)
    images[halves == 0, :, :, :3] += 2
    images[halves == 1, :, :, 3:] += 2
    return TensorDataset(images, halves)


def make_model() -> nn.Sequential:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), nn.Flatten(), nn.Linear(64, 2)
    )


class AverageWeights(TrainerCallback):
    """Averages the weights after each update, and counts how often that was."""

    def __init__(self, model: nn.Module) -> None:
        self.ema = ModelEma(model, decay=0.9)
        self.updates = 0

    @override
    def on_optimizer_step_end(self, trainer: pa_core.AnyTrainer, update: int, **kwargs: Any) -> None:
        self.ema.update(trainer.model)
        self.updates += 1


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_fine_tuning_in_stages() -> None:
    """A head is trained, then everything, with schedules, early stopping and averaged weights, and the model learns."""
    torch.default_generator.manual_seed(0)
    images = make_images(64)
    model = make_model()
    freezer = ModelFreezer(model)
    freezer.freeze(set_modules_as_eval=True)
    optimizer = optim.AdamW(freezer.get_trainable_parameters(), lr=0.01)
    average = AverageWeights(model)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, callbacks=(average, EarlyStoppingCallback(early_stopping_patience=3))
    )
    before = model.get_parameter("0.0.weight").detach().clone()

    trainer.train(
        images, num_epochs=2, eval_dataset=images, create_scheduler_fn=CosineLrScheduler.create_scheduler_fn()
    )
    after_head = model.get_parameter("0.0.weight").detach().clone()
    for group in freezer.unfreeze().values():
        optimizer.add_param_group(group)
    trainer.train(
        images,
        num_epochs=8,
        eval_dataset=images,
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1),
        reset_run_history=False,
    )

    assert torch.equal(before, after_head)
    assert not torch.equal(after_head, model.get_parameter("0.0.weight"))
    assert average.updates == trainer.run_history.clock.update
    losses = list(trainer.run_history.get_metric_values("eval_loss_epoch"))
    assert losses[-1] < 0.5 * losses[0]


def test_a_scheduler_of_ones_own() -> None:
    """A scheduler derived from the base class takes its length from placeholders, and a callback ends the run."""

    class Halve(StatefulSchedulerBase):
        def __init__(self, optimizer: optim.Optimizer, period: int) -> None:
            super().__init__(optimizer)
            self.period = period

        @override
        def get_updated_values(self, num_updates: int) -> list[float] | None:
            if num_updates == 0 or num_updates % self.period:
                return None
            return [group[self.param_group_field] / 2 for group in self.optimizer.param_groups]

    class EndEarly(TrainerCallback):
        @override
        def on_train_epoch_end(self, trainer: pa_core.AnyTrainer, **kwargs: Any) -> None:
            if trainer.run_history.current_epoch == 3:
                raise StopTrainingError("three epochs are enough")

    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=0.8)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[EndEarly])
    create_scheduler = partial(Halve, period=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH)

    trainer.train(make_images(16), num_epochs=10, create_scheduler_fn=create_scheduler)

    assert optimizer.param_groups[0]["lr"] == 0.8 / 4
