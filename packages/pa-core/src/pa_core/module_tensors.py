"""The parameters and buffers of a module, without their names: what is needed in each update must be cheap."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pa_core._torch import BUFFERS, CHILDREN, PARAMETERS

__all__ = ["buffers_of_module", "parameters_of_module"]


def parameters_of_module(module: nn.Module) -> list[nn.Parameter]:
    """Return ``[*module.parameters()]``; torch makes a name for each of them, and takes three times as long.

    Args:
        module: A module. Parameters that it lists by overriding ``named_parameters`` are not found.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> [parameter.numel() for parameter in parameters_of_module(nn.Sequential(layer, nn.ReLU(), layer))]
        [2, 1]
    """
    found: dict[int, nn.Parameter] = {}
    _add_tensors(PARAMETERS, module, found, set())
    return list(found.values())


def buffers_of_module(module: nn.Module) -> list[Tensor]:
    """Return ``[*module.buffers()]``, as ``parameters_of_module`` returns parameters.

    Args:
        module: A module.
    """
    found: dict[int, Tensor] = {}
    _add_tensors(BUFFERS, module, found, set())
    return list(found.values())


def _add_tensors(kind: str, module: nn.Module, found: dict[int, Any], seen: set[int]) -> None:
    """Add what a module and those in it hold, each once; a module may even be in itself."""
    seen.add(id(module))
    attributes = vars(module)
    for tensor in attributes[kind].values():
        if tensor is not None:
            found[id(tensor)] = tensor
    for child in attributes[CHILDREN].values():
        if child is not None and id(child) not in seen:
            _add_tensors(kind, child, found, seen)
