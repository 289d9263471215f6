"""What all processes decide together about an update, in its own small exchange, for which no step waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pa_core.device_reads import to_device
from pa_core.distributed.collectives import num_processes

__all__ = ["SmallExchange"]

# torch annotates its collectives only in part
_collectives: Any = dist


class SmallExchange:
    """Adds up small numbers of all processes while the backward pass of an update is in progress.

    For gradients that numbers cannot travel with, as in sharded models. Every process starts the exchange before the
    backward pass, and reads the sums after it, when they have long arrived.

    Args:
        num_values: How many numbers are exchanged in each update.
        device: The device of the run.
        dtype: Of the numbers.

    Example:
        >>> import torch
        >>> exchange = SmallExchange(num_values=2, device=torch.device("cpu"), dtype=torch.float32)
        >>> loss = exchange.add_to(torch.ones(()), [0, 7])
        >>> exchange.sums()
        tensor([0., 7.])
    """

    def __init__(self, num_values: int, device: torch.device, dtype: torch.dtype) -> None:
        self._zeros = torch.zeros(num_values, dtype=dtype, device=device)
        self._last: tuple[Sequence[float], Tensor] = [0.0] * num_values, self._zeros
        self._sent: Sequence[float] | None = None
        self._under_way: list[tuple[Any, list[Tensor]]] = []

    def add_to(self, loss: Tensor, values: Sequence[float]) -> Tensor:
        """Start to exchange the numbers of this process, and return the loss as it is; every process must call this.

        A further pass of the same update sends what was added to the numbers since.

        Args:
            loss: The loss of the backward pass that follows.
            values: The numbers of this process in the update so far.
        """
        sent, self._sent = self._sent, values
        if sent is not None:
            values = [value - before for value, before in zip(values, sent, strict=True)]
        if values != self._last[0]:  # mostly nothing is asked for, as in the update before
            self._last = values, to_device(list(values), self._zeros.dtype, self._zeros.device)
        mine = self._last[1]
        if num_processes() == 1:
            self._under_way.append((None, [mine]))
        else:
            of_each = [torch.empty_like(mine) for _ in range(num_processes())]
            self._under_way.append((_collectives.all_gather(of_each, mine, async_op=True), of_each))
        return loss

    def sums(self) -> Tensor:
        """Return the sums over all processes, on the device; zeros if nothing was sent."""
        under_way, self._under_way, self._sent = self._under_way, [], None
        of_all: list[Tensor] = []
        for work, of_each in under_way:
            if work is not None:
                work.wait()
            of_all += of_each
        return torch.stack(of_all).sum(0) if of_all else self._zeros
