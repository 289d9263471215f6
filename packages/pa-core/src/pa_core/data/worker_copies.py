"""Detecting changes to a dataset that persistent workers have copied."""

from __future__ import annotations

from typing import Any, cast
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from pa_core import _accelerate
from pa_core.data.custom_loader import is_dataloader
from pa_core.user_warnings import warn_user
from pa_data.state_search import Snapshot

_MOST_NAMED = 3


class WorkerCopies:
    """Compares datasets with the copies in the workers of their loaders, and warns once for each loader."""

    def __init__(self) -> None:
        self._started: WeakKeyDictionary[DataLoader[Any], Snapshot | None] = WeakKeyDictionary()

    def compare(self, loader: object) -> None:
        """Compare the dataset of a loader before an epoch; its workers start with the first epoch.

        Args:
            loader: A custom loader, split by accelerate or not.
        """
        own = _accelerate.fetching_loader(loader)
        if not is_dataloader(own) or not own.persistent_workers:
            return
        if own not in self._started:
            self._started[own] = Snapshot(_copied(own))
            return
        started = self._started[own]
        if started is None or not (changed := started.changed(Snapshot(_copied(own)))):
            return
        self._started[own] = None
        more = ", ..." if len(changed) > _MOST_NAMED else ""
        warn_user(
            f"The workers of a DataLoader have copies of {type(cast('Any', own).dataset).__name__} from when they "
            f"started, and it has changed since then: {', '.join(changed[:_MOST_NAMED])}{more}. Pass "
            "persistent_workers=False to the DataLoader, or pass the dataset instead of a DataLoader: the trainer then "
            "starts new workers after a change."
        )


def _copied(loader: Any) -> dict[str, object]:
    """Return the objects that are copied to workers; the object of a method may be, for example, the trainer."""
    collate_fn: object = loader.collate_fn
    of_all: dict[str, object] = {"dataset": loader.dataset}
    return of_all if hasattr(collate_fn, "__self__") else {**of_all, "collate_fn": collate_fn}
