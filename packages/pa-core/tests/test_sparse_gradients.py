"""Embeddings with sparse gradients are clipped and averaged as dense ones are."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Run, Trainer
from tests.support.models import weights_of

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


def train(model: nn.Module, clip: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor | None]:
    """Train a few updates of two batches, and return the weights and the norm of the last gradients."""
    torch.default_generator.manual_seed(1)
    reproducible: Literal["any_processes"] | None = options.pop("reproducible", None)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.5), callbacks=[], reproducible=reproducible)
    trainer.train(DATA, 2, **clip, **options)
    return weights_of(model), trainer.gradient_norm


@pytest.mark.parametrize("clip", CLIPS, ids=["norm", "value"])
@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
def test_sparse_gradients_are_clipped_as_dense_ones(clip: dict[str, Any], bag: bool) -> None:
    """Norm and weights are those of the same layer with dense gradients."""
    options = {"per_device_batch_size": 2, "gradient_accumulation_steps": 2}
    sparse, norm = train(Tagger(sparse=True, bag=bag), clip, **options)
    dense, expected = train(Tagger(sparse=False, bag=bag), clip, **options)
    torch.testing.assert_close(sparse, dense)
    torch.testing.assert_close(norm, expected)
    assert not torch.equal(sparse, weights_of(Tagger(sparse=True, bag=bag)))


@pytest.mark.parametrize("clip", CLIPS, ids=["norm", "value"])
def test_so_are_those_of_a_custom_loop(clip: dict[str, Any]) -> None:
    """With sparse and dense gradients in one optimizer."""
    weights: list[Tensor] = []
    for sparse in (True, False):
        torch.default_generator.manual_seed(1)
        model = Tagger(sparse=sparse)
        with Run(model, SGD(model.parameters(), lr=0.5), DATA, num_epochs=2, per_device_batch_size=2, **clip) as run:
            for words, tags in run.batches():
                run.backward((model(words) - tags).square().mean())
                run.step()
        weights.append(weights_of(model))
    torch.testing.assert_close(*weights)
