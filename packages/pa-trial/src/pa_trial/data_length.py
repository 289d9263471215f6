"""The number of records of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from torch import Tensor

from pa_trial.errors import ArgumentTypeError, ConfigurationError


def data_length(data: Any) -> int:
    """Return the number of records of a batch.

    ``PyTorchTrial.get_batch_length`` calls it unless you override that method; call it in your override for the batches
    that it can count. A record is a sample.

    Args:
        data: A tensor or an array, whose length along the first dimension is returned; or a dict, a list or a tuple,
            whose first value is used.

    Returns:
        The number of records.

    Raises:
        ConfigurationError: A dict, a list or a tuple is empty. The error is also a ``ValueError``.
        ArgumentTypeError: The batch, or its first value, has no length, or has a different type. The error is also a
            ``TypeError``.

    Example:
        >>> import torch
        >>> from pa_trial import data_length
        >>> data_length({"image": torch.zeros(8, 3), "label": torch.zeros(8)})
        8
    """
    kind, value = type(data).__name__, cast("object", data)
    first: Any = data if isinstance(value, Tensor | np.ndarray) else 0
    if isinstance(value, Mapping | list | tuple):
        items: list[Any] = list(data.values()) if isinstance(value, Mapping) else data
        if not items:
            problem = f"An empty batch has no number of records: {kind} without a value."
            do = "Check the collate_fn of the data loader, or override get_batch_length."
            raise ConfigurationError(problem, do=do)
        first = items[0]
    try:
        return len(first)
    except TypeError as error:
        problem = f"The records of a batch of type {kind} cannot be counted."
        do = "Override get_batch_length, and return the number of records of such a batch."
        raise ArgumentTypeError(problem, do=do) from error
