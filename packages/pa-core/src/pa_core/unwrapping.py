"""Looking inside the modules that torch wraps around a model: for several processes, and to compile it."""

from __future__ import annotations

from typing import Any, cast

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pa_core._torch import CHILDREN, COMPILED

__all__ = ["compiled_from", "unwrap_model"]


def unwrap_model(model: nn.Module, *, keep_torch_compile: bool = True) -> nn.Module:
    """Return the model inside distributed wrappers and, if wanted, inside ``torch.compile``.

    Args:
        model: A model, which need not be wrapped at all.
        keep_torch_compile: Whether a compiled model is returned compiled. What was compiled around a distributed
            wrapper is never kept, as the wrapper is a part of it.

    Returns:
        The model itself, not a copy.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> unwrap_model(nn.DataParallel(model)) is model
        True
    """
    inside = compiled_from(model)
    if inside is not None:
        inner = unwrap_model(inside, keep_torch_compile=keep_torch_compile)
        return model if keep_torch_compile and inner is inside else inner
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        return unwrap_model(cast("Any", model).module, keep_torch_compile=keep_torch_compile)
    return model


def compiled_from(model: nn.Module) -> nn.Module | None:
    """Return what ``torch.compile``, or accelerate's regional compilation, made this module from; None for others.

    Checking the class would import the compiler. A copy of a module whose repeated blocks are compiled keeps its
    original as a plain attribute.
    """
    attributes = vars(model)
    modules = attributes.get(CHILDREN, {})  # of a scripted module, a mapping without get
    found = modules[COMPILED] if COMPILED in modules else attributes.get(COMPILED)
    return cast("nn.Module | None", found)
