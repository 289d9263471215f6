"""A run of two models by hand, as training states see it: each with its optimizer and its schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from pa_core import InMemoryRunHistory
from pa_core.callbacks import CallbackHandler
from pa_core.tracking import LossTracker, StepMeans
from pa_core.training_state.asked_settings import begin_run
from pa_core.types import SizedIterable


class TwoModels:
    """A generator and a discriminator; the discriminator's optimizer also trains the last layer of the generator."""

    def __init__(self, seed: int = 0, rate: float = 0.1) -> None:
        torch.manual_seed(seed)
        self.device = torch.device("cpu")
        self.loss_func: object = None
        self.run_history = InMemoryRunHistory()
        self.callback_handler = CallbackHandler[Any]()
        self.loss_tracker, self.step_means = LossTracker(), StepMeans()
        self.train_dataloader: SizedIterable = []
        self.eval_dataloader: SizedIterable | None = None
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.discriminator = nn.Linear(2, 1)
        self.optimizers: dict[str, Optimizer] = {
            "generator": Adam(self.generator[:2].parameters(), lr=rate),
            "discriminator": SGD(
                [*self.discriminator.parameters(), *self.generator[2].parameters()], lr=0.1, momentum=0.9
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

    def train(self, num_updates: int) -> list[float]:
        """Step both optimizers, and return the losses."""
        losses: list[float] = []
        for _ in range(num_updates):
            loss = self.discriminator(self.generator(torch.randn(4, 2))).square().mean()
            for optimizer in self.optimizers.values():
                optimizer.zero_grad()
            torch.autograd.backward(loss)
            for name, optimizer in self.optimizers.items():
                optimizer.step()
                self.schedulers[name].step()
            losses.append(loss.item())
        return losses

    def weights(self) -> list[Tensor]:
        """Copies of all weights and buffers."""
        return [value.clone() for model in self.named_models().values() for value in model.state_dict().values()]
