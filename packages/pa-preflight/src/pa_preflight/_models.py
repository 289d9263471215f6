"""Checks of layers, parameters and flags of a model, before and after some updates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_preflight._findings import Finding, noticed
from pa_preflight._tensors import parameters_of

_SHOWN = 3

_USUAL_DECAY = 0.01
"""The default of AdamW; a note about it in nearly every script would be noise."""

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_NORMS = (*BATCH_NORMS, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

_HALF = (torch.float16, torch.bfloat16)

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


def check_model(
    model: nn.Module, modules: Iterable[nn.Module], optimizers: Mapping[str, Optimizer]
) -> Iterator[Finding]:
    """Yield findings about the trained parameters.

    Args:
        model: The model.
        modules: Further modules of the trainer, such as a loss function.
        optimizers: The optimizers by name.
    """
    groups: list[dict[str, Any]] = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    trained = set(map(id, parameters_of(optimizers.values())))
    names = dict(model.named_parameters())
    left_out = [name for name, parameter in names.items() if parameter.requires_grad and id(parameter) not in trained]
    if left_out and len(left_out) == sum(parameter.requires_grad for parameter in names.values()):
        yield noticed(
            "optimizer-of-another-model",
            f"The optimizer trains another model: it has {len(trained)} parameters, and the model has none of them.",
            "Make the optimizer with model.parameters() of the trainer's model, after the model is complete.",
        )
    elif left_out:
        yield noticed(
            "parameters-outside-optimizer",
            f"{they_are(left_out)} not frozen, but in no optimizer, and so never trained.",
            "Make the optimizer after the last layer of the model, or freeze them with requires_grad_(False).",
        )
    frozen = [name for name, parameter in names.items() if not parameter.requires_grad and id(parameter) in trained]
    if frozen:
        yield noticed(
            "frozen-in-optimizer",
            f"{they_are(frozen)} frozen, although in an optimizer.",
            "If you want to train them, call requires_grad_(True).",
        )
    half = [name for name, parameter in names.items() if parameter.requires_grad and parameter.dtype in _HALF]
    if half:
        yield noticed(
            "half-precision-weights",
            f"{listed(half)}: rounding removes updates of {names[half[0]].dtype} weights below about a hundredth "
            "of the weight, or a thousandth with float16.",
            'Keep the weights in float32, and pass mixed_precision="bf16" to the trainer.',
        )
    norms = [module for root in (model, *modules) for module in root.modules() if isinstance(module, _NORMS)]
    without_decay = {id(parameter) for module in norms for parameter in module.parameters(recurse=False)}
    without_decay |= {id(parameter) for name, parameter in names.items() if name.endswith("bias")}
    decayed = [group for group in groups if float(group.get("weight_decay", 0)) > _USUAL_DECAY]
    if any(id(parameter) in without_decay for group in decayed for parameter in group["params"]):
        yield noticed(
            "weight-decay-on-norms",
            f"Weight decay of {float(decayed[0]['weight_decay']):g} also pulls biases and the weights of norm layers "
            "to 0.",
            "Move them to a parameter group with weight_decay=0, as most recipes do.",
        )


def check_batch_norm(in_training: set[type[nn.Module]], batch_size: int, smallest_batch: int) -> Iterator[Finding]:
    """Yield a finding if BatchNorm layers get a batch of a single sample.

    Args:
        in_training: The kinds of layers that are in training mode.
        batch_size: The number of samples in a batch.
        smallest_batch: The number of samples in the smallest batch.
    """
    needing = BATCH_NORMS if batch_size == 1 else (nn.BatchNorm1d,)
    if smallest_batch == 1 and any(issubclass(kind, needing) for kind in in_training):
        yield noticed(
            "batch-of-one-with-batch-norm",
            f"The model has BatchNorm layers, and {'batches' if batch_size == 1 else 'the last batch of an epoch'} of "
            "a single sample, which has no variance.",
            "Use larger batches, drop_last=True in train_dataloader_kwargs, or GroupNorm.",
        )


def not_in_training_mode(do: str) -> Finding:
    """Return the finding that a model is in evaluation mode although it is trained.

    Args:
        do: The advice.
    """
    saw = "The model is in evaluation mode while it is trained: dropout is off, and BatchNorm learns no statistics."
    return noticed("not-in-training-mode", saw, do)


def check_progress(rates: Sequence[Sequence[float]], updates: int, *, has_changed: bool, do: str) -> Iterator[Finding]:
    """Yield a finding if no parameter changes, because of a learning rate of zero or for another reason.

    Args:
        rates: The learning rates of each update.
        updates: The number of updates.
        has_changed: Whether they have changed a parameter.
        do: The advice if no parameter has changed, though the rate is not zero.
    """
    if rates and not any(rate for of_update in rates for rate in of_update):
        yield noticed(
            "rate-is-zero",
            f"The learning rate is 0 in the first {updates} updates.",
            "Look at the optimizer's lr, and at the factor of the scheduler.",
        )
    elif not has_changed:
        yield noticed("weights-do-not-change", f"No parameter has changed after {updates} updates.", do)


def check_gradients(
    model: nn.Module, without_gradient: set[int], may_be_left_out: Callable[[str], bool] = lambda _name: False
) -> Iterator[Finding]:
    """Yield a finding if parameters got no gradient.

    Args:
        model: The model.
        without_gradient: The identities of the parameters without a gradient.
        may_be_left_out: Whether batches decide whether to use a parameter of this name; by default, none do.
    """
    names = [name for name, parameter in model.named_parameters() if id(parameter) in without_gradient]
    unexplained = [name for name in names if not may_be_left_out(name)]
    holders = [_holder_of_unused(model, name, without_gradient) for name in unexplained]
    if names:
        yield noticed(
            "parameters-without-gradient",
            f"{listed(names)} got no gradient in the first updates.",
            "Look for a layer that forward() does not call, and for detach() and no_grad(); or freeze them.",
            "note" if all(map(_is_of_library, holders)) else "mistake",  # such as the pooler of an encoder
        )


def _holder_of_unused(model: nn.Module, name: str, without_gradient: set[int]) -> nn.Module:
    """Return the smallest module around a parameter without a gradient whose other parameters have gradients."""
    while name:
        name = name.rpartition(".")[0]
        holder = model.get_submodule(name)
        if any(id(parameter) not in without_gradient for parameter in holder.parameters()):
            return holder
    return model


def _is_of_library(module: nn.Module) -> bool:
    """Whether the class of a module was installed, and is not a class of torch, from which scripts build models."""
    name = type(module).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return not name.startswith("torch.") and "-packages" in file


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode, and afterwards restore the mode of each of its modules.

    Args:
        model: The model.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def listed(names: list[str]) -> str:
    """Return the first names, and the number of further names.

    Args:
        names: At least one name.
    """
    rest = len(names) - _SHOWN
    shown = names if rest <= 1 else names[:_SHOWN]
    return ", ".join(shown) + (f" and {rest} more" if rest > 1 else "")


def they_are(names: list[str]) -> str:
    """Return the first names as the subject of a sentence.

    Args:
        names: At least one name.
    """
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


def modules_of(holder: object) -> list[nn.Module]:
    """Return the modules among the attributes of an object.

    Args:
        holder: The trainer.
    """
    return [value for value in cast("dict[str, object]", vars(holder)).values() if isinstance(value, nn.Module)]


def named_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return all modules of a model with their names, which torch annotates in part.

    Args:
        model: The model.
    """
    return [*cast("Any", model.named_modules())]


