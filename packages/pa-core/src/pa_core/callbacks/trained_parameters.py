"""What a run trains, in words: how many of the parameters, and which of them nobody may have meant to leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from pa_core.model_tensors import parameters_of

__all__ = ["describe_trained"]

_NUM_NAMES = 2


def describe_trained(models: Mapping[str, nn.Module], optimizers: Iterable[Optimizer]) -> str:
    """Return how many parameters are trained, how many are frozen, and which are neither, as no optimizer has them.

    Models of which no optimizer has any parameter are left out. Parameters whose sizes are not known yet are counted
    apart, and what several models share once.

    Args:
        models: The models, by name.
        optimizers: Their optimizers.

    Returns:
        The end of a sentence; empty where nothing can be counted.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2), nn.Linear(2, 1))
        >>> _ = model[0].requires_grad_(False)
        >>> describe_trained({"model": model}, [torch.optim.SGD(model[1].parameters())])
        '6 of 19 parameters (10 frozen); no optimizer has 2.weight and 2.bias (3, not frozen)'
    """
    held = {id(one) for optimizer in optimizers for one in parameters_of(optimizer)}
    names: dict[nn.Parameter, str] = {}
    for name, model in models.items():
        if not held.isdisjoint(map(id, model.parameters())):
            for inner, one in model.named_parameters():
                names.setdefault(one, inner if len(models) == 1 else f"{name}.{inner}")
    known = [one for one in names if not isinstance(one, UninitializedParameter)]
    frozen = sum(one.numel() for one in known if not one.requires_grad)
    left_out = {names[one]: one.numel() for one in known if one.requires_grad and id(one) not in held}
    total = sum(one.numel() for one in known)
    trained = total - frozen - sum(left_out.values())
    if total == 0:
        return ""
    unknown = len(names) - len(known)
    later = f", and {unknown} tensors of sizes that are not known yet" if unknown else ""
    if total == trained:
        return f"all {total:,} parameters{later}"
    words = f"{trained:,} of {total:,} parameters{later}"
    if frozen:
        words += f" ({frozen:,} frozen)"
    if left_out:
        shown, more = [*left_out][:_NUM_NAMES], len(left_out) - _NUM_NAMES
        named = " and ".join(shown) if more <= 0 else f"{', '.join(shown)} and {more} more"
        words += f"; no optimizer has {named} ({sum(left_out.values()):,}, not frozen)"
    return words
