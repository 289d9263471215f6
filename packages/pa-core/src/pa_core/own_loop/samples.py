"""How many samples a batch has where no loader tells."""

from __future__ import annotations

from pa_core.batch_structure import describe_batch, first_dimension
from pa_core.errors import ConfigurationError

__all__ = ["count_samples"]


def count_samples(batch: object) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor.

    Args:
        batch: What a custom data loader yields.

    Raises:
        ConfigurationError: There is no tensor with a first dimension.

    Example:
        >>> import torch
        >>> count_samples({"pixels": torch.zeros(4, 3), "names": ["a", "b", "c", "d"]})
        4
    """
    number = first_dimension(batch)
    if number is None:
        raise ConfigurationError(
            "The number of samples in the batch is not known.",
            given=describe_batch(batch),
            expected="a batch with a tensor whose first dimension is that of the samples",
            do="Return tensors from the dataset or from collate_fn, or pass a dataset instead of the loader.",
        )
    return number
