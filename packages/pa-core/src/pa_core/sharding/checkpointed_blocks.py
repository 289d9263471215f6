"""Computing the activations inside a block again in the backward pass, instead of keeping them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch import nn

from pa_core.model_tensors import compiled_from

__all__ = ["checkpoint_activations"]


def checkpoint_activations(blocks: Iterable[nn.Module], *, offloads: bool) -> None:
    """Let blocks keep nothing but their inputs between the forward and the backward pass.

    Random draws, such as in dropout, are the same in both.

    Args:
        blocks: What is computed again, one after another. A block within another one is left as it is.
        offloads: Whether the inputs wait in host memory.
    """
    chosen = list(blocks)
    inner = {id(module) for block in chosen for module in block.modules() if module is not block}
    for block in chosen:
        if id(block) not in inner:
            _checkpoint(compiled_from(block) or block, offloads=offloads)


_run_checkpointed: Any = cast("Any", torch.utils.checkpoint).checkpoint  # annotated in part


def _checkpoint(block: nn.Module, *, offloads: bool) -> None:
    forward = block.forward

    @functools.wraps(forward)
    def forward_again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()) if offloads else nullcontext():
            return _run_checkpointed(forward, *args, use_reentrant=False, **kwargs)

    block.forward = forward_again
