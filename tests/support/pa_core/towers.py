"""Two towers, of images and of captions, that one loss trains."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer


def pairs(number: int) -> TensorDataset:
    """Pairs of an image and its caption, as it were, in double precision."""
    things = torch.randn(number, 4, generator=torch.Generator().manual_seed(0)).double()
    return TensorDataset(things, things.flip(1) + 0.1)


def tower(width: int, *, drops: float = 0.0) -> nn.Sequential:
    """A network that maps four features to two."""
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(drops), nn.Linear(width, 2)).double()


def contrast(images: Tensor, captions: Tensor) -> Tensor:
    """How far captions are from their images, as a mean over the pairs."""
    return (images - captions).square().mean() + (images * captions).sum(1).exp().mean()


class TwoTowers(Trainer[nn.Sequential]):
    """Trains a tower for images, its model, and one for captions."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        images, captions = self.model(batch[0]), self.modules["captions"](batch[1])
        return {"loss": contrast(images, captions), "model_outputs": images, "batch_size": len(images)}

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        return self.calculate_train_batch_loss(batch)


decay = partial(StepLR, step_size=2, gamma=0.7)


def two_towers(
    *callbacks: Any, kind: type[TwoTowers] = TwoTowers, drops: float = 0.0, schedule: Any = decay, seed: int = 0
) -> TwoTowers:
    """A trainer of both, each with an optimizer of its own; the captions have a scheduler of their own too."""
    torch.manual_seed(seed)
    model, captions = tower(3, drops=drops), tower(5, drops=drops)
    trainer = kind(model, None, SGD(model.parameters(), lr=0.1, momentum=0.9), callbacks)
    trainer.add_module("captions", captions, Adam(captions.parameters(), lr=0.01), schedule)
    return trainer


def weights_of(trainer: Trainer[nn.Sequential]) -> list[list[float]]:
    """All parameters of both."""
    modules = (trainer.get_model(), *trainer.modules.values())
    return [parameter.flatten().tolist() for module in modules for parameter in module.parameters()]
