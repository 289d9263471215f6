"""What a run trains, in words: how many of the parameters, and which of them nobody may have meant to leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from pa_core.optimizer_parameters import parameters_of

__all__ = ["describe_trained"]

_NUM_NAMES = 2


def describe_trained(models: Mapping[str, nn.Module], optimizers: Iterable[Optimizer]) -> str:
    """Return how many parameters are trained, how many are frozen, and which are neither, as no optimizer has them.

    Models of which no optimizer has any parameter are left out, and so are parameters whose sizes are not known yet.
    What several models share counts once.

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
    trained = frozen = 0
    left_out: dict[str, int] = {}
    counted = set[nn.Parameter]()
    for name, model in models.items():
        parameters = {
            inner: one for inner, one in model.named_parameters() if not isinstance(one, UninitializedParameter)
        }
        if held.isdisjoint(map(id, parameters.values())):
            continue
        for inner, one in parameters.items():
            if one in counted:
                continue
            counted.add(one)
            if not one.requires_grad:
                frozen += one.numel()
            elif id(one) in held:
                trained += one.numel()
            else:
                left_out[inner if len(models) == 1 else f"{name}.{inner}"] = one.numel()
    total = trained + frozen + sum(left_out.values())
    if total == trained:
        return f"all {total:,} parameters" if total else ""
    words = f"{trained:,} of {total:,} parameters"
    if frozen:
        words += f" ({frozen:,} frozen)"
    if left_out:
        names, more = [*left_out][:_NUM_NAMES], len(left_out) - _NUM_NAMES
        named = " and ".join(names) if more <= 0 else f"{', '.join(names)} and {more} more"
        words += f"; no optimizer has {named} ({sum(left_out.values()):,}, not frozen)"
    return words
