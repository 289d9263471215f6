"""What must be the same on all processes, as short texts by name, which can be compared and shown."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

__all__ = ["describe_values"]

_DEEPEST = 4


def describe_values(values: Mapping[str, object]) -> dict[str, str]:
    """Return a text of each value, or several where it has parts.

    Args:
        values: Anything by name. Texts stay as they are; of a module there are texts of its layers, parameters and
            buffers, and of an optimizer texts of the parameters, named as in the modules, and settings of its groups.
    """
    modules = {name: value for name, value in values.items() if isinstance(value, nn.Module)}
    owned = {id(one): f"{name}.{inner}" for name, module in modules.items() for inner, one in module.named_parameters()}
    texts: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, nn.Module):
            texts |= _describe_module(name, value)
        elif isinstance(value, Optimizer):
            texts |= _describe_optimizer(name, value, owned)
        else:
            texts[name] = value if isinstance(value, str) else describe_value(value)
    return texts


def describe_value(value: object, depth: int = 0) -> str:
    """Return the text of a setting: of plain values what they are, of others what kind of thing they are.

    Args:
        value: Anything.
        depth: How many containers it is in.

    Example:
        >>> describe_value({"lr": 0.1, "betas": (0.9, 0.99)}), describe_value(nn.Linear), describe_value(nn.ReLU())
        ('betas=(0.9, 0.99), lr=0.1', 'Linear', 'ReLU')
    """
    if depth < _DEEPEST and isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return ", ".join(sorted(f"{key}={describe_value(one, depth + 1)}" for key, one in entries))
    if depth < _DEEPEST and isinstance(value, (list, tuple)):
        return f"({', '.join(describe_value(one, depth + 1) for one in cast('Sequence[object]', value))})"
    if value is None or isinstance(value, (bool, str, torch.dtype)):
        return repr(value)
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return f"{float(value):.9g}"
    name: object = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__qualname__


def _describe_module(name: str, module: nn.Module) -> dict[str, str]:
    layers = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())  # annotated in part
    texts = {f"{name}.{inner}".rstrip("."): _describe_layer(layer) for inner, layer in layers}
    tensors = (*module.named_parameters(), *module.named_buffers())
    return texts | {f"{name}.{inner}": _describe_tensor(one) for inner, one in tensors}


def _describe_optimizer(name: str, optimizer: Optimizer, owned: Mapping[int, str]) -> dict[str, str]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    texts = {name: type(optimizer).__qualname__, f"{name}, number of groups": str(len(groups))}
    for index, group in enumerate(groups):
        of_group = name if len(groups) == 1 else f"{name}, group {index}"
        held = [owned.get(id(one), _describe_tensor(one)) for one in group["params"]]
        texts[f"{of_group}, parameters"] = ", ".join(held)
        settings = {key: value for key, value in group.items() if key != "params"}
        texts |= {f"{of_group}, {key}": describe_value(_plain(value)) for key, value in settings.items()}
    return texts


def _describe_layer(layer: nn.Module) -> str:
    kind = type(layer).__qualname__
    return f"{kind}({layer.extra_repr()})" if type(layer).__module__.startswith("torch.nn.modules.") else kind


def _describe_tensor(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "not initialized"
    frozen = ", frozen" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else ""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}{frozen}"


def _plain(value: object) -> object:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
