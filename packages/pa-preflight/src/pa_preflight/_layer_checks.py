"""Layers of a model whose options, weights or flags are wrong before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_preflight._findings import Finding, noticed
from pa_preflight._model_checks import BATCH_NORMS, listed

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_MOST_DROPPED = 0.85
_FLAGS = {
    "freeze",
    "frozen",
    "is_frozen",
    "is_trainable",
    "require_grad",
    "require_grads",
    "required_grad",
    "requires_grads",
    "requires_gradient",
    "trainable",
}
_USUAL_MOMENTUM, _INITIAL_LEFT, _HARDLY_AVERAGED = 0.05, 0.3, 0.9
_MOST_WEIGHT = 1e4
_OF_MODULES = frozenset(vars(nn.Module()))


def named_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return all modules of a model with their names, which torch annotates in part.

    Args:
        model: The model.
    """
    return [*cast("Any", model.named_modules())]


def check_layers(model: nn.Module) -> Iterator[Finding]:
    """Yield what is wrong with the layers of a model.

    Args:
        model: The model, before the run.
    """
    yield from _check_flags(model)
    yield from _check_dropout(model)
    yield from _check_repeated(model)
    yield from _check_registered(model)
    yield from _check_values(model)


def _check_flags(model: nn.Module) -> Iterator[Finding]:
    """Attributes that look like requires_grad, and that nobody reads."""
    for name, module in named_layers(model):
        held = cast("dict[str, object]", vars(module))
        replaced = [one for one in ("requires_grad_", "train", "eval") if one in held and not callable(held[one])]
        for flag in ["requires_grad"] * ("requires_grad" in held) + replaced:
            yield noticed(
                "flag-without-effect",
                f"{name or 'The model'}, a {type(module).__name__}, has an attribute {flag} = {held[flag]}, which "
                "changes nothing: its parameters are trained as before.",
                "Call requires_grad_(False) to freeze a module, and eval() for its mode.",
            )
            return
    for name, parameter in model.named_parameters():
        flags = _FLAGS.intersection(cast("dict[str, object]", getattr(parameter, "__dict__", {})))
        if flags:
            yield noticed(
                "flag-without-effect",
                f"{name} has an attribute {flags.pop()}, which torch does not read: requires_grad is "
                f"{parameter.requires_grad}.",
                "Set requires_grad to freeze a parameter.",
                "warning",
            )
            return


def _check_dropout(model: nn.Module) -> Iterator[Finding]:
    for name, module in named_layers(model):
        if isinstance(module, _DROPOUTS) and module.p > _MOST_DROPPED:
            yield noticed(
                "unusual-option",
                f"{name or 'The model'} drops {100 * module.p:.0f} % of its inputs.",
                "Pass the share that is dropped, such as 0.1: some libraries take the share that is kept.",
            )
            return
        if isinstance(module, nn.RNNBase) and module.num_layers == 1 and module.dropout:
            yield noticed(
                "unusual-option",
                f"{name or 'The model'} has dropout={module.dropout:g} and one layer, and drops nothing: this dropout "
                "is between layers.",
                "Add nn.Dropout after it, or a second layer.",
            )
            return


def _check_repeated(model: nn.Module) -> Iterator[Finding]:
    for name, module in named_layers(model):
        if isinstance(module, (nn.Sequential, nn.ModuleList)):
            layers = [one for one in module if any(True for _ in one.parameters())]
            if len({id(one) for one in layers}) < len(layers):
                yield noticed(
                    "layer-repeated",
                    f"{name or 'The model'} has {len(layers)} layers with weights, and only "
                    f"{len({id(one) for one in layers})} different ones: the others are the same layers again.",
                    "Make a new layer each time, [make() for _ in range(n)] instead of [layer] * n.",
                )
                return


def batches_of_norms(model: nn.Module) -> dict[str, int]:
    """Return how many batches the running statistics of frozen batch norm have seen.

    Args:
        model: The model.
    """
    norms = {name: one for name, one in named_layers(model) if isinstance(one, BATCH_NORMS) and one.affine}
    return {
        name: int(one.num_batches_tracked)
        for name, one in norms.items()
        if one.num_batches_tracked is not None and not any(own.requires_grad for own in one.parameters())
    }


