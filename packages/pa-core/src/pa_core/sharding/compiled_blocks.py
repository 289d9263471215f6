"""Compiling a sharded model where accelerate was told to."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from pa_core import _accelerate
from pa_core._torch import is_compiled_in_place
from pa_core.model_tensors import compiled_from, is_sharded_module, is_unit, unwrap_model

__all__ = ["compile_in_place"]


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


_compile: Any = cast("Any", torch).compile  # annotated in part
