"""A run of two models, on the modules for training states alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from pa_core import InMemoryRunHistory, RunHistory, TrainerRunConfig
from pa_core.callbacks import CallbackHandler
from pa_core.epoch_lengths import EpochLengths
from pa_core.tracking import LossTracker, StepMeans
from pa_core.training_state.initial_hyperparameters import begin_run
from pa_core.types import SizedIterable

_BATCH_SIZE = 4


class TwoModels:
    """A generator and a discriminator; the discriminator's optimizer also trains the last layer of the generator."""

    run_config: TrainerRunConfig

    def __init__(self, seed: int = 0, rate: float = 0.1) -> None:
        torch.manual_seed(seed)
        self.device = torch.device("cpu")
        self.loss_func: object = None
        self.run_history: RunHistory = InMemoryRunHistory()
        self.callback_handler = CallbackHandler[Any]()
        self.loss_tracker, self.step_means = LossTracker(), StepMeans()
        self.preemptible = True
        self.train_dataloader: SizedIterable = []
        self.eval_dataloader: SizedIterable | None = None
        self.eval_dataloaders: dict[str, SizedIterable] = {}
        self.epoch_lengths = EpochLengths(lambda _: 5, are_equal=True)
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
        self.discriminator = nn.Linear(2, 1)
        self.optimizers: dict[str, Optimizer] = {
            "generator": Adam(self.generator[:2].parameters(), lr=rate),
            "discriminator": SGD(
                [*self.discriminator.parameters(), *self.generator[3].parameters()], lr=0.1, momentum=0.9
            ),
        }
        self.asked = {name: begin_run(optimizer) for name, optimizer in self.optimizers.items()}
        self.schedulers: dict[str, LRScheduler] = {
            name: StepLR(optimizer, step_size) for step_size, (name, optimizer) in enumerate(self.optimizers.items(), 2)
        }

    def named_models(self) -> dict[str, nn.Module]:
        """The two models."""
        return {"generator": self.generator, "discriminator": self.discriminator}

    def named_optimizers(self) -> dict[str, Optimizer]:
        """One for each model."""
        return self.optimizers

    def named_schedulers(self) -> dict[str, LRScheduler]:
        """One for each optimizer."""
        return self.schedulers

    def print(self, *args: object, **kwargs: Any) -> None:
        """Say nothing."""

    def step(self, inputs: Tensor) -> float:
        """Step both optimizers and schedulers by one batch, and return the loss."""
        loss = self.discriminator(self.generator(inputs + torch.rand(2) / 10)).square().mean()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        torch.autograd.backward(loss)
        for name, optimizer in self.optimizers.items():
            optimizer.step()
            self.schedulers[name].step()
        return float(loss.item())

    def train(self, num_updates: int) -> list[float]:
        """Make some updates by samples that are drawn, and return the losses."""
        return [self.step(torch.randn(_BATCH_SIZE, 2)) for _ in range(num_updates)]

    def weights(self) -> list[Tensor]:
        """Copies of all weights and buffers."""
        return [value.clone() for model in self.named_models().values() for value in model.state_dict().values()]
