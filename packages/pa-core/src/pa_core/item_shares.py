"""Weighing the batches of an update by items, such as tokens, that only the step itself can count."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["ItemShares"]


class ItemShares:
    """Makes the gradient of an update that of the mean over all of its items, on all processes.

    How many items an update has is known when its last batch has been counted, after most of its backward passes. So
    each batch is weighed by its items over a nominal number, and at the end the gradients are multiplied once by what
    is missing. The nominal number keeps losses in the range that gradient scalers expect; it is a power of two, so that
    it changes no digit of the result.

    Args:
        num_processes: The number of processes, over which gradients are averaged.
        nominal: The nominal number of a run that goes on; by default it is taken from the first update.

    Attributes:
        total_of_process: The items of this process in the present update so far.
        nominal: The nominal number, None before the first update.

    Example:
        >>> import torch
        >>> parameter = torch.nn.Parameter(torch.zeros(()))
        >>> shares = ItemShares(num_processes=1)
        >>> for mean_loss, items in ((1.0, 3), (5.0, 1)):  # the mean over the four items is 2
        ...     (parameter * mean_loss * shares.weigh(items)).backward()
        >>> shares.settle([parameter], shares.total_of_process)
        >>> parameter.grad
        tensor(2.)
    """

    def __init__(self, num_processes: int, nominal: float | None = None) -> None:
        self._num_processes = num_processes
        self.nominal = nominal
        self.total_of_process: float = 0.0

    def weigh(self, items: int) -> float:
        """Return the factor on the mean loss of a batch, and count its items.

        Args:
            items: The number of items that the mean was taken over.
        """
        self.total_of_process += items
        return items / (self.nominal or 1.0)

    def settle(self, parameters: list[Tensor], total: float | Tensor) -> None:
        """Turn the gradients of an update into those of the mean over its items, and begin the next update.

        Args:
            parameters: The parameters whose gradients are averaged over the processes.
            total: The items of the update on all processes. A tensor on the device is not waited for, except after the
                first update.
        """
        nominal = self.nominal or 1.0
        if self.nominal is None:
            self.nominal = _power_of_two(float(total) / self._num_processes)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            # Without any item all gradients are zero, and stay so.
            at_least_one = total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1)
            factor = nominal * self._num_processes / at_least_one
            torch._foreach_mul_(gradients, factor)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # torch's optimizers use it; one pass
        self.forget()

    def forget(self) -> None:
        """Begin the next update without finishing this one."""
        self.total_of_process = 0.0


def _power_of_two(number: float) -> float:
    return 2.0 ** round(math.log2(number)) if number > 0 else 1.0
