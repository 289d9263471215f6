"""Training loaders whose order is the user's own: what a training state holds of them, and how a run goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset

from pa_core import _accelerate
from pa_core.data import move_to_device
from pa_core.data.custom_loader import describe_loader, is_dataloader, loader_parts
from pa_core.errors import CheckpointError
from pa_core.rng import capture_streams, restore_streams
from pa_core.state_dicts import supports_state_dict
from pa_core.training_state.generators import capture_generators, restore_generators
from pa_core.types import SizedIterable, SupportsStateDict

__all__ = ["UsersLoader", "capture_between_epochs", "restore_between_epochs"]


class UsersLoader:
    """The training loader of a run whose order is the user's own.

    Its batches are fetched one at a time, and none is fetched before the one before it was trained on. Between two
    updates, loader and random streams therefore stand where the training does. A loader with a state goes on from it;
    of any other, the batches of the epoch are fetched again from the first one on, from the same random streams.

    Args:
        loader: The loader, without slices around it.
        device: Where batches are moved.

    Attributes:
        loader: The loader.
    """

    def __init__(self, loader: SizedIterable[Any], device: torch.device) -> None:
        self.loader = loader
        self._device = device
        self._stateful = _with_state(loader)
        self._iterates_to_load = is_dataloader(self._stateful)
        self._was_iterated = False
        self._epoch_start: dict[str, Any] | None = None
        self._put_back: Mapping[str, Any] | None = None
        self._at_position: Iterator[Any] | None = None

    def batches(self) -> Iterator[Any]:
        """Iterate over what is left of the epoch, on the device."""
        # Now, and not with the first batch: where a slice leaves none, nobody asks for it.
        arriving, self._at_position = self._at_position, None
        return self._on_device(arriving)

    def _on_device(self, arriving: Iterator[Any] | None) -> Iterator[Any]:
        for batch in self._open() if arriving is None else arriving:
            yield move_to_device(batch, self._device)

    def capture(self, *, in_mid_epoch: bool) -> dict[str, Any]:
        """Return what a training state holds of the loader.

        Args:
            in_mid_epoch: Whether training steps of the epoch may follow.
        """
        return {
            **capture_between_epochs(self.loader),
            "state": self._state(),
            "epoch_start": self._epoch_start if in_mid_epoch else None,
        }

    def describe_way(self, saved: Mapping[str, Any] | None, steps: int) -> str:
        """Return how the loader will come to its position, and what that promises.

        Args:
            saved: As for ``go_on_in_mid_epoch``.
            steps: The number of batches.
        """
        name = describe_loader(self.loader)
        if self._takes_over(saved):
            return f"The loader has a state, from which it goes on: {name}."
        replayed = f"Fetching {steps} batch{'' if steps == 1 else 'es'} of {name} again, without training on them."
        if saved is None:
            return f"{replayed} They are those of another loader, or shared otherwise: samples may come twice or never."
        return (
            f"{replayed} What follows is what would have followed, if their order depends only on the random streams "
            "at the start of the epoch or on generators of the loader's own."
        )

    def go_on_between_epochs(self, saved: Mapping[str, Any]) -> None:
        """Put the loader back to where it was after an epoch; this draws from the random streams.

        Args:
            saved: What ``capture`` returned.
        """
        if self._takes_over(saved):
            self._load(saved)
            if self._iterates_to_load:
                # It takes over its state only then, and begins the next epoch when it is iterated again.
                iter(_accelerate.fetching_loader(self.loader))
        restore_between_epochs(self.loader, saved)

    def go_on_in_mid_epoch(self, saved: Mapping[str, Any] | None, steps: int, report: Callable[[int], object]) -> None:
        """Put the loader back to its position within an epoch; this draws from the random streams.

        Args:
            saved: What ``capture`` returned; None for another loader, of which only batches can be counted.
            steps: The number of batches that were trained on.
            report: Called with the number of batches that lie behind.

        Raises:
            CheckpointError: The loader has fewer batches.
        """
        if saved is not None and self._takes_over(saved):
            self._open_from_state(saved)
            report(steps)
        else:
            self._replay(saved, steps, report)
        if saved is not None:
            self._epoch_start = saved["epoch_start"]
            restore_generators(self.loader, saved["generators"])

    def go_on_at_the_end(self, saved: Mapping[str, Any] | None) -> None:
        """Put the loader back to where it was when the last batch of an epoch was trained on; fetch nothing.

        Args:
            saved: As for ``go_on_in_mid_epoch``.
        """
        if saved is not None:
            self.go_on_between_epochs(saved)
            self._epoch_start = saved["epoch_start"]
        self._at_position = iter(())

    def _takes_over(self, saved: Mapping[str, Any] | None) -> bool:
        return saved is not None and saved["state"] is not None and self._stateful is not None

    def _open_from_state(self, saved: Mapping[str, Any]) -> None:
        start = saved["epoch_start"]
        self._restore_start(start)
        self._load(saved)
        workers_are_older = start["has_workers"] and self._iterates_to_load
        with _seeding_workers_aside(self.loader) if workers_are_older else nullcontext():
            self._at_position = self._open()
        _start_sampler(self._at_position)

    def _replay(self, saved: Mapping[str, Any] | None, steps: int, report: Callable[[int], object]) -> None:
        if saved is not None:
            if saved["epoch_start"]["has_workers"]:
                _start_persistent_workers(self.loader)
            self._restore_start(saved["epoch_start"])
        self._at_position = self._open()
        for number in range(steps):
            if next(self._at_position, _END) is _END:
                raise CheckpointError(
                    "The loader has fewer batches than were trained on before the interruption.",
                    given=f"{number} batches of {describe_loader(self.loader)}",
                    expected=f"at least {steps}",
                    do="Make the loader of the same data as before, or begin a new run.",
                )
            report(number + 1)

    def _restore_start(self, start: Mapping[str, Any]) -> None:
        restore_generators(self.loader, start["generators"])
        restore_streams(start["streams"], self._device)

    def _open(self) -> Iterator[Any]:
        self._epoch_start = {**capture_between_epochs(self.loader), "streams": capture_streams(self._device)}
        self._was_iterated = True
        return iter(_accelerate.without_read_ahead(self.loader))

    def _load(self, saved: Mapping[str, Any]) -> None:
        cast("SupportsStateDict", self._stateful).load_state_dict(saved["state"])
        self._put_back = saved["state"]

    def _state(self) -> Mapping[str, Any] | None:
        if self._stateful is None:
            return None
        if self._iterates_to_load and not self._was_iterated:
            return self._put_back  # asked for its state now, it would start its workers
        return self._stateful.state_dict()


def capture_between_epochs(loader: object) -> dict[str, Any]:
    """Return what outlives an epoch of a loader of the user's own, for training or evaluation.

    Args:
        loader: The loader, without slices around it.
    """
    fetching = _accelerate.fetching_loader(loader)
    has_workers = is_dataloader(fetching) and fetching.persistent_workers
    return {
        "generators": capture_generators(loader),
        "has_workers": has_workers and getattr(fetching, "_iterator", None) is not None,
    }


def restore_between_epochs(loader: object, saved: Mapping[str, Any]) -> None:
    """Put back what ``capture_between_epochs`` returned; this draws from the random streams.

    Args:
        loader: The loader.
        saved: What was captured.
    """
    if saved["has_workers"]:
        _start_persistent_workers(loader)
    restore_generators(loader, saved["generators"])


def _start_persistent_workers(loader: object) -> None:
    """Have the seed of the workers drawn now: epochs after their first one do without, and draw nothing for it."""
    iter(_accelerate.fetching_loader(loader))


def _start_sampler(batches: Any) -> None:
    """Have a sampler draw its order now, from the streams of the start of the epoch, and not with the next batch.

    Without workers, torchdata passes over what a sampler without a state has yielded only when the next batch is
    asked for.
    """
    if isinstance(getattr(batches, "_sampler_iter", None), islice):
        indices = iter(batches._index_sampler)
        for _ in range(batches._sampler_iter_yielded):
            next(indices)
        batches._sampler_iter = indices


@contextmanager
def _seeding_workers_aside(loader: object) -> Generator[None]:
    """As above, for a loader that starts its workers only when it takes over a state: draw their seed elsewhere."""
    fetching = _accelerate.fetching_loader(loader)
    before, fetching.generator = fetching.generator, torch.Generator()
    try:
        yield
    finally:
        fetching.generator = before


def _with_state(loader: object) -> SupportsStateDict | None:
    """What knows the position in an epoch: the loader, or the iterable dataset that it reads in this process."""
    fetching: Any = _accelerate.fetching_loader(loader)
    if _accelerate.is_dispatched(loader):
        return None
    if supports_state_dict(fetching):
        is_exact = not _accelerate.is_of_torchdata(fetching) or all(map(_draws_late, _samplers(fetching)))
        return fetching if is_exact else None
    if is_dataloader(fetching) and fetching.num_workers == 0 and isinstance(fetching.dataset, IterableDataset):
        return fetching.dataset if supports_state_dict(fetching.dataset) else None
    return None


def _samplers(loader: object) -> list[Any]:
    return [part for path, part in loader_parts(loader).items() if path.endswith("sampler")]


def _draws_late(sampler: Any) -> bool:
    """Whether nothing is drawn by ``iter(sampler)`` alone, which torchdata calls several times to take over a state."""
    kind: Any = sampler.__class__
    is_known = kind.__module__.split(".")[0] in {"accelerate", "torch", "torchdata"}
    return is_known or supports_state_dict(sampler) or inspect.isgeneratorfunction(kind.__iter__)


_END = object()
