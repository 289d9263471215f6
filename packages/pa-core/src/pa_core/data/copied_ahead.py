"""Copying batches to a CUDA device while it computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from pa_core.data.device import move_to_device

__all__ = ["copied_ahead"]

_BatchT = TypeVar("_BatchT")


def copied_ahead(batches: Iterable[_BatchT], device: torch.device) -> Iterator[_BatchT]:
    """Yield batches on the device, each copied there while the device computes with the one before it.

    Copies are made on a stream of their own, one batch ahead. What is trained on is counted where the weights change,
    so that a batch that was fetched and not used is fetched again by a run that goes on.

    Args:
        batches: Batches in pinned memory.
        device: A CUDA device.
    """
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves its streams unannotated
    under_way: list[tuple[_BatchT, torch.Event]] = []
    for batch in batches:
        # Memory of an earlier batch may be given to this one: not before everything that was asked of it is computed.
        copies.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(copies):
            moved = move_to_device(batch, device, non_blocking=True)
        copied = copies.record_event()
        if under_way:
            yield _once_arrived(*under_way.pop(), device)
        under_way.append((moved, copied))
    if under_way:
        yield _once_arrived(*under_way.pop(), device)


def _once_arrived(batch: _BatchT, copied: torch.Event, device: torch.device) -> _BatchT:
    torch.cuda.current_stream(device).wait_event(copied)
    return batch
