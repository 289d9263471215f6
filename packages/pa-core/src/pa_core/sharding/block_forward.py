"""How the forward passes of blocks are computed: again in the backward pass, instead of kept; or compiled."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch import nn

from pa_core import _accelerate
from pa_core._torch import is_compiled_in_place
from pa_core.model_tensors import compiled_from, is_sharded_module, is_unit, unwrap_model

_run_checkpointed: Any = cast("Any", torch.utils.checkpoint).checkpoint  # annotated in part
_compile: Any = cast("Any", torch).compile  # annotated in part


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


def _checkpoint(block: nn.Module, *, offloads: bool) -> None:
    forward = block.forward

    @functools.wraps(forward)
    def forward_again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()) if offloads else nullcontext():
            return _run_checkpointed(forward, *args, use_reentrant=False, **kwargs)

    block.forward = forward_again


def compile_in_place(model: nn.Module, accelerator: _accelerate.AcceleratorLike) -> None:
    """Compile a sharded model in place, or its blocks, as the Accelerator is told to; what is compiled stays as it is.

    Accelerate itself would make other modules of them, which are called without gathering their weights first.

    Args:
        model: The user's module; one that is not sharded is left to accelerate.
        accelerator: The accelerator of the run.
    """
    settings = _accelerate.compilation(accelerator)
    if settings is None or compiled_from(model) is not None or not is_sharded_module(model):
        return
    module = unwrap_model(model)
    blocks = [one for one in module.modules() if is_unit(one) and one is not module]
    for one in blocks if settings.by_blocks and blocks else [module]:
        if not is_compiled_in_place(one):
            # Not the call, of which the hooks that gather the weights are a part: they cannot be compiled.
            one.forward = _compile(one.forward, **settings.arguments)
