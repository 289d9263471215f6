"""What loops by hand need, to which the loops of this project are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import TensorDataset

from pa_data.orders import epoch_order


def network(num_features: int = 4) -> nn.Module:
    """A small network in double precision, the same each time, none of whose gradients is zero by nature."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(num_features, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def in_double(data: TensorDataset) -> TensorDataset:
    """The same samples, with numbers in double precision."""
    return TensorDataset(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in data.tensors))


def updates_of(data: TensorDataset, seed: int | None, epochs: int, samples: int) -> Iterator[list[Tensor]]:
    """Yield all samples of each update of a run, in its order, as one process without accumulation has them.

    Args:
        data: What the run was trained on.
        seed: The seed of the run, from its run config.
        epochs: How many epochs it had.
        samples: How many samples an update has, on all processes together.
    """
    assert seed is not None
    for epoch in range(epochs):
        order = epoch_order(len(data), seed=seed, epoch=epoch).indices(0, len(data))
        for indices in torch.split(order, samples):
            yield [tensor[indices] for tensor in data.tensors]


def optimizer_of(kind: str, model: nn.Module) -> Optimizer:
    """SGD with momentum, or Adam."""
    parameters = model.parameters()
    return SGD(parameters, lr=0.1, momentum=0.9) if kind == "sgd" else Adam(parameters, lr=0.01)


def train_by_hand(
    model: nn.Module,
    optimizer: Optimizer,
    updates: Iterable[list[Tensor]],
    loss_of: Callable[..., Tensor] | None = None,
    *,
    clip_norm: float | None = None,
    clip_value: float | None = None,
) -> None:
    """Make updates of whole batches; the loss is that of the model on them, by default the mean squared error."""
    for batch in updates:
        loss = nn.functional.mse_loss(model(batch[0]), batch[1]) if loss_of is None else loss_of(model, *batch)
        torch.autograd.backward(loss)
        if clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), clip_value)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
