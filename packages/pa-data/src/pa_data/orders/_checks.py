"""Checks of the arguments of orders."""

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
    """Return the numbers of all samples as a one-dimensional tensor on the CPU.

    Args:
        name: The name of the argument.
        values: The passed value.
        dtype: The type to convert to, or None to keep the type.
        do: The advice for wrong values, or None for the usual advice.

    Raises:
        TypeError: The values are not numbers in one dimension.
    """
    try:
        given = torch.as_tensor(values, dtype=dtype).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_a_column(name, f"{name} of type {type(values).__name__}: {error}", do) from error
    if given.dim() != 1:
        raise _not_a_column(name, f"{name} of shape {tuple(given.shape)}", do)
    return given


def _not_a_column(name: str, given: str, do: str | None) -> TypeError:
    """Return the error for values that are not numbers in one dimension."""
    do = do or f"Pass {name}=torch.tensor([...]), with one number for each sample of the dataset."
    return TypeError(f"An order takes numbers in one dimension as {name}. Got {given}. {do}")


def lengths_of_samples(lengths: Sequence[int] | Tensor) -> Tensor:
    """Return a copy of the lengths as a tensor of int32, or of int64 if a length needs it.

    Args:
        lengths: A whole number for each sample, in the order of the dataset.

    Raises:
        TypeError: The lengths are not numbers in one dimension.
        DataError: The lengths are not whole numbers, a length is negative, or there are no lengths.
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
    """Raise an error for a value that is not a whole number of at least ``minimum``.

    Raises:
        DataError: The value is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < minimum:
        raise DataError(f"{name} must be a whole number >= {minimum}, got {value!r}.")


def check_one_for_each_sample(name: str, number: int, num_samples: int) -> None:
    """Raise an error for values that belong to a dataset of a different length.

    Args:
        name: The name of the argument with the values.
        number: The number of values.
        num_samples: The number of samples of the dataset.

    Raises:
        DataError: The numbers differ.
    """
    if number != num_samples:
        raise DataError(
            f"The order was made for another dataset. Got {number} {name} and a dataset of {num_samples} samples. "
            f"Make the {name} from the dataset that is trained on; for a Subset, pick the {name} at its indices."
        )


def and_more(number: int) -> str:
    """Return how many similar values there are besides the shown value, or an empty text."""
    return f", and {number} more like it" if number > 0 else ""


def checked_indices(table: Tensor, num_samples: int, name: str, do: str) -> Tensor:
    """Return indices of samples as int64.

    Args:
        table: The indices, in the order in which they are visited.
        num_samples: The number of samples of the dataset.
        name: The origin of the indices, for messages.
        do: The advice for wrong types.

    Raises:
        TypeError: The indices are not integers.
        DataError: An index is out of range.
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
