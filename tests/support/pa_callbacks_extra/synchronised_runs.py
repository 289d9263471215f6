"""Runs with synchronised batch norm, and what one process comes to."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD
from torch.utils.data import TensorDataset

from pa_callbacks_extra import ConvertSyncBatchNormCallback
from pa_core import AnyTrainer, Trainer, TrainerCallback

BATCH_SIZE = 3


GLOBAL_BATCH = 2 * BATCH_SIZE


def make_model() -> nn.Sequential:
    """Two convolutions with batch norm in double precision, the same ones each time."""
    torch.default_generator.manual_seed(0)
    first, second = nn.Conv2d(1, 4, 2), nn.Conv2d(4, 4, 2)
    batch_norm = nn.BatchNorm2d(4, momentum=None)
    layers = [first, nn.BatchNorm2d(4), nn.ReLU(), second, batch_norm, nn.Flatten(), nn.Linear(16, 1)]
    return nn.Sequential(*layers).double()


def make_data(num_samples: int) -> TensorDataset:
    """Images of 4 x 4 pixels with a target each."""
    generator = torch.Generator().manual_seed(num_samples)
    images = torch.randn(num_samples, 1, 4, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(images, images.mean((1, 2, 3)).sin()[:, None])


def sgd(model: nn.Module) -> SGD:
    """The optimizer of all runs."""
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def train_on_one_process(data: TensorDataset, accumulation: int) -> nn.Module:
    """Train by hand with the batches of both ranks in one, for two epochs."""
    model = make_model()
    optimizer = sgd(model)
    for _ in range(2):
        for begin in range(0, len(data), accumulation * GLOBAL_BATCH):
            group = slice(begin, min(begin + accumulation * GLOBAL_BATCH, len(data)))
            batches = zip(*(torch.split(part[group], GLOBAL_BATCH) for part in data.tensors), strict=True)
            for inputs, expected in batches:
                loss = mse_loss(model(inputs), expected) * len(inputs) / (group.stop - group.start)
                torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return model


def make_trainer(*callbacks: TrainerCallback, model: nn.Module | None = None) -> Trainer[nn.Module]:
    """A trainer that synchronises batch norm."""
    model = model or make_model()
    return Trainer(model, nn.MSELoss(), sgd(model), callbacks=[ConvertSyncBatchNormCallback(), *callbacks])


def train(trainer: Trainer[Any], data: TensorDataset, **kwargs: Any) -> None:
    """Train for two epochs in the order of the dataset."""
    arguments: dict[str, Any] = {"train_dataloader_kwargs": {"shuffle": False}, **kwargs}
    trainer.train(data, 2, per_device_batch_size=BATCH_SIZE, **arguments)


def require_trained_as(trainer: AnyTrainer, expected: nn.Module) -> None:
    """Weights on all ranks, and the statistics of the first one, are those of the expected model."""
    model = trainer.get_model()
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()), rtol=0, atol=1e-12)
    if trainer.run_config.is_world_process_zero:
        torch.testing.assert_close(dict(model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)
    assert [type(module) for module in model.modules()] == [type(module) for module in expected.modules()]
