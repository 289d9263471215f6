"""Samples as one tensor of inputs and one of targets, where they have one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from pa_preflight._data_checks import Samples

TARGET_KEYS = ("label", "labels", "target", "targets", "y")
_MANY_FEATURES = 1024


def inputs_of(samples: Samples) -> Tensor | None:
    """Return the first part of each sample in one tensor; None if their shapes differ, or they are not numbers.

    Args:
        samples: Of a dataset.
    """
    return stacked([_parts(one)[0] for one in samples.samples])


def targets_of(samples: Samples) -> Tensor | None:
    """Return the last part of each sample in one tensor; None if there are none, or they have other shapes.

    Args:
        samples: Of a dataset.
    """
    return stacked([_parts(one)[1] for one in samples.samples])


def _parts(sample: Any) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        named: dict[Any, Any] = dict(cast("Any", sample))
        targets = [one for key, one in named.items() if key in TARGET_KEYS]
        inputs = [one for key, one in named.items() if key not in TARGET_KEYS]
        return (inputs[0] if inputs else None), (targets[0] if targets else None)
    if isinstance(sample, (tuple, list)):
        parts = cast("list[Any]", sample)
        return (parts[0] if parts else None), (parts[-1] if len(parts) > 1 else None)
    return sample, None


def stacked(values: list[Any]) -> Tensor | None:
    """Return numbers, arrays or tensors as one tensor; None if they are something else, or of several shapes.

    Args:
        values: One for each sample.
    """
    if not values:
        return None
    if all(isinstance(one, (bool, int, float)) for one in values):
        return torch.tensor(values)
    tensors = [torch.as_tensor(one) if _is_array(one) else one for one in values]
    first = tensors[0]
    if not isinstance(first, Tensor) or first.is_sparse:
        return None
    alike = all(isinstance(one, Tensor) and one.shape == first.shape and one.dtype == first.dtype for one in tensors)
    return torch.stack(tensors).detach().cpu() if alike else None


def _is_array(value: Any) -> bool:
    """Whether a value is an array or a number of NumPy, which need not be imported here."""
    return hasattr(value, "__array_interface__") and value.dtype.kind in "biuf"


def features_of(inputs: Tensor) -> Tensor:
    """Return inputs as a table of numbers, with a row for each sample, and some of the columns if there are many.

    Args:
        inputs: Of many samples.
    """
    table = inputs.flatten(1) if inputs.dim() > 1 else inputs[:, None]
    step = -(-table.shape[1] // _MANY_FEATURES)
    return table[:, ::step].double()


def is_continuous(table: Tensor) -> bool:
    """Whether most rows of a table have numbers that are hardly equal by chance, as they are not whole.

    Args:
        table: Of numbers.
    """
    if not table.is_floating_point():
        return False
    broken = (table != table.round()).flatten(1).sum(1)
    return float((broken >= min(3, table[0].numel())).double().mean()) > 0.5  # noqa: PLR2004  # most
