"""Reading numbers from an accelerator, and sending them to it, without blocking the training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

TagT = TypeVar("TagT")

# This many values are pending only if the host is that many steps ahead of the device: waiting for them then
# does not leave the device idle.
_MOST_UNDER_WAY = 128


class _Sent(NamedTuple, Generic[TagT]):
    tag: TagT
    value: Tensor
    copied: torch.Event | None


class ScalarTransfer(Generic[TagT]):
    """Send numbers from the device to the host without blocking, and yield them when they have arrived.

    Reading a tensor of an accelerator with ``item()`` waits for all pending work of the device. This class queues a
    copy after that work instead, and reads it when it has arrived: use it in callbacks that look at each loss. Numbers
    on the CPU arrive at once. On an accelerator other than CUDA they arrive when ``wait_for_all`` is called.

    Example:
        >>> import torch
        >>> losses = ScalarTransfer[int]()
        >>> losses.send(torch.tensor(0.5), tag=1)
        >>> list(losses.arrived())
        [(1, 0.5)]
    """

    def __init__(self) -> None:
        self._under_way: deque[_Sent[TagT]] = deque()

    def send(self, scalar: Tensor, tag: TagT) -> None:
        """Start the copy of a tensor with one element to the host; it returns at once.

        Args:
            scalar: A tensor with one element, on any device; its graph is not kept, and later changes have no effect.
            tag: An object that is yielded together with the number, for example the number of the batch.
        """
        scalar = scalar.detach().reshape(())
        value, copied = copy_to_host(scalar) if scalar.is_cuda else (scalar.clone(), None)
        self._under_way.append(_Sent(tag, value, copied))

    def arrived(self) -> Iterator[tuple[TagT, float]]:
        """Yield the numbers that have arrived, with their tags, in the order in which they were sent.

        Call it after each ``send``, and iterate over the result. It does not wait, unless very many numbers are
        pending.
        """
        if len(self._under_way) >= _MOST_UNDER_WAY:
            yield from self.wait_for_all()
        while self._under_way and _is_there(self._under_way[0]):
            sent = self._under_way.popleft()
            yield sent.tag, sent.value.item()

    def wait_for_all(self) -> Iterator[tuple[TagT, float]]:
        """Wait for all numbers that were sent, and yield them with their tags, in the same order.

        Call it at the end of an epoch, so that no number is lost. The numbers that ``arrived`` has yielded are not
        repeated.
        """
        while self._under_way:
            sent = self._under_way.popleft()
            if sent.copied is not None:
                sent.copied.synchronize()
            yield sent.tag, sent.value.item()

    def clear(self) -> None:
        """Drop all pending numbers, for example when a new run starts."""
        self._under_way.clear()


def _is_there(sent: _Sent[TagT]) -> bool:
    return sent.value.is_cpu if sent.copied is None else sent.copied.query()


def to_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a small tensor on the device; on CUDA, the copy from pinned memory does not block."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def copy_to_host(values: Tensor) -> tuple[Tensor, torch.Event | None]:
    """Begin to copy a small tensor to the host; return the copy and, on CUDA, an event that tells when it is complete.

    Args:
        values: The tensor.
    """
    if values.device.type == "cpu":
        return values, None
    on_host = torch.empty_like(values, device="cpu", pin_memory=values.device.type == "cuda")
    on_host.copy_(values, non_blocking=True)
    copied = torch.Event(values.device)
    copied.record()
    return on_host, copied
