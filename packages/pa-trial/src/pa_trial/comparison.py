"""What must be the same on all processes of a training, as short texts by name, which can be compared and shown."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

_DEEPEST = 4


def describe(value: object, depth: int = 0) -> str:
    """Return the text of a setting: of plain values what they are, of others what kind of thing they are.

    Args:
        value: Anything.
        depth: How many containers it is in.

    Example:
        >>> describe({"lr": 0.1, "betas": (0.9, 0.99)}), describe(nn.Linear), describe(nn.ReLU())
        ('betas=(0.9, 0.99), lr=0.1', 'Linear', 'ReLU')
    """
    if depth < _DEEPEST and isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return ", ".join(sorted(f"{key}={describe(one, depth + 1)}" for key, one in entries))
    if depth < _DEEPEST and isinstance(value, (list, tuple)):
        return f"({', '.join(describe(one, depth + 1) for one in cast('Sequence[object]', value))})"
    if value is None or isinstance(value, (bool, str, torch.dtype)):
        return repr(value)
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return f"{float(value):.9g}"
    name: object = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__qualname__


def describe_models(models: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the layers, the parameters and the buffers of models.

    Args:
        models: The models by name.
    """
    texts: dict[str, str] = {}
    for name, model in models.items():
        layers = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())  # annotated in part
        texts |= {f"{name}.{inner}".rstrip("."): _describe_layer(layer) for inner, layer in layers}
        tensors = (*model.named_parameters(), *model.named_buffers())
        texts |= {f"{name}.{inner}": _describe_tensor(one) for inner, one in tensors}
    return texts


def describe_optimizers(optimizers: Mapping[str, Optimizer], models: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the classes of optimizers, and of each of their groups the parameters and the plain settings.

    Args:
        optimizers: The optimizers by name.
        models: The models by name, which the parameters belong to.
    """
    names = {id(one): f"{name}.{inner}" for name, model in models.items() for inner, one in model.named_parameters()}
    texts: dict[str, str] = {}
    for name, optimizer in optimizers.items():
        groups: list[dict[str, Any]] = optimizer.param_groups
        texts |= {name: type(optimizer).__qualname__, f"{name}, number of groups": str(len(groups))}
        for index, group in enumerate(groups):
            of_group = name if len(groups) == 1 else f"{name}, group {index}"
            held = [names.get(id(one), _describe_tensor(one)) for one in group["params"]]
            texts[f"{of_group}, parameters"] = ", ".join(held)
            settings = {key: value for key, value in group.items() if key != "params"}
            texts |= {f"{of_group}, {key}": describe(_plain(value)) for key, value in settings.items()}
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
