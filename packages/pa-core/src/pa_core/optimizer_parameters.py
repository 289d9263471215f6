"""The parameters of an optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["learning_rates_of", "parameters_of"]


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Iterate over the parameters that an optimizer updates, in the order of its groups.

    Example:
        >>> import torch
        >>> one, two = torch.nn.Linear(2, 1), torch.nn.Linear(3, 1, bias=False)
        >>> groups = [{"params": one.parameters()}, {"params": two.parameters(), "lr": 0.5}]
        >>> [tuple(parameter.shape) for parameter in parameters_of(torch.optim.SGD(groups, lr=0.1))]
        [(1, 2), (1,), (1, 3)]
    """
    for group in optimizer.param_groups:
        yield from group["params"]


def learning_rates_of(optimizer: Optimizer) -> list[float | Tensor]:
    """Return the learning rates of the groups that have one.

    Example:
        >>> import torch
        >>> one, two = torch.nn.Linear(2, 1), torch.nn.Linear(3, 1)
        >>> groups = [{"params": one.parameters()}, {"params": two.parameters(), "lr": 0.5}]
        >>> max(learning_rates_of(torch.optim.SGD(groups, lr=0.1)))
        0.5
    """
    return [group["lr"] for group in optimizer.param_groups if "lr" in group]
