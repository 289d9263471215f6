"""Limits on the batches of an epoch: the first batches of a loader, and the environment variable that limits them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from pa_core.errors import ConfigurationError
from pa_core.run_config import check_count
from pa_core.types import SizedIterable

_BatchT_co = TypeVar("_BatchT_co", covariant=True, default=Any)

BATCH_LIMIT_VARIABLE = "PT_ACC_LIMIT_BATCHES"


class DataLoaderSlice(Generic[_BatchT_co]):
    """A loader that ends after the first batches of another loader, in each epoch.

    Use it to limit a loader that you pass or return yourself, for example in ``create_train_dataloader``.
    ``LimitBatches`` limits a whole script, and ``LimitBatchesCallback`` limits a trainer. Each iteration starts a new
    epoch of the wrapped loader, and fetches no batches beyond the limit except those that its workers prefetch.

    Args:
        dl: Any iterable of batches that has a length, for example a ``DataLoader``.
        slice_size: The number of batches in an epoch, at least 1; a shorter loader is iterated to its end.

    Attributes:
        wrapped: The loader that was passed as ``dl``. Other attributes, for example ``dataset`` or ``batch_size``, are
            read from it.
        slice_size: The number of batches that was passed.

    Raises:
        ConfigurationError: ``slice_size`` is not a whole number of at least 1.

    Example:
        >>> from pa_core.data import DataLoaderSlice
        >>> first_two = DataLoaderSlice(["a", "b", "c"], slice_size=2)
        >>> len(first_two), list(first_two)
        (2, ['a', 'b'])
    """

    def __init__(self, dl: SizedIterable[_BatchT_co], slice_size: int) -> None:
        check_count("slice_size", slice_size)
        self.wrapped: SizedIterable[_BatchT_co] = dl
        self.slice_size: int = slice_size

    def __len__(self) -> int:
        """Return the number of batches that an iteration yields."""
        return min(self.slice_size, len(self.wrapped))

    def __iter__(self) -> Iterator[_BatchT_co]:
        """Iterate the loader, and stop after ``slice_size`` batches."""
        return islice(iter(self.wrapped), self.slice_size)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader."""
        if name == "wrapped":  # not set yet: the slice is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.wrapped, name)


class LimitBatches:
    """Limits every training and evaluation epoch of the trainers that are created within a ``with`` block.

    Use it to try out a function or a script that creates its trainer itself, without changing the code. If you create
    the trainer, pass it ``LimitBatchesCallback`` instead. A trainer that is created within the block gets a
    ``LimitBatchesCallback``, which also limits its runs after the block. A trainer that was created earlier is limited
    only in runs that start within the block, and a warning is given.

    The block sets the environment variable ``PT_ACC_LIMIT_BATCHES``, which processes started within it inherit, and
    restores its former value. Setting the variable yourself, as in ``PT_ACC_LIMIT_BATCHES=3 python train.py``, limits
    all trainers of the script.

    Args:
        num_batches: The number of batches of each process in an epoch, at least 1.

    Attributes:
        num_batches: The ``num_batches`` argument.

    Raises:
        ConfigurationError: ``num_batches`` is not a positive whole number.

    Example:
        >>> import torch
        >>> from pa_core import LimitBatches, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(80, 1), torch.ones(80, 1))
        >>> with LimitBatches(3):
        ...     trainer = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[])
        >>> trainer.train(samples, num_epochs=1, per_device_batch_size=8)
        >>> trainer.num_updates_completed
        3
    """

    def __init__(self, num_batches: int) -> None:
        check_count("num_batches", num_batches)
        self.num_batches = num_batches
        self._before: list[str | None] = []

    def __enter__(self) -> Self:
        self._before.append(os.environ.get(BATCH_LIMIT_VARIABLE))
        os.environ[BATCH_LIMIT_VARIABLE] = str(self.num_batches)
        return self

    def __exit__(self, *exc_info: BaseException | type[BaseException] | TracebackType | None) -> None:
        before = self._before.pop()
        if before is None:
            os.environ.pop(BATCH_LIMIT_VARIABLE, None)
        else:
            os.environ[BATCH_LIMIT_VARIABLE] = before


def batch_limit_from_environment() -> int | None:
    """Return the number of batches that ``PT_ACC_LIMIT_BATCHES`` limits an epoch to; None if it is not set.

    Raises:
        ConfigurationError: The variable is not a positive whole number.

    Example:
        >>> batch_limit_from_environment() is None
        True
    """
    text = os.environ.get(BATCH_LIMIT_VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigurationError(
            f"{BATCH_LIMIT_VARIABLE} must be a whole number of at least 1, or unset, got {text!r}."
        )
    return int(text)
