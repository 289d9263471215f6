"""How many samples a batch has where no loader tells."""

from __future__ import annotations

from pa_core.batch_structure import first_dimensions
from pa_core.errors import ConfigurationError
from pa_core.user_warnings import warn_user
from pa_data.batches import describe_batch

__all__ = ["count_samples"]


def count_samples(batch: object) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor.

    Warns if its tensors do not agree on it, as where a batch is a list of images.

    Args:
        batch: What a custom data loader yields.

    Raises:
        ConfigurationError: There is no tensor with a first dimension.

    Example:
        >>> import torch
        >>> count_samples({"pixels": torch.zeros(4, 3), "names": ["a", "b", "c", "d"]})
        4
    """
    numbers = list(first_dimensions(batch))
    if not numbers:
        raise ConfigurationError(
            "The number of samples in the batch is not known.",
            given=describe_batch(batch),
            do="Return tensors from the dataset or from collate_fn, or pass a dataset instead of the loader.",
        )
    if len(set(numbers)) > 1:
        # The same words for each batch, so that it is said once.
        warn_user(
            "The tensors in a batch of the loader differ in their first dimension, and the dimension of the first one "
            "counts as the number of samples, with which losses and metrics are weighted. Pass the dataset instead of "
            "the loader, or num_items where the loss is passed."
        )
    return numbers[0]
