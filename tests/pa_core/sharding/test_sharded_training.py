"""A model that is sharded over two processes is trained as one process would train it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from pa_core import Trainer
from pa_core.data import epoch_order
from tests.support.sharded_models import TinyTransformer, sentences, sharded, tiny_transformer, whole_weights

pytestmark = pytest.mark.runs_on("two_ranks")


def train_by_hand(model: TinyTransformer, data: TensorDataset, seed: int | None, samples_per_update: int) -> float:
    """Update a model by the whole batches of each update, and return the last norm of its gradients."""
    optimizer = AdamW(model.parameters(), lr=0.01)
    norm = torch.zeros(())
    assert seed is not None
    order = epoch_order(len(data), seed=seed, epoch=0).indices(0, len(data))
    for indices in torch.split(order, samples_per_update):
        words, classes = (tensor[indices] for tensor in data.tensors)
        torch.autograd.backward(nn.functional.cross_entropy(model(words), classes))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return norm.item()


def test_five_updates_are_those_of_one_process() -> None:
    """Accumulated, clipped, and with an uneven last batch, in float64."""
    data = TensorDataset(*sentences(4 * 12 + 5))
    model = sharded(tiny_transformer())
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=0.01), callbacks=[])
    trainer.train(data, 1, per_device_batch_size=3, gradient_accumulation_steps=2, gradient_clip_norm=0.1)
    assert trainer.num_updates_completed == 5
    expected = tiny_transformer()
    train_by_hand(expected, data, trainer.run_config.seed, samples_per_update=12)
    torch.testing.assert_close(whole_weights(model), whole_weights(expected), rtol=0, atol=1e-12)
