"""Models on the meta device."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from tests.support.sharded_models import TinyTransformer


class MakesItsWeights(TinyTransformer):
    """A transformer with a method that makes all of its weights, and a table that is no parameter."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(7.0), persistent=False)

    def init_weights(self) -> None:
        """Make all weights and buffers, as scripts do."""
        self.table.copy_(torch.arange(7.0))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
                nn.init.orthogonal_(module.weight)
            elif isinstance(module, nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=0.5)
                module.weight.data[0].zero_()
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    @override
    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = super().forward(words) * self.table.sum()
        return logits


def on_meta(kind: type[TinyTransformer]) -> TinyTransformer:
    """A model that takes no memory."""
    with torch.device("meta"):
        return kind()
