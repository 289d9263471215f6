"""Tensors in batches and outputs, and as tables of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

_ROUNDED = 1e-6

_AWAY, _WIDER = 3.0, 5.0

TARGET_KEYS = ("label", "labels", "target", "targets", "y")

_MANY_FEATURES = 1024


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in tuples, lists and mappings, in their order.

    Args:
        value: A batch, an output or arguments.
    """
    if isinstance(value, Tensor):
        return [value]
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = entries(cast("object", value)).values()
    elif isinstance(value, (list, tuple)):
        parts = cast("list[Any]", value)
    return [tensor for part in parts for tensor in tensors_in(part)]


def entries(value: object) -> dict[Any, Any]:
    """Return the entries of a mapping.

    Args:
        value: The mapping.
    """
    return dict(cast("Mapping[Any, Any]", value))


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch of the same structure whose tensors were changed.

    Args:
        value: A batch or arguments.
        change: Called with each tensor.
    """
    if isinstance(value, Tensor):
        return change(value)
    kind = cast("Any", type(value))
    if isinstance(value, Mapping):
        return kind({key: with_tensors(part, change) for key, part in entries(cast("object", value)).items()})
    if isinstance(value, (list, tuple)):
        parts = [with_tensors(part, change) for part in cast("list[Any]", value)]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return value


def parameters_of(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return the parameters of optimizers.

    Args:
        optimizers: The optimizers.
    """
    return [parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]]


def flipped(tensor: Tensor) -> Tensor:
    """Return the samples of a tensor in reverse order.

    Args:
        tensor: A tensor with a row for each sample, or a single number.
    """
    return tensor.flip(0) if tensor.dim() else tensor


def is_same(first: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, type and values, NaN included.

    Args:
        first: A tensor.
        other: The tensor to compare it with.
    """
    if first.shape != other.shape or first.dtype != other.dtype:
        return False
    if torch.equal(first, other) or not first.is_floating_point():
        return torch.equal(first, other)
    return bool(((first == other) | (first.isnan() & other.isnan())).all())


def is_repeated(tensor: Tensor) -> bool:
    """Whether all rows of a tensor are the same up to rounding; without a copy, which may not fit in memory.

    Args:
        tensor: At least a row of real numbers.
    """
    highest, lowest = tensor.amax(0).double(), tensor.amin(0).double()
    return bool((highest - lowest).max() <= _ROUNDED * torch.maximum(highest.abs(), lowest.abs()).max())


def scales_that_differ(train: Tensor, evaluated: Tensor) -> str | None:
    """Return the means and deviations of numbers, if evaluation and training have different scales.

    Args:
        train: Numbers of training samples.
        evaluated: Numbers of samples to evaluate.
    """
    both = (train.double(), evaluated.double())
    (mean, deviation), (other_mean, other_deviation) = ((float(x.mean()), float(x.std())) for x in both)
    if not deviation or not other_deviation:
        return None
    is_wider = max(deviation, other_deviation) > _WIDER * max(min(deviation, other_deviation), 1e-12)
    if not is_wider and abs(mean - other_mean) <= _AWAY * max(deviation, other_deviation):
        return None
    return (
        f"have a mean of {mean:.3g} and a standard deviation of {deviation:.3g} in training, but "
        f"{other_mean:.3g} and {other_deviation:.3g} in the evaluation."
    )


def stacked(values: list[Any]) -> Tensor | None:
    """Return numbers, arrays or tensors as a single tensor; None for other values, or for different shapes.

    Args:
        values: A value for each sample.
    """
    if not values:
        return None
    if all(isinstance(value, (bool, int, float)) for value in values):
        return torch.tensor(values)
    tensors = [torch.as_tensor(value) if _is_array(value) else value for value in values]
    first = tensors[0]
    if not isinstance(first, Tensor) or first.is_sparse:
        return None
    alike = all(
        isinstance(tensor, Tensor) and tensor.shape == first.shape and tensor.dtype == first.dtype for tensor in tensors
    )
    return torch.stack(tensors).detach().cpu() if alike else None


def _is_array(value: Any) -> bool:
    """Whether a value is an array or a number of NumPy, which need not be imported here."""
    return hasattr(value, "__array_interface__") and value.dtype.kind in "biuf"


def features_of(inputs: Tensor) -> Tensor:
    """Return inputs as a table of numbers, with a row for each sample, and some of the columns if there are many.

    Args:
        inputs: The inputs of many samples.
    """
    table = inputs.flatten(1) if inputs.dim() > 1 else inputs[:, None]
    step = -(-table.shape[1] // _MANY_FEATURES)
    return table[:, ::step].double()


def is_continuous(table: Tensor) -> bool:
    """Whether most rows of a table have numbers that are not whole, so that rows are hardly equal by chance.

    Args:
        table: A table of numbers.
    """
    if not table.is_floating_point():
        return False
    broken = (table != table.round()).flatten(1).sum(1)
    return float((broken >= min(3, table[0].numel())).double().mean()) > 0.5  # noqa: PLR2004  # most
