"""Runs whose weights are averaged, by hand and otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from tests.support.pa_callbacks_extra.averaged_models import values

EVERYWHERE = ("one_process", "two_ranks", "bf16")


def require_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Both have the same names and, to the last bit, the same values."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def make_trainer(*callbacks: TrainerCallback, model: nn.Module | None = None, lr: float = 0.5) -> Trainer[nn.Module]:
    """A trainer of a small classifier with batch norm, the same one each time."""
    torch.default_generator.manual_seed(0)
    model = TinyClassifier(batch_norm=True) if model is None else model
    return Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=lr), callbacks=callbacks)


def train(trainer: Trainer[Any], num_epochs: int = 3, **kwargs: Any) -> None:
    """Train on 48 samples and evaluate on as many others."""
    torch.default_generator.manual_seed(1)
    data = make_classification(48)
    arguments: dict[str, Any] = {"eval_dataset": make_classification(48, seed=1), **kwargs}
    trainer.train(data, num_epochs, **arguments)


class AverageByHand(TrainerCallback):
    """Averages the state dict of the model after every so many updates, and notes it at the end of each epoch."""

    def __init__(self, decay: float, every: int = 1) -> None:
        self.decay = decay
        self.every = every
        self.average: dict[str, Tensor] = {}
        self.after_epochs: list[dict[str, Tensor]] = []

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.average = values(trainer.get_model(keep_torch_compile=False))

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update % self.every == 0:
            for name, value in values(trainer.get_model(keep_torch_compile=False)).items():
                share = self.decay if value.is_floating_point() else 0
                self.average[name] = (share * self.average[name] + (1 - share) * value).to(value.dtype)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.after_epochs.append(dict(self.average))
