"""Taking the rows away that were added to make tensors of different processes equally long."""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["remove_padding"]


def remove_padding(padded_tensor: Tensor, pad_value: float) -> Tensor:
    """Return the rows of a tensor that are not padding.

    A row, that is what stands at one index of the first dimension, is padding if every element of it is the padding
    value. So choose a value that no row of your data consists of. What ``trainer.gather`` returns for a padding value
    needs no such call: there is no padding in it.

    Args:
        padded_tensor: A tensor of shape ``(rows, ...)``, on any device.
        pad_value: The value that it was padded with; NaN is possible.

    Returns:
        A tensor of shape ``(remaining rows, ...)``, in the same order.

    Example:
        >>> import torch
        >>> remove_padding(torch.tensor([[1, -100], [-100, -100], [2, 3]]), -100)
        tensor([[   1, -100],
                [   2,    3]])
        >>> remove_padding(torch.tensor([1, 2, -1, 3, -1]), -1)
        tensor([1, 2, 3])
    """
    is_padding = padded_tensor.isnan() if math.isnan(pad_value) else padded_tensor == pad_value
    if padded_tensor.dim() > 1:
        is_padding = is_padding.flatten(start_dim=1).all(dim=1)
    return padded_tensor[~is_padding]
