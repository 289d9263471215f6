"""Models whose forward pass keeps state beside gradients, and healthy ones that only look as if they did."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

Parts: TypeAlias = tuple[Any, ...]
"""A model, and perhaps a loss function."""


class _Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, 1)


NUM_FEATURES = 4


class _Teacher(_Base):
    """Moves frozen weights that begin as the trained ones, as BYOL and MoCo do."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.layer).requires_grad_(False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
                own.mul_(0.9).add_(0.1 * other)
        outputs: Tensor = self.layer(inputs) + self.teacher(inputs)
        return outputs


class _ClampsWeights(_Base):
    @override
    def forward(self, inputs: Tensor) -> Tensor:
        self.layer.weight.data.mul_(0.99)
        outputs: Tensor = self.layer(inputs)
        return outputs


class _Queue(_Base):
    """Keeps the features of earlier batches, and does not use them before there are many."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Tensor] = []

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        self.queue.append(outputs.detach())
        return outputs if len(self.queue) < 100 else outputs - torch.cat(self.queue).mean()


class _RareCounter(_Base):
    """Does something else in each thousandth pass."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.layer(inputs)
        return outputs * 0 if self.calls % 1000 == 0 else outputs


class _GradientHook(_Base):
    """Scales gradients by how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"calls": 0}
        weight: Any = self.layer.weight
        weight.register_hook(self._scale)

    def _scale(self, gradient: Tensor) -> Tensor:
        self.state["calls"] += 1
        return gradient / self.state["calls"]

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs


class _Keeps(_Base):
    """Leaves what is the same after the same batch: activations, a table, and a number of batches it was made for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, Tensor] = {}
        self.last: Tensor | None = None
        self.auxiliary = torch.zeros(())

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        table = self.seen.setdefault(len(inputs), torch.arange(float(len(inputs)))[:, None])
        outputs: Tensor = self.layer(inputs)
        self.last, self.auxiliary = outputs.detach(), outputs.square().mean()
        return outputs + 0.01 * table + 0 * self.auxiliary


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 1)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.cells(inputs[:, :, None])[0][:, -1])
        return outputs


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 1)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = checkpoint(self.block, self.embed(inputs[:, :, None]), use_reentrant=False)
        outputs: Tensor = self.head(hidden.mean(1))
        return outputs


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(NUM_FEATURES, 3)
        self.experts = nn.ModuleList(nn.Linear(NUM_FEATURES, 1) for _ in range(3))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        weights, chosen = self.gate(inputs).softmax(-1).topk(2)
        outputs = torch.stack([expert(inputs) for expert in self.experts], dim=1)[:, :, 0]
        mixed: Tensor = (weights * outputs.gather(1, chosen)).sum(1, keepdim=True)
        return mixed


class _Centre(nn.Module):
    """A loss with a running centre in a buffer, as DINO has."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = (outputs - self.centre - targets).square().mean()
        self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        return loss


def _of(*make_layers: Callable[[], nn.Module]) -> Callable[[], Parts]:
    return lambda: (nn.Sequential(nn.Linear(NUM_FEATURES, 8), *(make() for make in make_layers), nn.Linear(8, 1)),)


HIDDEN: dict[str, Callable[[], Parts]] = {
    "teacher": lambda: (_Teacher(),),
    "weights in place": lambda: (_ClampsWeights(),),
    "queue": lambda: (_Queue(),),
    "rare counter": lambda: (_RareCounter(),),
    "gradient hook": lambda: (_GradientHook(),),
}
HEALTHY: dict[str, Callable[[], Parts]] = {
    "linear": _of(),
    "BatchNorm": _of(lambda: nn.BatchNorm1d(8)),
    "dropout": _of(lambda: nn.Dropout(0.3)),
    "LayerNorm": _of(lambda: nn.LayerNorm(8)),
    "spectral norm": _of(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))),
    "weight norm": _of(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))),
    "recurrent": lambda: (_Recurrent(),),
    "attention": lambda: (_Attention(),),
    "experts": lambda: (_Experts(),),
    "keeps activations": lambda: (_Keeps(),),
    "centre in a loss": lambda: (*_of()(), _Centre()),
    "compiled": lambda: (torch.compile(*_of()(), backend="aot_eager"),),
}
