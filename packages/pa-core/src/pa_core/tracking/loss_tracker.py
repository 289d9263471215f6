"""The mean loss of an epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from pa_core.tracking.metric_values import MetricValue

__all__ = ["LossTracker"]


_EXACT_IN_DOUBLES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Such a loss times a number of samples is a double without being rounded, with any instruction."""


class LossTracker:
    """The mean loss over samples, accumulated without waiting for an accelerator.

    Losses that are tensors are summed where they are, in double precision on the CPU and on CUDA and in single
    precision elsewhere (not every device has doubles), and only reading the sum waits for the device.

    Example:
        >>> tracker = LossTracker()
        >>> tracker.update(torch.tensor(1.0), batch_size=3)
        >>> tracker.update(2.0, batch_size=1)
        >>> tracker.average, tracker.total_loss, tracker.running_count
        (1.25, 5.0, 4)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start over with no losses."""
        self._host_total: float = 0.0
        self._device_total: Tensor | None = None
        self._count: int = 0

    def update(self, loss: MetricValue, batch_size: int = 1) -> None:
        """Add the mean loss of a batch.

        Args:
            loss: The mean over the samples of the batch: a number, or a tensor with one element, whose graph
                is not kept.
            batch_size: The number of samples that it is the mean of.
        """
        if batch_size == 0:  # the mean over nothing is NaN, which times 0 would spoil that of the others
            return
        self._count += batch_size
        if isinstance(loss, Tensor):
            if loss.is_cpu and self._device_total is None and loss.dtype in _EXACT_IN_DOUBLES:
                # Nobody waits for a tensor of the CPU, and adding it to another one takes several times as long.
                self._host_total += float(loss.item() * batch_size)
                return
            loss = loss.detach()
            self._add_on_device(loss if loss.dim() == 0 else loss.reshape(()), batch_size)
        else:
            self._host_total += loss * batch_size

    def _add_on_device(self, loss: Tensor, batch_size: int) -> None:
        total = self._device_total
        if total is None or total.device != loss.device:
            has_doubles = loss.device.type in ("cpu", "cuda")
            # Where it can hold them, it continues from what is there: a resumed epoch is added up in the same order.
            so_far = self.total_loss
            start, self._host_total = (so_far, 0.0) if has_doubles else (0.0, so_far)
            dtype = torch.float64 if has_doubles else torch.float32
            self._device_total = total = torch.full((), start, dtype=dtype, device=loss.device)
        total.add_(loss, alpha=batch_size)

    @property
    def total_loss(self) -> float:
        """The sum of the losses of all samples; reading it waits for the accelerator."""
        return self._host_total + (0.0 if self._device_total is None else self._device_total.item())

    @property
    def running_count(self) -> int:
        """The number of samples so far."""
        return self._count

    @property
    def average(self) -> float:
        """The mean loss of all samples, NaN before the first; reading it waits for the accelerator."""
        return self.total_loss / self._count if self._count else float("nan")

    def totals(self) -> Tensor:
        """Return ``[total_loss, running_count]`` as a tensor where the losses are, without waiting for them.

        Summed over processes and given to ``load_totals``, it makes this the tracker of all of them.
        """
        on_device = self._device_total
        if on_device is None:
            return torch.tensor([self._host_total, self._count], dtype=torch.float64)
        # Made on the device: a copy from the host would wait for it.
        return torch.stack((on_device + self._host_total, on_device.new_full((), self._count)))

    def load_totals(self, totals: Tensor) -> None:
        """Continue from what ``totals`` returned, where that is; waits for the accelerator."""
        self._device_total = None if totals.is_cpu else totals[0].clone()
        self._host_total = float(totals[0]) if totals.is_cpu else 0.0
        self._count = round(float(totals[1]))
