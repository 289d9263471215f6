"""Saving and restoring the positions of the training and evaluation loaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from pa_core.data.custom_loader import innermost, is_keyed
from pa_core.training_state.custom_loader_state import (
    CustomLoaderState,
    capture_between_epochs,
    restore_between_epochs,
)
from pa_core.training_state.run_state import SavedRun
from pa_core.training_state.snapshotable import Snapshotable
from pa_core.types import SizedIterable

__all__ = ["RunLoaders"]


class RunLoaders:
    """The custom data loaders of a run; the position of a keyed one follows from the number of samples.

    Args:
        device: Where batches are moved.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_training: CustomLoaderState | None = None

    def custom_state(self, train_dl: object) -> CustomLoaderState | None:
        """Return the state of a custom training loader; None for a keyed one.

        Args:
            train_dl: The loader, perhaps with slices around it.
        """
        loader = innermost(train_dl)
        if is_keyed(loader):
            return None
        if self._in_training is None or self._in_training.loader is not loader:
            self._in_training = CustomLoaderState(cast("SizedIterable", loader), self._device)
        return self._in_training

    def capture(self, run: Snapshotable, *, mid_epoch: bool) -> dict[str, Any]:
        """Return what a training state holds of the loaders of this process.

        Args:
            run: The run.
            mid_epoch: Whether training steps of the epoch may follow.
        """
        in_training = self.custom_state(run.train_dataloader)
        captured = {"training": None if in_training is None else in_training.capture(mid_epoch=mid_epoch)}
        for name, loader in _of_evaluation(run).items():
            if not is_keyed(innermost(loader)):
                captured[name] = capture_between_epochs(innermost(loader))
        return captured

    def resume_between_epochs(self, run: Snapshotable, saved: SavedRun, settings: Mapping[str, Any]) -> None:
        """Restore the loaders to where they were between two epochs; this may draw random numbers.

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
        run: Snapshotable,
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
            is_at_end: Whether none is left to be trained on.
            report: Called with the number of batches skipped so far.

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
            run.print(f"Resuming mid-epoch. {in_training.describe_resumption(state, steps)}")
            in_training.resume_mid_epoch(state, steps, report)

    def _resume_evaluation(self, run: Snapshotable, saved: SavedRun, settings: Mapping[str, Any]) -> None:
        for name, loader in _of_evaluation(run).items():
            state = saved.state_of_loader(name, settings)
            if state is not None:
                restore_between_epochs(innermost(loader), state)


def _of_evaluation(run: Snapshotable) -> dict[str, SizedIterable]:
    """The evaluation loaders of a run, under their names in a state."""
    if run.eval_dataloaders:
        return {f"evaluation of {name}": loader for name, loader in run.eval_dataloaders.items()}
    return {} if run.eval_dataloader is None else {"evaluation": run.eval_dataloader}
