"""The only module of this distribution that uses private names of torch, with the public way that is not enough."""

from __future__ import annotations

from torch import Tensor

__all__ = ["version_of"]


def version_of(tensor: Tensor) -> int | None:
    """Return a number that grows with each change in place that torch notes; without it, values would be compared.

    Args:
        tensor: The tensor.

    Returns:
        None for an inference tensor, whose changes are not counted, and where torch does not tell.
    """
    return None if tensor.is_inference() else getattr(tensor, "_version", None)