def check_layers(model: nn.Module) -> Iterator[Finding]:
    """Yield findings about the layers of a model.

    Args:
        model: The model, before the run.
    """
    yield from _check_flags(model)
    yield from _check_dropout(model)
    yield from _check_repeated(model)
    yield from _check_registered(model)
    yield from _check_values(model)


def _check_flags(model: nn.Module) -> Iterator[Finding]:
    """Look for attributes that look like requires_grad, and have no effect."""
    for name, module in named_layers(model):
        held = cast("dict[str, object]", vars(module))
        replaced = [
            method for method in ("requires_grad_", "train", "eval") if method in held and not callable(held[method])
        ]
        for flag in ["requires_grad"] * ("requires_grad" in held) + replaced:
            yield noticed(
                "flag-without-effect",
                f"{name or 'The model'}, a {type(module).__name__}, has an attribute {flag} = {held[flag]}, which "
                "has no effect: its parameters are trained as before.",
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
                f"{name or 'The model'} drops {100 * module.p:.0f} % of its inputs, nearly all of them.",
                "Pass the fraction to drop, such as 0.1; some libraries expect the fraction to keep.",
            )
            return
        if isinstance(module, nn.RNNBase) and module.num_layers == 1 and module.dropout:
            yield noticed(
                "unusual-option",
                f"{name or 'The model'} has dropout={module.dropout:g} and a single layer, so it drops nothing: this "
                "dropout is between layers.",
                "Add nn.Dropout after it, or a second layer.",
            )
            return


