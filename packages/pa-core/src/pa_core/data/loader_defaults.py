"""Defaults of a loader, sized to the machine and the data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from pa_core.data.fetching import is_in_memory
from pa_core.data.workers import start_method

__all__ = [
    "MAX_DEFAULT_WORKERS",
    "default_loader_options",
    "default_num_workers",
    "describe_missing_workers",
    "workers_if_forked",
]

MAX_DEFAULT_WORKERS = 16
"""More worker processes are started only when asked for: each costs memory and start-up time."""


def default_num_workers(dataset: Dataset[Any], local_processes: int) -> int:
    """Return how many worker processes a loader gets when nobody says.

    The cores that this process may use (its affinity, not the size of the machine) are shared between the
    processes that train on this machine. Data that is in memory already gets none: sending it from another
    process costs more than indexing it. An iterable dataset gets at most one: unless it was written for several,
    each of them would yield all of its samples. Where processes are not forked (on macOS and Windows, and from Python
    3.14 on), there are none: a worker would need a script with a main guard, and a dataset that can be sent to it.

    Args:
        dataset: The dataset to load.
        local_processes: The number of training processes on this machine, at least 1.

    Returns:
        A number from 0 to `MAX_DEFAULT_WORKERS`.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> default_num_workers(TensorDataset(torch.zeros(10, 3)), local_processes=1)
        0
    """
    return workers_if_forked(dataset, local_processes) if start_method() == "fork" else 0


def workers_if_forked(dataset: Dataset[Any], local_processes: int) -> int:
    """Return as `default_num_workers` how many processes would be started where they are forked."""
    if is_in_memory(dataset):
        return 0
    most = 1 if isinstance(dataset, IterableDataset) else MAX_DEFAULT_WORKERS
    return min(most, _usable_cores() // local_processes)


def default_loader_options(
    dataset: Dataset[Any], local_processes: int, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Complete the options of a loader: whatever is given wins, and the rest fits it.

    Args:
        dataset: The dataset to load.
        local_processes: The number of training processes on this machine.
        given: Options that somebody chose.

    Returns:
        ``given``, with ``num_workers`` as `default_num_workers` says, ``persistent_workers`` wherever there
        are workers (starting them again for each epoch costs seconds) and ``pin_memory`` where there is CUDA.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> options = default_loader_options(TensorDataset(torch.zeros(10, 3)), 1, {"pin_memory": False})
        >>> options == {"num_workers": 0, "persistent_workers": False, "pin_memory": False}
        True
    """
    options: dict[str, Any] = dict(given or {})
    if "num_workers" not in options:
        options["num_workers"] = default_num_workers(dataset, local_processes)
    options.setdefault("persistent_workers", options["num_workers"] > 0)
    if "pin_memory" not in options:
        options["pin_memory"] = torch.cuda.is_available()
    return options


def describe_missing_workers(dataset: Dataset[Any], local_processes: int) -> str | None:
    """Return a line about the workers that a loader does not get, as processes are not forked; None if it gets them."""
    number = workers_if_forked(dataset, local_processes)
    if number == 0 or start_method() == "fork":
        return None
    return (
        f"Loading {type(dataset).__name__} without workers: processes are started by {start_method()!r} here. To load "
        f'with workers, put the run under if __name__ == "__main__": and pass num_workers={number} to the loader.'
    )


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
