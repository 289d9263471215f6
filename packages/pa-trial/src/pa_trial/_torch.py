"""Private names of torch, each with the public alternative that is not enough."""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from pa_trial.errors import UnsupportedConfigurationError

BUFFERS: Final = "_buffers"
"""The key of a module's own buffers in its ``vars``; ``named_buffers`` leaves out second names."""

COMPILED: Final = "_orig_mod"
"""The attribute of a compiled module that holds the original module; checking the class would import the compiler."""


def _private(owner: object, name: str) -> Any:
    """Return an attribute of an object of torch.

    Raises:
        UnsupportedConfigurationError: This version of torch does not have the attribute.
    """
    found = getattr(owner, name, None)
    if found is None:
        raise UnsupportedConfigurationError(
            "This trial needs a private part of torch that this version of torch does not have.",
            given=f"torch {torch.__version__}, without {getattr(owner, '__name__', type(owner).__name__)}.{name}",
            do="Install a tested version, torch 2.11 to 2.15, or a newer pa-trial.",
        )
    return found


def foreach(operation: str, *arguments: Any) -> Any:
    """Apply an operation to lists of tensors at once, as torch's optimizers do, instead of a call for each tensor.

    Args:
        operation: Its name in torch without ``_foreach_``, such as ``"mul_"``.
        *arguments: The arguments of the operation. No list may be empty.
    """
    return _private(torch, f"_foreach_{operation}")(*arguments)


def is_sharded_module(module: nn.Module) -> bool:
    """Whether some parameter of a module is split over processes."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and any(isinstance(parameter, tensor.DTensor) for parameter in module.parameters())


def is_unscaled(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> bool:
    """Whether a scaler has unscaled the gradients of an optimizer; a second ``unscale_`` is an error.

    Args:
        scaler: The scaler. For a scaler that is not torch's own, the return value is False.
        optimizer: The optimizer.
    """
    states: Any = getattr(scaler, "_per_optimizer_states", {})
    return bool(states.get(id(optimizer), {}).get("found_inf_per_device"))


def file_writer_of(writer: object) -> Any:
    """Return the file writer of a ``SummaryWriter``; the ``file_writer`` attribute alone does not reopen a closed file.

    Args:
        writer: The writer.
    """
    return _private(writer, "_get_file_writer")()
