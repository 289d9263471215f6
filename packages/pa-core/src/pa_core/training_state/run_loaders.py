"""The two loaders of a run, as a training state sees them: where they stand, and how they come to stand there again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from pa_core.data.custom_loader import innermost, is_keyed
from pa_core.training_state.content import SavedRun
from pa_core.training_state.snapshotable import Snapshotable
from pa_core.training_state.users_loader import UsersLoader, capture_between_epochs, restore_between_epochs
from pa_core.types import SizedIterable

__all__ = ["RunLoaders"]


class RunLoaders:
    """What a run knows of its loaders whose order is the user's own; of keyed ones, a position says everything.

    Args:
        device: Where batches are moved.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_training: UsersLoader | None = None

    def of_users_own(self, train_dl: object) -> UsersLoader | None:
        """Return what is known of a training loader; None if its order is the trainer's.

        Args:
            train_dl: The loader, perhaps with slices around it.
        """
        loader = innermost(train_dl)
        if is_keyed(loader):
            return None
        if self._in_training is None or self._in_training.loader is not loader:
            self._in_training = UsersLoader(cast("SizedIterable", loader), self._device)
        return self._in_training

    def capture(self, run: Snapshotable, *, in_mid_epoch: bool) -> dict[str, Any]:
        """Return what a training state holds of the loaders of this process.

        Args:
            run: The run.
            in_mid_epoch: Whether training steps of the epoch may follow.
        """
        in_training = self.of_users_own(run.train_dataloader)
        captured = {"training": None if in_training is None else in_training.capture(in_mid_epoch=in_mid_epoch)}
        in_evaluation = innermost(run.eval_dataloader)
        if not (run.eval_dataloader is None or is_keyed(in_evaluation)):
            captured["evaluation"] = capture_between_epochs(in_evaluation)
        return captured

    def go_on_between_epochs(self, run: Snapshotable, saved: SavedRun, settings: Mapping[str, Any]) -> None:
        """Bring the loaders to where they were between two epochs; this draws from the random streams.

        Args:
            run: The run.
            saved: The run that goes on.
            settings: Those that it goes on with.
        """
        in_training, state = self.of_users_own(run.train_dataloader), saved.state_of_loader("training", settings)
        if in_training is not None and state is not None:
            in_training.go_on_between_epochs(state)
        self._go_on_in_evaluation(run, saved, settings)

    def go_on_in_mid_epoch(
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
        """Bring the loaders to their place in an epoch, if any of it is left; this draws from the random streams.

        Args:
            run: The run.
            train_dl: The training loader of the epoch.
            saved: The run that goes on.
            settings: Those that it goes on with.
            steps: The number of batches of the epoch that were trained on.
            is_at_end: Whether none is left to be trained on.
            report: Called with the number of batches that lie behind.

        Raises:
            CheckpointError: The training loader has fewer batches.
        """
        self._go_on_in_evaluation(run, saved, settings)
        in_training, state = self.of_users_own(train_dl), saved.state_of_loader("training", settings)
        if in_training is None:
            report(steps)
        elif is_at_end:
            in_training.go_on_at_the_end(state)
            report(steps)
        else:
            run.print(f"Going on in mid-epoch. {in_training.describe_way(state, steps)}")
            in_training.go_on_in_mid_epoch(state, steps, report)

    def _go_on_in_evaluation(self, run: Snapshotable, saved: SavedRun, settings: Mapping[str, Any]) -> None:
        state = saved.state_of_loader("evaluation", settings)
        if state is not None:
            restore_between_epochs(innermost(run.eval_dataloader), state)
