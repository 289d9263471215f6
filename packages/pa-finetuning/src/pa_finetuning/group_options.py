"""Options of single parameters, which divide the parameter groups of an optimizer further."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn


def options_without_decay(model: nn.Module) -> dict[nn.Parameter, dict[str, Any]]:
    """Return ``weight_decay=0`` for the norms and biases of a model, and for all other vectors and scalars."""
    return {
        parameter: {"weight_decay": 0.0}
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() <= 1 or name.endswith("bias") or "norm" in type(module).__name__.lower()
    }


def options_in_timm_groups(
    model: nn.Module, timm_groups: Iterable[Mapping[str, Any]], needed: Iterable[nn.Parameter]
) -> dict[nn.Parameter, dict[str, Any]]:
    """Return the scale of the learning rate and the weight decay of each parameter in groups of timm.

    Raises:
        ValueError: A needed parameter is in none of the groups.
    """
    options: dict[nn.Parameter, dict[str, Any]] = {}
    for group in timm_groups:
        own = {name: group[name] for name in ("lr_scale", "weight_decay") if name in group}
        options |= dict.fromkeys(group["params"], own)
    lacking = set(needed) - options.keys()
    if lacking:
        first = next(name for name, parameter in model.named_parameters() if parameter in lacking)
        raise ValueError(
            f"Given: timm_groups without {first}, one of {len(lacking)} parameters of {type(model).__name__} that are "
            "in none of the groups. Expected: groups with all requested parameters. Call timm's "
            "param_groups_layer_decay(model) for this model before you freeze it: timm leaves out frozen parameters."
        )
    return options


def divide_groups(
    groups: Iterable[dict[str, Any]], options: Sequence[Mapping[nn.Parameter, Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Divide parameter groups such that all parameters of a group have the same options.

    Args:
        groups: ``{"params": [...], "lr": rate}``.
        options: Options by parameter; later options win. The rate is multiplied by ``lr_scale``.
    """
    divided: list[dict[str, Any]] = []
    for group in groups:
        by_options: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
        for parameter in group["params"]:
            own = {name: value for by_parameter in options for name, value in by_parameter.get(parameter, {}).items()}
            own["lr"] = group["lr"] * own.pop("lr_scale", 1)
            by_options.setdefault(tuple(sorted(own.items())), []).append(parameter)
        divided += [{"params": parameters, **dict(own)} for own, parameters in by_options.items()]
    return divided
