"""What processes logged in an epoch, as numbers that travel with others in one exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, cast

import torch
from torch import Tensor

from pa_core.device_reads import to_device
from pa_core.tracking import StepMeans

__all__ = ["ROOM", "pack_means", "unpack_means"]

ROOM: Final = 16
"""How many means travel; each takes 16 bytes of every exchange, even in runs that log nothing."""

_DOES_NOT_FIT = -1.0
"""In the place of a digest."""


def pack_means(means: StepMeans, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the totals of means as a tensor of one size, without waiting for the accelerator.

    Args:
        means: What this process logged.
        dtype: The dtype of the exchange. Only doubles hold the totals exactly; others hold none.
        device: The device of the exchange.
    """
    fits = len(means) <= ROOM and dtype is torch.float64
    totals = [tracker.totals().to(device) for tracker in means.values()] if fits else []
    head = [_digest(means) if fits else _DOES_NOT_FIT] + [0.0] * (2 * (ROOM - len(totals)))
    return torch.cat((to_device(head, dtype, device), *totals))


def unpack_means(names: Iterable[str], of_processes: Tensor) -> list[dict[str, tuple[float, int]]] | None:
    """Return the totals of each process by name; None if the totals of one did not fit, or its names are others.

    Args:
        names: The names that this process logged.
        of_processes: What ``pack_means`` returned on each process, in a row each.
    """
    names = tuple(names)
    rows = cast("list[list[float]]", of_processes.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
    if {digest for digest, *_ in rows} != {_digest(names)}:
        return None
    start = 1 + 2 * (ROOM - len(names))
    return [
        dict(zip(names, zip(row[start::2], map(round, row[start + 1 :: 2]), strict=True), strict=True)) for row in rows
    ]


def _digest(names: Iterable[str]) -> float:
    """A whole number that a double holds, which only the same names in the same order have."""
    return float(int.from_bytes(hashlib.blake2b("\n".join(names).encode(), digest_size=6).digest(), "big"))
