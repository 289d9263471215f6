"""Custom data loaders in training states: saving and restoring their positions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset

from pa_checkpoint.torch_states import does_not_fit, refusals_explained
from pa_core import _accelerate
from pa_core._attributes import temporarily
from pa_core._tensors import supports_state_dict
from pa_core._torch import has_ended, has_iterator
from pa_core.data.custom_loader import (
    describe_loader,
    has_exact_state,
    innermost,
    is_dataloader,
    is_keyed,
)
from pa_core.errors import CheckpointError, StopTrainingError
from pa_core.training_state.run_state import SavedRun
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.types import SizedIterable, SupportsStateDict
from pa_core.user_warnings import print_once
from pa_data import loader_parts, move_to_device
from pa_data.rng import capture_rng_state, restore_rng_state
from pa_data.state_search import generators_of_loader


class CustomLoaderState:
    """The position of a custom training loader.

    Its batches are fetched one at a time, each after the batch before it was trained on. Between two updates, the
    loader and the RNG state therefore belong to the last batch that was trained on. A loader with a ``state_dict``
    resumes from its state; with any other loader, the batches of the epoch are fetched again from the first, with the
    same RNG state.

    Args:
        loader: The loader, without slices around it.
        device: The device that batches are moved to.

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
        self._loaded: Mapping[str, Any] | None = None
        self._reading: Iterator[Any] | None = None  # for a loader without workers, over a dataset with a state
        self._at_position: Iterator[Any] | None = None

    def batches(self) -> Iterator[Any]:
        """Iterate over the remaining batches of the epoch, on the device."""
        # Open the loader now, and not with the first batch, because a slice may not request a batch.
        arriving, self._at_position = self._at_position, None
        return self._on_device(arriving)

    def _on_device(self, arriving: Iterator[Any] | None) -> Iterator[Any]:
        for batch in self._open() if arriving is None else arriving:
            yield move_to_device(batch, self._device)

    def capture(self, *, mid_epoch: bool) -> dict[str, Any]:
        """Return the state of the loader for a training state.

        Args:
            mid_epoch: Whether training steps of the epoch may follow.
        """
        return {
            **_capture_between_epochs(self.loader),
            "state": self._state(),
            "epoch_start": self._epoch_start if mid_epoch else None,
            # The state of a dataset that was read to its end for the last batch may belong to the next epoch.
            **({"has_ended": True} if mid_epoch and has_ended(self._reading) else {}),
        }

    def describe_resumption(self, saved: Mapping[str, Any] | None, steps: int) -> str:
        """Describe how the loader will reach its position, and whether the samples are the same.

        Args:
            saved: The saved state of the loader; see ``resume_mid_epoch``.
            steps: The number of batches.
        """
        name = describe_loader(self.loader)
        if self._takes_over(saved):
            return f"The loader resumes from its own state: {name}."
        replayed = f"Fetching {steps} batch{'' if steps == 1 else 'es'} of {name} again, without training on them."
        if saved is None:
            return (
                f"{replayed} The saved run had a different loader, or shared samples differently: samples may occur "
                "twice or never."
            )
        return (
            f"{replayed} The next batches are the same as without the interruption if their order depends only on the "
            f"RNG state at the start of the epoch or on generators of the loader."
        )

    def resume_between_epochs(self, saved: Mapping[str, Any]) -> None:
        """Restore the loader to its state after an epoch; this may draw random numbers.

        Args:
            saved: The state, from ``capture``.
        """
        if self._takes_over(saved):
            self._load(saved)
            if self._iterates_to_load:
                # It loads its state only then, and begins the next epoch when it is iterated over again.
                iter(_accelerate.fetching_loader(self.loader))
        _restore_between_epochs(self.loader, saved)

    def resume_mid_epoch(self, saved: Mapping[str, Any] | None, steps: int, report: Callable[[int], object]) -> None:
        """Restore the loader to its position within an epoch; this may draw random numbers.

        Args:
            saved: The state, from ``capture``; None for a different loader, whose batches can only be counted.
            steps: The number of batches that were trained on.
            report: A function that is called with the number of batches skipped so far.

        Raises:
            CheckpointError: The loader has fewer batches.
        """
        if saved is not None and saved.get("epoch_start") is None:
            raise CheckpointError(
                "The training state does not contain the beginning of the loader's epoch.",
                given=describe_loader(self.loader),
                do="Use another state, for example the previous state.",
            )
        if saved is None or not self._takes_over(saved):
            self._replay(saved, steps, report)
        else:
            if saved.get("has_ended", False):
                self.resume_at_epoch_end(saved)
            else:
                self._open_from_state(saved)
            report(steps)
        if saved is not None:
            self._epoch_start = saved["epoch_start"]
            restore_generators(self.loader, saved["generators"])

    def resume_at_epoch_end(self, saved: Mapping[str, Any] | None) -> None:
        """Restore the loader to its state after the last batch of an epoch, without fetching batches.

        Args:
            saved: The saved state of the loader; see ``resume_mid_epoch``.
        """
        if saved is not None:
            self.resume_between_epochs(saved)
            self._epoch_start = saved.get("epoch_start")
        self._at_position = iter(())

    def _takes_over(self, saved: Mapping[str, Any] | None) -> bool:
        return saved is not None and saved.get("state") is not None and self._stateful is not None

    def _open_from_state(self, saved: Mapping[str, Any]) -> None:
        start = saved["epoch_start"]
        self._restore_start(start)
        self._load(saved)
        workers_are_older = start["has_workers"] and self._iterates_to_load
        with _preserving_worker_seeds(self.loader) if workers_are_older else nullcontext():
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
                    do="Create the loader from the same data as before, or begin a new run.",
                )
            report(number + 1)

    def _restore_start(self, start: Mapping[str, Any]) -> None:
        restore_generators(self.loader, start["generators"])
        restore_rng_state(start["streams"], self._device)

    def _open(self) -> Iterator[Any]:
        self._epoch_start = {**_capture_between_epochs(self.loader), "streams": capture_rng_state(self._device)}
        self._was_iterated = True
        batches: Iterator[Any] = iter(_accelerate.without_read_ahead(self.loader))
        self._reading = None if self._stateful is None or self._iterates_to_load else batches
        return batches

    def _load(self, saved: Mapping[str, Any]) -> None:
        where = f"a training state with a state of the loader {describe_loader(self.loader)}"
        with refusals_explained(partial(does_not_fit, self._stateful, where, ""), passing=(StopTrainingError,)):
            cast("SupportsStateDict", self._stateful).load_state_dict(saved["state"])
        self._loaded = saved["state"]

    def _state(self) -> Mapping[str, Any] | None:
        if self._stateful is None:
            return None
        if self._iterates_to_load and not self._was_iterated:
            return self._loaded  # reading its state now would start its workers
        return self._stateful.state_dict()


