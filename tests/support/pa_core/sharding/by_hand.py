"""Training as one process does it, to which sharded models are compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset

from tests.support.loops import updates_of
from tests.support.sharded_models import whole_weights

LossOf = Callable[[nn.Module, Tensor, Tensor], Tensor]


def loss_of(model: nn.Module, words: Tensor, classes: Tensor) -> Tensor:
    """The mean loss of a batch."""
    return nn.functional.cross_entropy(model(words), classes)


def updates_by_hand(
    model: nn.Module,
    data: TensorDataset,
    seed: int | None,
    samples: int,
    *,
    optimizer: Optimizer | None = None,
    loss_of: LossOf = loss_of,
    before_step: Callable[[nn.Module], object] = id,
    most: int | None = None,
) -> Iterator[int]:
    """Update a model by the whole batches of each update of an epoch, and yield the number of each that was made."""
    optimizer = optimizer or AdamW(model.parameters(), lr=0.01)
    batches = itertools.islice(updates_of(data, seed, 1, samples), most)
    for update, (words, classes) in enumerate(batches, start=1):
        torch.autograd.backward(loss_of(model, words, classes))
        before_step(model)
        optimizer.step()
        optimizer.zero_grad()
        yield update


def require_same(model: nn.Module, expected: nn.Module) -> None:
    """Compare the weights of a sharded model with those of a plain one."""
    torch.testing.assert_close(whole_weights(model), whole_weights(expected), rtol=0, atol=1e-12)
