"""Averaging gradients over the processes after a backward pass, without a wrapper around the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pa_core._torch import foreach
from pa_core.distributed.collectives import num_processes, values_of_all
from pa_core.errors import UnsupportedConfigurationError

__all__ = ["average_gradients", "is_same_on_all_processes"]

# torch annotates its collectives only in part
_collectives: Any = dist


def average_gradients(parameters: Mapping[str, Tensor]) -> None:
    """Give each parameter the mean of its gradients on all processes; every process must call this.

    A process without a gradient counts as one whose gradient is zero, as one that had no sample. A parameter that has a
    gradient on no process keeps none, so that an optimizer leaves it alone, as on one process.

    Compared with ``DistributedDataParallel``, which exchanges during the backward pass, the order of the collectives
    does not depend on the graph: several modules of one loss can be averaged one after another, even by a process that
    calls none of them.

    Args:
        parameters: The same parameters in the same order on each process, by name.

    Raises:
        UnsupportedConfigurationError: A gradient is sparse.
    """
    if num_processes() == 1:
        return
    _require_dense(parameters)
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters.values():
        by_kind.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    with torch.no_grad():
        for alike in by_kind.values():
            _average(alike)


def _average(parameters: Sequence[Tensor]) -> None:
    """Average gradients of one kind in one message, which also tells on how many processes each of them is."""
    counts = torch.ones(len(parameters), dtype=parameters[0].dtype, device=parameters[0].device)
    gradients: list[Tensor] = []
    missing: list[int] = []
    for number, parameter in enumerate(parameters):
        if parameter.grad is None:
            missing.append(number)
            counts[number] = 0
        gradients.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    message = torch.cat([*(one.reshape(-1) for one in gradients), counts])
    _collectives.all_reduce(message)
    message[: -len(counts)] /= num_processes()
    *means, counts = torch.split(message, [*(one.numel() for one in gradients), len(counts)])
    means = [mean.view(one.shape) for mean, one in zip(means, gradients, strict=True)]
    foreach("copy_", gradients, means)
    for number in missing:  # only here is something read from the device
        parameters[number].grad = gradients[number] if counts[number].item() > 0 else None


def _require_dense(parameters: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise UnsupportedConfigurationError(
                f"Sparse gradients, as of {name}, are exchanged of the model only. Make the layer with sparse=False."
            )


def is_same_on_all_processes(module: nn.Module) -> bool:
    """Return whether all parameters of a module are bit-for-bit identical on every process; each must call this."""
    parameters = list(module.parameters())
    if num_processes() == 1 or not parameters:
        return True
    # Sums of integers do not depend on their order, as those of floats may on other hardware.
    sums = [one.detach().reshape(-1).view(torch.uint8).sum(dtype=torch.int64) for one in parameters]
    of_all = values_of_all(torch.stack(sums))
    return bool((of_all == of_all[0]).all().item())
