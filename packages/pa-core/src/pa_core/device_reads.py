"""Bringing single numbers from an accelerator to the host without holding up the training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

__all__ = ["ScalarTransfer"]

TagT = TypeVar("TagT")

# So many values are under way only if the host is that many steps ahead of the device: waiting for them then
# leaves the device enough to do.
_MOST_UNDER_WAY = 128


class _Sent(NamedTuple, Generic[TagT]):
    tag: TagT
    value: Tensor
    copied: torch.cuda.Event | None


class ScalarTransfer(Generic[TagT]):
    """Sends numbers from the device to the host, and hands them out when they have arrived.

    Reading a tensor of an accelerator with ``item()`` waits for everything that the device has still to do.
    Here the copy is put in line behind that work instead, and looked at when it is there. Numbers on the CPU
    have arrived at once. On an accelerator other than CUDA they arrive when ``wait_for_all`` asks for them.

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
        """Start the way of a tensor with one element; ``tag`` comes back with the number."""
        scalar = scalar.detach().reshape(())
        if not scalar.is_cuda:
            self._under_way.append(_Sent(tag, scalar.clone(), None))
            return
        on_host = torch.empty((), dtype=scalar.dtype, pin_memory=True).copy_(scalar, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves its events unannotated
        copied.record(torch.cuda.current_stream(scalar.device))
        self._under_way.append(_Sent(tag, on_host, copied))

    def arrived(self) -> Iterator[tuple[TagT, float]]:
        """Hand out what has arrived by now, in the order in which it was sent."""
        if len(self._under_way) >= _MOST_UNDER_WAY:
            yield from self.wait_for_all()
        while self._under_way and _is_there(self._under_way[0]):
            sent = self._under_way.popleft()
            yield sent.tag, sent.value.item()

    def wait_for_all(self) -> Iterator[tuple[TagT, float]]:
        """Wait for everything that was sent, and hand it out in the order in which it was sent."""
        while self._under_way:
            sent = self._under_way.popleft()
            if sent.copied is not None:
                sent.copied.synchronize()
            yield sent.tag, sent.value.item()

    def clear(self) -> None:
        """Forget everything that is under way."""
        self._under_way.clear()


def _is_there(sent: _Sent[TagT]) -> bool:
    if sent.copied is None:
        return sent.value.is_cpu
    return bool(sent.copied.query())  # type: ignore[no-untyped-call]  # as above
