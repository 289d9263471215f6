"""Recomputing the forward pass of a block without changing its buffers a second time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor, nn

from pa_core._torch import BUFFERS

_LARGE = 1 << 13
"""Number of elements: masks and tables are larger, and do not change; running statistics are smaller or flat."""


def contexts_of_passes(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its recomputation, which uses copies of the earlier buffers.

    Args:
        block: The block, before its forward pass.

    Example:
        >>> import functools, torch
        >>> from torch.utils.checkpoint import checkpoint
        >>> norm = nn.BatchNorm1d(2)
        >>> contexts = functools.partial(contexts_of_passes, norm)
        >>> outputs = checkpoint(norm, torch.rand(4, 2), use_reentrant=False, context_fn=contexts)
        >>> outputs.sum().backward()
        >>> norm.num_batches_tracked.item()
        1
    """
    copies = [
        (holder, name, tensor.clone())
        for holder in (vars(module)[BUFFERS] for module in block.modules())
        for name, tensor in holder.items()
        if tensor is not None and (tensor.numel() <= _LARGE or tensor.dim() == 1)
    ]
    return nullcontext(), _replaced(copies) if copies else nullcontext()


@contextmanager
def _replaced(copies: Sequence[tuple[dict[str, Tensor | None], str, Tensor]]) -> Generator[None]:
    """Replace buffers instead of changing them, because the backward pass may need their values."""
    now = [(holder, name, holder[name]) for holder, name, _ in copies]
    for holder, name, copy in copies:
        holder[name] = copy
    try:
        yield
    finally:
        for holder, name, tensor in now:
            holder[name] = tensor
