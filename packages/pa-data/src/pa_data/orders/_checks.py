"""Checks that orders make of their arguments."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pa_data.errors import DataError

__all__ = [
    "and_more",
    "check_count",
    "check_one_for_each_sample",
    "checked_indices",
    "column",
    "lengths_of_samples",
]


def column(
    name: str, values: Tensor | Sequence[Any], dtype: torch.dtype | None = None, do: str | None = None
) -> Tensor:
    """Return numbers that were given for the samples of a dataset as a tensor on the CPU.

    Args:
        name: The name of the argument.
        values: What was passed for it.
        dtype: What to convert them to; None for what they are.
        do: What to do where they are something else; None for what to do about an argument.

    Raises:
        TypeError: They are not numbers in one dimension.
    """
    try:
        given = torch.as_tensor(values, dtype=dtype).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_a_column(name, f"{name} of type {type(values).__name__}: {error}", do) from error
    if given.dim() != 1:
        raise _not_a_column(name, f"{name} of shape {tuple(given.shape)}", do)
    return given


def _not_a_column(name: str, given: str, do: str | None) -> TypeError:
    do = do or f"Pass {name}=torch.tensor([...]), with one number for each sample of the dataset."
    return TypeError(f"An order takes numbers in one dimension as {name}. Got {given}. {do}")


def lengths_of_samples(lengths: Sequence[int] | Tensor) -> Tensor:
    """Return a copy of the lengths as a tensor: int32, or int64 where one is too large for that.

    Args:
        lengths: One whole number for each sample, in the order of the dataset.

    Raises:
        TypeError: They are not numbers in one dimension.
        DataError: They are not whole numbers, one is negative, or there is none.
    """
    given = column("lengths", lengths)
    if given.numel() == 0 or given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise DataError(f"lengths must be whole numbers, got {len(given)} lengths of {given.dtype}.")
    least = int(given.argmin())
    if int(given[least]) < 0:
        raise DataError(f"lengths must be whole numbers >= 0, got lengths[{least}]={int(given[least])}.")
    fits = int(given.max()) <= torch.iinfo(torch.int32).max
    return given.to(torch.int32 if fits else torch.int64, copy=True)


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raise an error for anything that is not a whole number of at least ``minimum``.

    Raises:
        DataError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < minimum:
        raise DataError(f"{name} must be a whole number >= {minimum}, got {value!r}.")


def check_one_for_each_sample(name: str, number: int, num_samples: int) -> None:
    """Raise an error for values that were made for another dataset.

    Args:
        name: The name of the argument that has them.
        number: How many there are.
        num_samples: The number of samples of the dataset.

    Raises:
        DataError: The numbers differ.
    """
    if number != num_samples:
        raise DataError(
            f"The order was made for another dataset. Got {number} {name} and a dataset of {num_samples} samples. "
            f"Make the {name} from the dataset that is trained on; for a Subset, pick the ones at its indices."
        )


def and_more(number: int) -> str:
    """Return how many others there are like the one that an error shows; nothing where it is the only one."""
    return f", and {number} more like it" if number > 0 else ""


def checked_indices(table: Tensor, num_samples: int, name: str, do: str) -> Tensor:
    """Return indices of samples as int64.

    Args:
        table: The indices, in the order in which they are visited.
        num_samples: The number of samples of the dataset.
        name: Where the indices come from.
        do: What to do where they are something else.

    Raises:
        TypeError: They are not integers.
        DataError: One of them is out of range.
    """
    if table.is_floating_point() or table.is_complex() or table.dtype == torch.bool:
        raise TypeError(f"The indices of samples are integers, got {table.dtype} from {name}. {do}")
    wrong = ((table < 0) | (table >= num_samples)).nonzero().squeeze(1)
    if wrong.numel() > 0:
        raise DataError(
            f"An order visits samples that the dataset does not have; it has those from 0 to {num_samples - 1}. Got "
            f"{int(table[wrong[0]])} at position {int(wrong[0])} of {name}{and_more(wrong.numel() - 1)}. Look at how "
            "the indices are computed; indices into a dataset before it was split are a common cause."
        )
    return table.to(torch.int64)
