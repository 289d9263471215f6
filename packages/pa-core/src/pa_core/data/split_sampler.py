"""Custom data loaders on several processes: split by their sampler already, or still to be split."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from pa_core.data.batch_count import require_same_lengths
from pa_core.data.custom_loader import describe_loader, length_of_dataset, loader_parts
from pa_core.distributed import gather_objects
from pa_core.errors import ConfigurationError
from pa_core.user_warnings import warn_user

__all__ = ["check_share", "split_sampler", "warn_of_filling_up", "warn_of_repeated_samples"]


def split_sampler(loader: object) -> Any | None:
    """Return the sampler that gives this process its share of the samples; None where nothing is split yet.

    It is known by its attributes ``num_replicas`` and ``rank``, which samplers of many libraries have in common with
    torch's ``DistributedSampler``.

    Args:
        loader: A custom data loader.

    Example:
        >>> from torch.utils.data import DataLoader, DistributedSampler
        >>> sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
        >>> split_sampler(DataLoader(range(8), sampler=sampler)) is sampler
        True
        >>> split_sampler(DataLoader(range(8))) is None
        True
    """
    for path, part in loader_parts(loader).items():
        is_split = all(isinstance(getattr(part, name, None), int) for name in ("num_replicas", "rank"))
        if path.endswith("sampler") and is_split:
            return part
    return None


def check_share(loader: Any, sampler: Any, *, rank: int, num_processes: int) -> None:
    """Raise an error for the share of another process, and for unequal shares; every process must call this.

    Args:
        loader: The loader.
        sampler: What ``split_sampler`` returned.
        rank: The rank of this process.
        num_processes: The number of processes.

    Raises:
        ConfigurationError: The sampler is made for other processes, or some process has more batches than another.
    """
    name = type(sampler).__name__
    if (sampler.num_replicas, sampler.rank) != (num_processes, rank):
        raise ConfigurationError(
            f"{name} splits the samples for a different set of processes than this run has.",
            given=f"{name} with num_replicas={sampler.num_replicas} and rank={sampler.rank} on process {rank}",
            expected=f"num_replicas={num_processes}, and on each process its own rank",
            do="Create the sampler after the trainer, and leave num_replicas and rank out."
            if num_processes > 1
            else "Leave the sampler out, or start the script with torchrun or accelerate launch.",
        )
    if num_processes == 1:
        return
    require_same_lengths(gather_objects(len(loader)))


def warn_of_repeated_samples(loader: object, sampler: Any) -> None:
    """Say so where the shares of all processes together hold more samples than the dataset.

    Args:
        loader: The loader.
        sampler: What ``split_sampler`` returned.
    """
    of_all, of_dataset = len(sampler) * sampler.num_replicas, length_of_dataset(loader)
    if of_dataset is not None and of_all > of_dataset:
        warn_user(
            f"{type(sampler).__name__} yields {of_all} samples on all processes together, of a dataset of "
            f"{of_dataset}: losses and metrics of an epoch count some of them twice. Leave the sampler out to have "
            "each sample counted once, or pass drop_last=True to it."
        )


def warn_of_filling_up(loader: DataLoader[Any]) -> None:
    """Say that accelerate splits a loader, and what it does where the processes would not get equally many samples.

    Args:
        loader: A loader that nothing has split yet.
    """
    if isinstance(loader.dataset, IterableDataset):
        what = f"{type(loader.dataset).__name__}, an IterableDataset,"
        instead = (
            "To have each sample counted once, use a dataset with __len__ and __getitem__, or let each process read "
            "its own share: a dataset with the attributes rank and num_replicas, or split_dataset_by_node of "
            "Hugging Face, is used as it is."
        )
    else:
        what = f"A custom loader or sampler ({describe_loader(loader)})"
        instead = "Let the trainer create the loader, without a sampler, to have each sample counted once."
    warn_user(
        f"{what} is split over the processes by accelerate, which repeats samples where the processes would not get "
        f"equally many. Losses and metrics of an epoch may count those twice. {instead}"
    )
