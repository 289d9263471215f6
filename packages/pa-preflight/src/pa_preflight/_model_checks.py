"""Whether optimizers and the model fit together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_preflight._findings import Finding, noticed

_SHOWN = 3
_USUAL_DECAY = 0.01
"""The default of AdamW; a note in nearly every script would be read by nobody."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NORMS = (*BATCH_NORMS, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_HALF = (torch.float16, torch.bfloat16)


def check_model(
    model: nn.Module, modules: Iterable[nn.Module], optimizers: Mapping[str, Optimizer]
) -> Iterator[Finding]:
    """Yield what is wrong with the parameters that are trained.

    Args:
        model: The model.
        modules: What else the trainer has, such as a loss function.
        optimizers: By name.
    """
    groups: list[dict[str, Any]] = [group for one in optimizers.values() for group in one.param_groups]
    trained: dict[int, Tensor] = {id(one): one for group in groups for one in group["params"]}
    names = dict(model.named_parameters())
    left_out = [name for name, one in names.items() if one.requires_grad and id(one) not in trained]
    if left_out and len(left_out) == sum(one.requires_grad for one in names.values()):
        yield noticed(
            "optimizer-of-another-model",
            f"The optimizer has {len(trained)} parameters, and none of them is one of the model's.",
            "Make the optimizer with model.parameters() of the model that the trainer gets, and after it is complete.",
        )
    elif left_out:
        yield noticed(
            "parameters-outside-optimizer",
            f"{listed(left_out)} {'is' if len(left_out) == 1 else 'are'} not frozen, and in no optimizer: "
            "they keep their first values.",
            "Make the optimizer after the last layer was put in place, or freeze them with requires_grad_(False).",
        )
    frozen = [name for name, one in names.items() if not one.requires_grad and id(one) in trained]
    if frozen:
        yield noticed(
            "frozen-in-optimizer",
            f"{listed(frozen)} {'is' if len(frozen) == 1 else 'are'} frozen, and in an optimizer.",
            "If they are to be trained, call requires_grad_(True).",
        )
    half = [name for name, one in names.items() if one.requires_grad and one.dtype in _HALF]
    if half:
        yield noticed(
            "half-precision-weights",
            f"{listed(half)}: trained weights of {names[half[0]].dtype} lose updates that are less than about a "
            "hundredth of them, or a thousandth with float16.",
            'Keep the weights in float32, and pass mixed_precision="bf16" to the trainer.',
        )
    norms = [module for one in (model, *modules) for module in one.modules() if isinstance(module, _NORMS)]
    without_decay = {id(one) for module in norms for one in module.parameters(recurse=False)}
    without_decay |= {id(one) for name, one in names.items() if name.endswith("bias")}
    decayed = [group for group in groups if float(group.get("weight_decay", 0)) > _USUAL_DECAY]
    if any(id(one) in without_decay for group in decayed for one in group["params"]):
        yield noticed(
            "weight-decay-on-norms",
            f"Weight decay of {float(decayed[0]['weight_decay']):g} also pulls biases and the weights of norm layers "
            "to 0.",
            "Move them to another parameter group, with weight_decay=0, as most recipes do.",
        )


def check_batch_norm(in_training: set[type[nn.Module]], batch_size: int, smallest_batch: int) -> Iterator[Finding]:
    """Yield a finding if BatchNorm layers get one sample.

    Args:
        in_training: The kinds of layers that are in training mode.
        batch_size: The number of samples in a batch.
        smallest_batch: The number in the smallest one.
    """
    needing = BATCH_NORMS if batch_size == 1 else (nn.BatchNorm1d,)
    if smallest_batch == 1 and any(issubclass(kind, needing) for kind in in_training):
        yield noticed(
            "batch-of-one-with-batch-norm",
            f"The model has BatchNorm layers, and {'batches' if batch_size == 1 else 'the last batch of an epoch'} of "
            "one sample: there is nothing to take a mean over.",
            "Use larger batches, drop_last=True in train_dataloader_kwargs, or GroupNorm.",
        )


def not_in_training_mode(do: str) -> Finding:
    """Return the finding that a model is in evaluation mode where it is trained.

    Args:
        do: What to change.
    """
    saw = "The model is in evaluation mode in training: dropout is off, and BatchNorm learns no statistics."
    return noticed("not-in-training-mode", saw, do)


def check_progress(rates: Sequence[Sequence[float]], updates: int, *, has_changed: bool, do: str) -> Iterator[Finding]:
    """Yield a finding if nothing learns: by a learning rate of zero, or for another reason.

    Args:
        rates: The learning rates of each update.
        updates: How many updates there were.
        has_changed: Whether they have changed a parameter.
        do: What to change if they have not, though the rate is not zero.
    """
    if rates and not any(rate for of_update in rates for rate in of_update):
        yield noticed(
            "rate-is-zero",
            f"The learning rate is 0 in the first {updates} updates.",
            "Look at the optimizer's lr, and at what the scheduler multiplies it with.",
        )
    elif not has_changed:
        yield noticed("weights-do-not-change", f"No parameter has changed after {updates} updates.", do)


def check_gradients(
    model: nn.Module, without_gradient: set[int], may_be_left_out: Callable[[str], bool] = lambda _name: False
) -> Iterator[Finding]:
    """Yield a finding if parameters got no gradient.

    Args:
        model: The model.
        without_gradient: The identities of parameters without one.
        may_be_left_out: Whether batches choose if they use a parameter of this name; by default none may be.
    """
    names = [name for name, one in model.named_parameters() if id(one) in without_gradient]
    unexplained = [name for name in names if not may_be_left_out(name)]
    holders = [_holder_of_unused(model, name, without_gradient) for name in unexplained]
    if names:
        yield noticed(
            "parameters-without-gradient",
            f"{listed(names)} got no gradient in the first updates.",
            "Look for a layer that forward() does not call, for detach() and no_grad(); or freeze them.",
            "note" if all(map(_is_of_library, holders)) else "mistake",  # as the pooler of an encoder
        )


def _holder_of_unused(model: nn.Module, name: str, without_gradient: set[int]) -> nn.Module:
    """Return the smallest module around a parameter without a gradient that has others with one."""
    while name:
        name = name.rpartition(".")[0]
        holder = model.get_submodule(name)
        if any(id(one) not in without_gradient for one in holder.parameters()):
            return holder
    return model


def _is_of_library(module: nn.Module) -> bool:
    """Whether the class of a module was installed, and is not one of torch's, which scripts put together."""
    name = type(module).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return not name.startswith("torch.") and "-packages" in file


def listed(names: list[str]) -> str:
    """Return the first names, and how many more there are.

    Args:
        names: At least one.
    """
    rest = len(names) - _SHOWN
    shown = names if rest <= 1 else names[:_SHOWN]
    return ", ".join(shown) + (f" and {rest} more" if rest > 1 else "")


def modules_of(holder: object) -> list[nn.Module]:
    """Return the modules among the attributes of an object.

    Args:
        holder: The trainer.
    """
    return [one for one in cast("dict[str, object]", vars(holder)).values() if isinstance(one, nn.Module)]
