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
    """Read numbers from an accelerator without blocking the training loop.

    Reading a tensor on an accelerator with ``item()`` waits for all pending work of the device. Use this class in a
    callback that looks at the loss of each step: ``send`` queues a copy after the pending work, and ``arrived`` yields
    the numbers whose copies are complete, usually a few steps later. Call ``wait_for_all`` at the end of an epoch, so
    that no number is lost. Numbers on the CPU arrive at once. On an accelerator other than CUDA, numbers arrive only
    when ``wait_for_all`` is called. The class has no arguments, works within one process, and keeps nothing in training
    states.

    Example:
        >>> import torch
        >>> from pa_core.callbacks import ScalarTransfer
        >>> losses = ScalarTransfer[int]()  # the tags are the numbers of the batches
        >>> for number, loss in enumerate([torch.tensor(0.5), torch.tensor(0.25)], start=1):
        ...     losses.send(loss, tag=number)
        ...     for batch, value in losses.arrived():
        ...         print(f"batch {batch}: {value}")
        batch 1: 0.5
        batch 2: 0.25
        >>> list(losses.wait_for_all())
        []
    """

    def __init__(self) -> None:
        self._under_way: deque[_Sent[TagT]] = deque()

    def send(self, scalar: Tensor, tag: TagT) -> None:
        """Start copying a tensor with one element to the CPU, and return at once.

        You call it, for example in ``on_train_step_end``.

        Args:
            scalar: A tensor with one element, of any shape, on any device. The current value is copied, so later
                changes to the tensor have no effect; its autograd graph is not kept.
            tag: Any object, for example the batch number; it is yielded together with the copied number.

        Raises:
            RuntimeError: The tensor has no element, or several.

        Example:
            >>> import torch
            >>> from pa_core.callbacks import ScalarTransfer
            >>> losses = ScalarTransfer[int]()
            >>> losses.send(torch.tensor(0.5), tag=3)
            >>> list(losses.wait_for_all())
            [(3, 0.5)]
        """
        scalar = scalar.detach().reshape(())
        value, copied = copy_to_host(scalar) if scalar.is_cuda else (scalar.clone(), None)
        self._under_way.append(_Sent(tag, value, copied))

    def arrived(self) -> Iterator[tuple[TagT, float]]:
        """Yield the numbers that have arrived, with their tags, in the order in which they were sent.

        You call it after each ``send``, and iterate over the result; each number is yielded once. It does not wait for
        the device, unless 128 numbers are pending; in that case, it waits for all of them.

        Yields:
            Pairs of the tag and the number as a Python float; none if no number has arrived.

        Example:
            >>> import torch
            >>> from pa_core.callbacks import ScalarTransfer
            >>> losses = ScalarTransfer[int]()
            >>> losses.send(torch.tensor(0.5), tag=3)  # on the CPU, it arrives at once
            >>> for batch, loss in losses.arrived():
            ...     print(batch, loss)
            3 0.5
        """
        if len(self._under_way) >= _MOST_UNDER_WAY:
            yield from self.wait_for_all()
        while self._under_way and _is_there(self._under_way[0]):
            sent = self._under_way.popleft()
            yield sent.tag, sent.value.item()

    def wait_for_all(self) -> Iterator[tuple[TagT, float]]:
        """Wait for all numbers that were sent, and yield them with their tags, in the order in which they were sent.

        You call it at the end of an epoch or before a checkpoint, so that no number is lost, and iterate over the
        result. It blocks until the device has made the pending copies. Numbers that ``arrived`` has already yielded are
        not repeated.

        Yields:
            Pairs of the tag and the number as a Python float; none if no number is pending.

        Example:
            >>> import torch
            >>> from pa_core.callbacks import ScalarTransfer
            >>> losses = ScalarTransfer[str]()
            >>> losses.send(torch.tensor([0.5]), tag="train")
            >>> list(losses.wait_for_all()), list(losses.wait_for_all())
            ([('train', 0.5)], [])
        """
        while self._under_way:
            sent = self._under_way.popleft()
            if sent.copied is not None:
                sent.copied.synchronize()
            yield sent.tag, sent.value.item()

    def clear(self) -> None:
        """Drop all pending numbers, so that they are never yielded.

        You call it when a new run starts, for example in ``on_training_run_start``, because an earlier run may have
        ended with an exception before its numbers were read.

        Example:
            >>> import torch
            >>> from pa_core.callbacks import ScalarTransfer
            >>> losses = ScalarTransfer[int]()
            >>> losses.send(torch.tensor(0.5), tag=1)
            >>> losses.clear()
            >>> list(losses.wait_for_all())
            []
        """
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
