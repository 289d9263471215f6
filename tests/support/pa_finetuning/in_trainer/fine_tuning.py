"""What fine-tuning with the trainer is tested on: a model, images, and the callback as the trainer takes it."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from pa_core import TrainerCallback
from pa_finetuning import GradualUnfreezing, ModelFreezer


class Unfreezing(GradualUnfreezing, TrainerCallback):
    """Gradual unfreezing in the form of a callback."""


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A convolutional network of three layer groups with smooth activations, the same on every rank."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh()),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(4, 2),
    )
    return model.to(dtype)


def make_images(num_images: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    """Random images of two classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_images, 1, 6, 6, generator=generator, dtype=torch.float64)
    classes = torch.arange(num_images) % 2
    return TensorDataset((images + classes.reshape(-1, 1, 1, 1)).to(dtype), classes)


def make_frozen(dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, ModelFreezer]:
    """The model with all but its head frozen, batch norm statistics included."""
    model = make_model(dtype)
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze(set_modules_as_eval=True)
    return model, freezer