def _check_repeated(model: nn.Module) -> Iterator[Finding]:
    for name, module in named_layers(model):
        if isinstance(module, (nn.Sequential, nn.ModuleList)):
            layers = [layer for layer in module if any(True for _ in layer.parameters())]
            if len({id(layer) for layer in layers}) < len(layers):
                yield noticed(
                    "layer-repeated",
                    f"{name or 'The model'} has {len(layers)} layers with weights, but only "
                    f"{len({id(layer) for layer in layers})} are different: the others are the same layers again.",
                    "Make a new layer each time: [make() for _ in range(n)] instead of [layer] * n.",
                )
                return


def batches_of_norms(model: nn.Module) -> dict[str, int]:
    """Return the number of batches in the running statistics of frozen batch norm layers.

    Args:
        model: The model.
    """
    norms = {name: norm for name, norm in named_layers(model) if isinstance(norm, BATCH_NORMS) and norm.affine}
    return {
        name: int(norm.num_batches_tracked)
        for name, norm in norms.items()
        if norm.num_batches_tracked is not None and not any(own.requires_grad for own in norm.parameters())
    }


def check_frozen_norms(model: nn.Module, before: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding if the statistics of frozen batch norm layers have changed.

    Args:
        model: The model, after some updates.
        before: The return value of `batches_of_norms` before them.
    """
    moving = [name for name, count in batches_of_norms(model).items() if count > before.get(name, count)]
    if moving:  # perhaps on purpose, to adapt the statistics alone
        yield noticed(
            "frozen-norm-moves",
            f"{they_are(moving)} frozen, but in training mode: running means and variances still follow the batches.",
            "Call eval() on frozen BatchNorm layers too; the trainer does not change their mode.",
        )


@torch.no_grad()
def _check_values(model: nn.Module) -> Iterator[Finding]:
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or not parameter.numel() or parameter.is_meta:
            continue
        largest = float(parameter.detach().abs().max())
        if not largest < _MOST_WEIGHT:
            yield noticed(
                "weights-not-initialised",
                f"The largest weight of {name} is {largest:.3g}: it was not initialised, or is from a broken file.",
                "Initialise it: torch.empty() contains arbitrary numbers. Look for NaN in a checkpoint.",
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
        for name, module in named_layers(model)
        if isinstance(module, layers) and module.weight.requires_grad and len(module.weight) > 1 and _are_alike(module)
    ]
    if alike:
        yield noticed(
            "units-are-identical",
            f"All units of {listed(alike)} have the same weights, and stay the same: they compute the same outputs "
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
    for name, module in named_layers(model):
        if not isinstance(module, BATCH_NORMS) or module.running_mean is None or module.momentum is None:
            continue
        momentum, left = float(module.momentum), (1 - float(module.momentum)) ** updates
        is_initial = not bool(module.running_mean.any())
        if is_initial and momentum < _USUAL_MOMENTUM and left > _INITIAL_LEFT:
            saw = (
                f"{name or 'The model'} has momentum={momentum:g}: after the {updates} batches of the run, "
                f"{100 * left:.0f} % of its running statistics, which evaluations use, are still initial."
            )
        elif momentum >= _HARDLY_AVERAGED:
            saw = (
                f"{name or 'The model'} has momentum={momentum:g}: its running statistics, which evaluations use, are "
                "the statistics of the last batch."
            )
        else:
            continue
        do = "momentum is the fraction of the newest batch, 0.1 by default; other libraries mean the opposite."
        yield noticed("unusual-option", saw, do)
        return


def _check_registered(model: nn.Module) -> Iterator[Finding]:
    """Look for modules with weights in lists and dicts, where the model does not find them."""
    known = {id(module) for module in model.modules()}
    for name, module in named_layers(model):
        for key, value in vars(module).items():
            if key in _OF_MODULES:
                continue
            hidden = [module for module in _inside(value) if id(module) not in known]
            if any(own.requires_grad for module in hidden for own in module.parameters()):
                yield noticed(
                    "layers-not-registered",
                    f"{'.'.join(filter(None, (name, key)))} has modules in a {type(value).__name__}, where torch does "
                    "not find them: parameters(), state_dict(), to() and train() leave them out.",
                    "Use nn.ModuleList or nn.ModuleDict.",
                )
                return


def _inside(value: object) -> Iterator[nn.Module]:
    if isinstance(value, Mapping):
        yield from (module for part in cast("Mapping[Any, object]", value).values() for module in _inside(part))
    elif isinstance(value, (list, tuple, set)):
        yield from (module for part in cast("list[object]", value) for module in _inside(part))
    elif isinstance(value, nn.Module):
        yield value
