"""What the loops train, made anew for each turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

from tools.gpu.models import GPT2, Perceptron, ResNet50, TokenLoss
from tools.gpu.setting import Setting

__all__ = ["TASKS", "Samples", "Task"]

Samples = Dataset[tuple[Tensor, ...]]


@dataclass(frozen=True)
class Task:
    """A network and its data.

    Attributes:
        name: What the report calls it.
        make_model: Makes the network, on the present default device.
        loss_func: Called with outputs and targets.
        make_data: Makes a dataset of so many pairs of inputs and targets.
        batch_size: Samples in a batch.
    """

    name: str
    make_model: Callable[[], nn.Module]
    loss_func: nn.Module
    make_data: Callable[[int], Samples]
    batch_size: int


class Repeated(Samples):
    """A few samples, many times: fetching one costs what it costs, and memory nothing."""

    def __init__(self, inputs: Tensor, targets: Tensor, number: int) -> None:
        self.inputs, self.targets, self.number = inputs, targets, number

    def __len__(self) -> int:
        return self.number

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.inputs[index % len(self.inputs)], self.targets[index % len(self.inputs)]


def perceptron(setting: Setting) -> Task:
    """A small network, on vectors in memory."""

    def make_data(number: int) -> Samples:
        return TensorDataset(torch.rand(number, 64), torch.randint(10, (number,)))

    return Task("MLP", Perceptron, nn.CrossEntropyLoss(), make_data, 32 if setting.is_small else 128)


def resnet(setting: Setting) -> Task:
    """Images of bytes, one by one."""
    small = setting.is_small
    side, batch_size = (32, 4) if small else (224, 128)
    images = torch.randint(256, (16 if small else 256, 3, side, side), dtype=torch.uint8)
    targets = torch.randint(10, (len(images),))

    def make_model() -> nn.Module:
        return ResNet50(width=4, classes=10) if small else ResNet50()

    name = "ResNet-50 of width 4" if small else "ResNet-50"
    loss_func = nn.CrossEntropyLoss()
    return Task(name, make_model, loss_func, lambda number: Repeated(images, targets, number), batch_size)


def gpt2(setting: Setting) -> Task:
    """Texts of random tokens."""
    small = setting.is_small
    vocabulary, length, batch_size = (128, 32, 2) if small else (50257, 1024, 8)
    tokens = torch.randint(vocabulary, (16, length + 1))

    def make_model() -> nn.Module:
        return GPT2(vocabulary, length, 64, 2) if small else GPT2()

    name = "GPT-2 of width 64" if small else "GPT-2 small"
    return Task(
        name, make_model, TokenLoss(), lambda number: Repeated(tokens[:, :-1], tokens[:, 1:], number), batch_size
    )


TASKS: dict[str, Callable[[Setting], Task]] = {"mlp": perceptron, "resnet": resnet, "gpt2": gpt2}
