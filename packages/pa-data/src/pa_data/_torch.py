"""The only module of this package that uses private names of torch, with the reason for each."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

__all__ = ["BUFFERS", "hooks_of", "version_of"]

BUFFERS: Final = "_buffers"
"""The attribute of a module with its buffers; ``named_buffers()`` does not tell which module holds them."""


def version_of(tensor: Tensor) -> int | None:
    """Return a number that grows with each in-place change that torch records. Without it, values would be compared.

    Args:
        tensor: The tensor.

    Returns:
        The number, or None if torch has no such number or the tensor is an inference tensor, whose changes are not
        counted.
    """
    return None if tensor.is_inference() else getattr(tensor, "_version", None)


def hooks_of(tensor: Tensor) -> list[dict[Any, Any]]:
    """Return the dictionaries of hooks that are called with the gradient of a tensor, by handle.

    Args:
        tensor: The tensor.
    """
    of_kinds = [getattr(tensor, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    return [hooks for hooks in of_kinds if hooks is not None]