class RunLoaders:
    """The custom data loaders of a run; the position of a keyed loader follows from the number of samples.

    Args:
        device: The device that batches are moved to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_training: CustomLoaderState | None = None

    def custom_state(self, train_dl: object) -> CustomLoaderState | None:
        """Return the state of a custom training loader; None for a keyed loader.

        Args:
            train_dl: The loader, perhaps with slices around it.
        """
        loader = innermost(train_dl)
        if is_keyed(loader):
            return None
        if self._in_training is None or self._in_training.loader is not loader:
            self._in_training = CustomLoaderState(cast("SizedIterable", loader), self._device)
        return self._in_training

    def capture(self, run: ResumableRun, *, mid_epoch: bool) -> dict[str, Any]:
        """Return the states of the loaders of this process for a training state.

        Args:
            run: The run.
            mid_epoch: Whether training steps of the epoch may follow.
        """
        in_training = self.custom_state(run.train_dataloader)
        captured = {"training": None if in_training is None else in_training.capture(mid_epoch=mid_epoch)}
        for name, loader in _of_evaluation(run).items():
            if not is_keyed(innermost(loader)):
                captured[name] = _capture_between_epochs(innermost(loader))
        return captured

    def resume_between_epochs(self, run: ResumableRun, saved: SavedRun, settings: Mapping[str, Any]) -> None:
        """Restore the loaders to their states between two epochs; this may draw random numbers.

        Args:
            run: The run.
            saved: The saved run.
            settings: The settings of the current run.
        """
        in_training, state = self.custom_state(run.train_dataloader), saved.state_of_loader("training", settings)
        if in_training is not None and state is not None:
            in_training.resume_between_epochs(state)
        self._resume_evaluation(run, saved, settings)

    def resume_mid_epoch(
        self,
        run: ResumableRun,
        train_dl: object,
        saved: SavedRun,
        settings: Mapping[str, Any],
        *,
        steps: int,
        is_at_end: bool,
        report: Callable[[int], object],
    ) -> None:
        """Restore the loaders to their position within an epoch; this may draw random numbers.

        Args:
            run: The run.
            train_dl: The training loader of the epoch.
            saved: The saved run.
            settings: The settings of the current run.
            steps: The number of batches of the epoch that were trained on.
            is_at_end: Whether no batch is left to train on.
            report: A function that is called with the number of batches skipped so far.

        Raises:
            CheckpointError: The training loader has fewer batches.
        """
        self._resume_evaluation(run, saved, settings)
        in_training, state = self.custom_state(train_dl), saved.state_of_loader("training", settings)
        if in_training is None:
            report(steps)
        elif is_at_end:
            in_training.resume_at_epoch_end(state)
            report(steps)
        else:
            print_once(run, f"Resuming mid-epoch. {in_training.describe_resumption(state, steps)}")
            in_training.resume_mid_epoch(state, steps, report)

    def _resume_evaluation(self, run: ResumableRun, saved: SavedRun, settings: Mapping[str, Any]) -> None:
        for name, loader in _of_evaluation(run).items():
            state = saved.state_of_loader(name, settings)
            if state is not None:
                _restore_between_epochs(innermost(loader), state)


def _capture_between_epochs(loader: object) -> dict[str, Any]:
    """Return the state of a custom data loader between epochs, for training or evaluation.

    Args:
        loader: The loader, without slices around it.
    """
    fetching = _accelerate.fetching_loader(loader)
    has_workers = is_dataloader(fetching) and fetching.persistent_workers
    return {"generators": capture_generators(loader), "has_workers": has_workers and has_iterator(fetching)}


def _restore_between_epochs(loader: object, saved: Mapping[str, Any]) -> None:
    """Restore the result of ``_capture_between_epochs``; this may draw random numbers.

    Args:
        loader: The loader.
        saved: The captured state.
    """
    if saved["has_workers"]:
        _start_persistent_workers(loader)
    restore_generators(loader, saved["generators"])


def _start_persistent_workers(loader: object) -> None:
    """Let the loader draw the seed of its workers now, because epochs after the first do not draw a seed."""
    iter(_accelerate.fetching_loader(loader))


def _start_sampler(batches: Any) -> None:
    """Let a sampler draw its order now, from the RNG state at the start of the epoch, and not with the next batch.

    Without workers, torchdata skips the yielded indices of a sampler without a state only with the next batch.
    """
    if isinstance(getattr(batches, "_sampler_iter", None), islice):
        indices = iter(batches._index_sampler)
        for _ in range(batches._sampler_iter_yielded):
            next(indices)
        batches._sampler_iter = indices


def _preserving_worker_seeds(loader: object) -> AbstractContextManager[None]:
    """Draw the seed of workers from a separate generator if a loader starts them when it loads a state."""
    return temporarily(_accelerate.fetching_loader(loader), generator=torch.Generator())


def _with_state(loader: object) -> SupportsStateDict | None:
    """Return the object with the position in an epoch: the loader, or the iterable dataset that it reads."""
    fetching: Any = _accelerate.fetching_loader(loader)
    if _accelerate.is_dispatched(loader):
        return None
    if supports_state_dict(fetching):
        samplers = [part for path, part in loader_parts(fetching).items() if path.endswith("sampler")]
        return fetching if not _accelerate.is_of_torchdata(fetching) or all(map(_draws_late, samplers)) else None
    dataset: Any = getattr(fetching, "dataset", None)
    reads_here = is_dataloader(fetching) and fetching.num_workers == 0 and issubclass(type(dataset), IterableDataset)
    return dataset if reads_here and has_exact_state(dataset) else None


def _draws_late(sampler: Any) -> bool:
    """Whether ``iter(sampler)`` does not draw; torchdata calls it several times to load a state."""
    kind: Any = sampler.__class__
    is_known = kind.__module__.split(".")[0] in {"accelerate", "torch", "torchdata"}
    return is_known or supports_state_dict(sampler) or inspect.isgeneratorfunction(kind.__iter__)


def capture_generators(loader: object) -> dict[str, Any]:
    """Return the states of the generators that are attributes of a loader, its samplers or its dataset.

    It finds torch, NumPy and Python generators.

    Args:
        loader: A custom data loader.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(range(8), shuffle=True, generator=torch.Generator())
        >>> states = capture_generators(loader)
        >>> first = [int(sample) for sample in loader]
        >>> restore_generators(loader, states)
        >>> [int(sample) for sample in loader] == first
        True
    """
    return {found.place: found.generator_state for found in generators_of_loader(loader)}


def restore_generators(loader: object, states: Mapping[str, Any]) -> None:
    """Restore the states of generators; generators without a saved state do not change.

    Args:
        loader: A loader with the same attributes as the captured loader.
        states: The states, from ``capture_generators``.
    """
    for found in generators_of_loader(loader):
        if found.place in states:
            where = f"a training state with the generator {found.place} of {describe_loader(loader)}"
            with refusals_explained(partial(does_not_fit, loader, where, ""), passing=(StopTrainingError,)):
                found.set_generator_state(states[found.place])


def _of_evaluation(run: ResumableRun) -> dict[str, SizedIterable]:
    """Return the evaluation loaders of a run, by their names in a state."""
    if run.eval_dataloaders:
        return {f"evaluation of {name}": loader for name, loader in run.eval_dataloaders.items()}
    return {} if run.eval_dataloader is None else {"evaluation": run.eval_dataloader}


_END = object()