def check_frozen_norms(model: nn.Module, before: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding if the statistics of frozen batch norm have moved.

    Args:
        model: The model, after some updates.
        before: What `batches_of_norms` has returned before them.
    """
    moving = [name for name, count in batches_of_norms(model).items() if count > before.get(name, count)]
    if moving:  # statistics of other data may be wanted, with the weights as they are
        yield noticed(
            "frozen-norm-moves",
            f"{listed(moving)} {'is' if len(moving) == 1 else 'are'} frozen, but in training mode: running means and "
            "variances still follow the batches.",
            "Call eval() on frozen BatchNorm layers, too; the trainer leaves such parts in evaluation mode.",
        )


@torch.no_grad()
def _check_values(model: nn.Module) -> Iterator[Finding]:
    for name, one in model.named_parameters():
        if not one.is_floating_point() or not one.numel() or one.is_meta:
            continue
        largest = float(one.detach().abs().max())
        if not largest < _MOST_WEIGHT:
            yield noticed(
                "weights-not-initialised",
                f"The largest weight of {name} is {largest:.3g}.",
                "Initialise it: torch.empty() has the numbers that are in memory. Look for NaN in a checkpoint.",
            )
            return


def check_units(model: nn.Module) -> Iterator[Finding]:
    """Yield a finding if all units of a layer are still the same after some updates.

    Args:
        model: The model, after the updates.
    """
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    alike = [
        name
        for name, one in named_layers(model)
        if isinstance(one, layers) and one.weight.requires_grad and len(one.weight) > 1 and _are_alike(one)
    ]
    if alike:
        yield noticed(
            "units-are-identical",
            f"All units of {listed(alike)} have the same weights, and keep them: they compute the same, "
            "and get the same gradients.",
            "Initialise weights at random, as torch does, and not with a constant.",
        )


def _are_alike(layer: Any) -> bool:
    weight: Tensor = layer.weight.detach()
    bias: Tensor | None = layer.bias
    lowest, highest = weight.amin(0), weight.amax(0)  # without a copy of all weights
    size = max(float(lowest.abs().max()), float(highest.abs().max()))
    same_bias = bias is None or bool((bias.detach() - bias.detach()[:1]).abs().max() <= 1e-6)  # noqa: PLR2004  # rounding
    return float((highest - lowest).max()) <= 1e-6 * max(size, 1e-12) and same_bias


def check_running_statistics(model: nn.Module, updates: int) -> Iterator[Finding]:
    """Yield a finding if batch norm averages over far more, or far fewer, batches than the run has.

    Args:
        model: The model, before the run.
        updates: The batches of the run.
    """
    for name, one in named_layers(model):
        if not isinstance(one, BATCH_NORMS) or one.running_mean is None or one.momentum is None:
            continue
        momentum, left = float(one.momentum), (1 - float(one.momentum)) ** updates
        is_initial = not bool(one.running_mean.any())
        if is_initial and momentum < _USUAL_MOMENTUM and left > _INITIAL_LEFT:
            saw = (
                f"{name or 'The model'} has momentum={momentum:g}: after the {updates} batches of the run, "
                f"{100 * left:.0f} % of its running statistics are the initial ones, which evaluations use."
            )
        elif momentum >= _HARDLY_AVERAGED:
            saw = (
                f"{name or 'The model'} has momentum={momentum:g}: its running statistics, which evaluations use, are "
                "the statistics of the last batch."
            )
        else:
            continue
        do = (
            "Momentum is the share of the newest batch here, 0.1 by default; other libraries mean the share that stays."
        )
        yield noticed("unusual-option", saw, do)
        return


def _check_registered(model: nn.Module) -> Iterator[Finding]:
    """Modules with weights that are held in lists and dicts, so that the model does not know them."""
    known = {id(one) for one in model.modules()}
    for name, module in named_layers(model):
        for key, value in vars(module).items():
            if key in _OF_MODULES:
                continue
            hidden = [one for one in _inside(value) if id(one) not in known]
            if any(own.requires_grad for one in hidden for own in one.parameters()):
                yield noticed(
                    "layers-not-registered",
                    f"{'.'.join(filter(None, (name, key)))} has modules in a {type(value).__name__}, where the model "
                    "does not find them: they are in none of parameters(), state_dict(), to() and train().",
                    "Use nn.ModuleList or nn.ModuleDict.",
                )
                return


def _inside(value: object) -> Iterator[nn.Module]:
    if isinstance(value, Mapping):
        yield from (one for part in cast("Mapping[Any, object]", value).values() for one in _inside(part))
    elif isinstance(value, (list, tuple, set)):
        yield from (one for part in cast("list[object]", value) for one in _inside(part))
    elif isinstance(value, nn.Module):
        yield value
