"""The lengths of samples, as they are handed in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pa_data.errors import ConfigurationError
from pa_data.orders._checks import column

__all__ = ["lengths_of_samples"]


def lengths_of_samples(lengths: Sequence[int] | Tensor) -> Tensor:
    """Return a copy of the lengths as a tensor: int32, or int64 where one is too large for that.

    Args:
        lengths: One whole number for each sample, in the order of the dataset.

    Raises:
        ArgumentTypeError: They are not numbers in one dimension.
        ConfigurationError: They are not whole numbers, one is negative, or there is none.
    """
    given = column("lengths", lengths)
    if given.numel() == 0 or given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise ConfigurationError(f"lengths must be whole numbers, got {len(given)} lengths of {given.dtype}.")
    least = int(given.argmin())
    if int(given[least]) < 0:
        raise ConfigurationError(f"lengths must be whole numbers >= 0, got lengths[{least}]={int(given[least])}.")
    fits = int(given.max()) <= torch.iinfo(torch.int32).max
    return given.to(torch.int32 if fits else torch.int64, copy=True)
