"""The checks of a keyed loader, made before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from pa_data._fetching import can_fetch_batch
from pa_data._split import Split
from pa_data.errors import ConfigurationError, EmptyDatasetError
from pa_data.orders import EpochOrder, Order
from pa_data.orders._checks import check_count
from pa_data.orders._given import check_order as require_order

__all__ = [
    "check_batch_size",
    "check_batches_of_order",
    "check_epoch",
    "check_length",
    "check_options",
    "check_order",
    "count_samples",
    "decide_whole_batches",
    "refuse_batch_ends",
    "require_batch_ends",
]


def count_samples(dataset: Dataset[Any]) -> int:
    """Return the length of a dataset that a keyed order can be made for.

    Raises:
        ConfigurationError: If the dataset is iterable only, or has no length.
        EmptyDatasetError: If there is no sample.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise _without_positions(f"a dataset of type {kind}, which is an IterableDataset")
    try:
        num_samples = len(cast("Sized", dataset))
    except (TypeError, NotImplementedError) as error:
        raise _without_positions(f"a dataset of type {kind}: {error}") from error
    if num_samples == 0:
        raise EmptyDatasetError(
            "The dataset is empty.",
            given=f"a dataset of type {kind} with 0 samples",
            expected="at least one sample",
            do="Look at how the dataset was made; a wrong path and a filter that keeps nothing are common.",
        )
    return num_samples


def _without_positions(given: str) -> ConfigurationError:
    return ConfigurationError(
        "A keyed order needs a dataset with a length, whose samples are indexed by integers.",
        given=given,
        do="Give the dataset __len__ and __getitem__, or load it with a plain torch.utils.data.DataLoader.",
    )


def check_batch_size(batch_size: int | None) -> int:
    """Return the batch size, which torch would allow to be None.

    Raises:
        ConfigurationError: If it is None or less than 1.
    """
    check_count("batch_size", batch_size)
    return cast("int", batch_size)


def check_batches_of_order(order: Order, batch_size: int | None, drop_last: bool, split: str) -> None:
    """Raise an error for options that have no effect, or no meaning, with an order that makes the batches.

    Raises:
        ConfigurationError: If there is one.
    """
    kind = type(order).__name__
    if batch_size not in (None, 1):
        raise ConfigurationError(
            "batch_size has no effect with an order that makes the batches.",
            given=f"batch_size={batch_size}, and order={kind}",
            do=f"Leave batch_size out, and give {kind} what it makes its batches by.",
        )
    if drop_last:
        raise ConfigurationError(f"An order of batches drops none: leave out drop_last=True with order={kind}.")
    if split != "train":
        raise ConfigurationError(
            f'An evaluation goes in the order of the dataset, got split="{split}", and order={kind}.',
            do="Leave the order out, and pass a batch_size.",
        )


def check_options(rank: int, num_processes: int, num_workers: int, timeout: float, in_order: bool) -> None:
    """Raise an error for options that contradict each other or the promise of an order.

    Raises:
        ConfigurationError: If one does.
    """
    if not 0 <= rank < num_processes:
        raise ConfigurationError(f"A rank is from 0 to num_processes - 1, got {rank=}, {num_processes=}.")
    if timeout > 0 and num_workers == 0:
        raise ConfigurationError(f"A timeout is for workers: leave out {timeout=}, or pass num_workers.")
    if not in_order:
        raise ConfigurationError("A keyed loader yields its batches in order: leave out in_order=False.")


def check_order(order: Order | None, algorithm: str | None) -> None:
    """Raise an error for anything that is not an order, and for an order passed with the name of a different one.

    Raises:
        ArgumentTypeError: If it is not an order.
        ConfigurationError: If there is an algorithm, too.
    """
    require_order(order)
    if order is not None and algorithm is not None:
        raise ConfigurationError(
            "Two orders were passed.",
            given=f"order={type(order).__name__}(...), algorithm={algorithm!r}",
            do=f"Leave the order out, or pass order=Shuffled({algorithm!r}).",
        )


def require_batch_ends(order: EpochOrder) -> Tensor:
    """Return where the batches of an epoch end, of which its order makes the batches.

    Raises:
        ConfigurationError: If it does not say.
    """
    ends = order.batch_ends
    if ends is None or ends.dtype != torch.int64 or ends.numel() == 0 or int(ends[-1]) != order.num_samples:
        raise ConfigurationError(
            f"makes_batches=True needs batch_ends, int64 and ending with {order.num_samples}, got {ends}.",
            do=f"Return the positions after the last sample of each batch from {type(order).__name__}.batch_ends.",
        )
    return ends


def refuse_batch_ends(order: EpochOrder) -> None:
    """Raise an error for an epoch that says where its batches end, of an order that does not say that it makes them.

    Raises:
        ConfigurationError: If it does.
    """
    if order.batch_ends is not None:
        raise ConfigurationError(
            "An order says where its batches end, and not that it makes them.",
            do=f"Set makes_batches = True in {type(order).__name__}.",
        )


def check_epoch(split: Split, epoch: int = 0) -> None:
    """Raise an error for a split of a whole epoch that has no step.

    Args:
        split: The split.
        epoch: The number of the epoch.

    Raises:
        EmptyDatasetError: If there is none.
    """
    if split.num_samples == 0:
        problem = f"The order of the data has an epoch without samples: 0 samples in epoch {epoch}, counted from 0."
        raise EmptyDatasetError(
            problem, do="Let the order visit some samples in this epoch, or train for fewer epochs."
        )
    if len(split) == 0:
        global_batch = split.batch_size * split.num_processes
        raise EmptyDatasetError(
            "drop_last leaves nothing of this dataset.",
            given=f"{split.num_samples} samples, and global batches of {global_batch} "
            f"(batch_size={split.batch_size} on {split.num_processes} processes)",
            do="Choose a smaller batch size, or keep the last incomplete batch with drop_last=False.",
        )


def check_length(dataset: Dataset[Any], num_samples: int) -> None:
    """Raise an error if the dataset has become longer or shorter.

    Args:
        dataset: The dataset.
        num_samples: Its length when its loader was made.

    Raises:
        ConfigurationError: It has another length now.
    """
    now = count_samples(dataset)
    if now != num_samples:
        raise ConfigurationError(
            "The dataset has another length than when its loader was made.",
            given=f"{now} samples of {type(dataset).__name__}",
            expected=f"{num_samples} samples, by which the order and the number of steps were planned",
            do="Change a dataset between two runs, not within one: each run makes new loaders.",
        )


def decide_whole_batches(
    dataset: Dataset[Any], collate_fn: Callable[[list[Any]], Any] | None, asked_for: bool | None
) -> bool:
    """Return whether batches are fetched whole.

    Raises:
        ConfigurationError: If that was insisted on and is not possible.
    """
    possible = collate_fn is None and can_fetch_batch(dataset)
    if asked_for is None:
        return possible
    if asked_for and not possible:
        raise ConfigurationError(
            "Only tensors in memory and datasets with fetch_batch are fetched whole, and without collate_fn.",
            given=f"whole_batches=True, a dataset of type {type(dataset).__name__}, and collate_fn={collate_fn}",
            do="Give the dataset a method fetch_batch, leave collate_fn out, or leave whole_batches out.",
        )
    return asked_for
