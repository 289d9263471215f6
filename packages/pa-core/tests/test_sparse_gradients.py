"""Embeddings with sparse gradients are clipped and averaged as dense ones are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from tests.support.models import weights_of
from tests.support.pa_core.entries import Entry, on_both_entries, train

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


class Tagger(nn.Module):
    """Looks up words, some of which a batch has several times."""

    def __init__(self, *, sparse: bool, bag: bool = False) -> None:
        super().__init__()
        torch.default_generator.manual_seed(0)
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.words: nn.Module = kind(10, 4, sparse=sparse)
        self.tags: nn.Linear = nn.Linear(4, 1)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.words(inputs)
        tagged: Tensor = self.tags(found if found.dim() == 2 else found.mean(1))
        return tagged


DATA = TensorDataset(torch.arange(48).reshape(16, 3) % 7, torch.linspace(-3, 3, 16)[:, None])
CLIPS: list[dict[str, Any]] = [{"gradient_clip_norm": 0.5}, {"gradient_clip_value": 0.02}]


@on_both_entries
@pytest.mark.parametrize("clip", CLIPS, ids=["norm", "value"])
@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_sparse_gradients_are_clipped_as_dense_ones(
    entry: Entry, clip: dict[str, Any], bag: bool, accumulation: int
) -> None:
    """Norm and weights are those of the same layer with dense gradients, also in updates of two batches."""
    ends: list[tuple[Tensor, Tensor | None]] = []
    for sparse in (True, False):
        torch.default_generator.manual_seed(1)
        model = Tagger(sparse=sparse, bag=bag)
        options: dict[str, Any] = {"per_device_batch_size": 2, "gradient_accumulation_steps": accumulation, **clip}
        trained = train(entry, model, SGD(model.parameters(), lr=0.5), DATA, 2, **options)
        ends.append((weights_of(model), trained.gradient_norm))
    torch.testing.assert_close(*ends)
    assert not torch.equal(ends[0][0], weights_of(Tagger(sparse=True, bag=bag)))
