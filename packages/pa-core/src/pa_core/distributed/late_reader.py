"""Numbers that go to an accelerator and come back from it without waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

__all__ = ["LateReader", "to_device"]


class LateReader:
    """Reads small tensors of an accelerator without waiting: a fixed number of calls after they were handed in.

    All processes read what belongs to the same update, because each counts its own calls. On the CPU nothing has to be
    waited for, and what was handed in is read at once.

    Args:
        delay: After how many further calls a tensor is read. Two updates are enough for the copy to have arrived.

    Example:
        >>> import torch
        >>> reader = LateReader(delay=1)
        >>> [reader.read(torch.tensor([value])) for value in (1.0, 2.0, 3.0)]
        [None, [1.0], [2.0]]
    """

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._under_way: deque[tuple[Tensor, torch.Event | None]] = deque()

    def read(self, values: Tensor, *, at_once: bool = False) -> list[float] | None:
        """Hand in the values of this call, and return those of the call ``delay`` calls ago, if there was one.

        Args:
            values: A small tensor.
            at_once: Waits for these values, returns them, and forgets what is still under way.
        """
        if at_once:
            self._under_way.clear()
            return cast("list[float]", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
        self._under_way.append(_copy_to_host(values))
        if len(self._under_way) <= self._delay:
            return None
        on_host, copied = self._under_way.popleft()
        if copied is not None:
            copied.synchronize()
        return cast("list[float]", on_host.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch


def to_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a small tensor on the device; on CUDA, nothing waits for the copy, since it starts in pinned memory."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def _copy_to_host(values: Tensor) -> tuple[Tensor, torch.Event | None]:
    if values.device.type == "cpu":
        return values, None
    on_host = torch.empty_like(values, device="cpu", pin_memory=values.device.type == "cuda")
    on_host.copy_(values, non_blocking=True)
    copied = torch.Event(values.device)
    copied.record()
    return on_host, copied
