"""The beginning of a run: its first epoch, or the position of a saved run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from pa_checkpoint import RemoteFolder
from pa_core import distributed
from pa_core.data.custom_loader import innermost, is_keyed, length_of
from pa_core.training_state import initial_hyperparameters
from pa_core.training_state.custom_loader_state import RunLoaders
from pa_core.training_state.downloaded_states import download, local_folders
from pa_core.training_state.progress import Phase, Position, Progress
from pa_core.training_state.run_settings import describe_differences, describe_settings, with_schedule_lengths
from pa_core.training_state.run_state import SavedRun
from pa_core.training_state.saved_runs import continues_run, describe_neighbours, find_saved_run
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.types import SizedIterable, SupportsStateDict
from pa_core.user_warnings import print_once
from pa_data import set_epoch


class ResumePlan:
    """The beginning of a run, and the saved run that it resumes; each run has its own plan.

    ``remaining_epochs`` yields the remaining epochs, and ``resume_steps`` restores the position in the first of them.

    Args:
        progress: The counters of the run, which are set to the counters of the saved run.
        device: The device that batches are moved to.
        reproducible: Whether the settings include the hardware and software that affect the rounding of results.

    Attributes:
        saved: The saved run; None for a new run.
        phase: The next phase of the saved run, until this run reaches it; None from then on and in a new run.
        was_complete: Whether the saved run was complete, and no more training is requested.
        name: The name of the run, which distinguishes its states from states of other runs in the same folder.
        seed: The seed of the order of the data and of the augmentation.
        settings: The requested settings of the run, as plain values; None until they are known.
        hyperparameters: The settings of each optimizer that the script chose, by name.
        loaders: The custom data loaders of the run.
    """

    def __init__(self, progress: Progress, device: torch.device, *, reproducible: bool = False) -> None:
        self._progress = progress
        self._reproducible = reproducible
        self.saved: SavedRun | None = None
        self.phase: Phase | None = None
        self.was_complete: bool = False
        self._new_name = secrets.token_hex(8)
        self.name: str = self._new_name
        self.seed: int = 0
        self.settings: dict[str, Any] | None = None
        self.hyperparameters: dict[str, list[dict[str, Any]]] = {}
        self.loaders: RunLoaders = RunLoaders(device)

    # Before the run starts

    def find(
        self, run: ResumableRun, resume_from: str | Path | None, resume_missing: Literal["error", "start"]
    ) -> None:
        """Find the state to resume from, before the loaders are created; every process must call this.

        Args:
            run: The run.
            resume_from: A state, a folder of states, or a URL; None for a new run.
            resume_missing: ``"start"`` begins a new run if there is no state.

        Raises:
            ConfigurationError: ``resume_missing`` is unknown.
            CheckpointNotFoundError: There is no state.
            CheckpointError: No state is valid.
        """
        if resume_from is None:
            return
        place = download(resume_from, local_folders(run.callback_handler.callbacks), run.print)
        self.saved = find_saved_run(place, resume_missing)
        if self.saved is None:
            near = describe_neighbours(resume_from)
            print_once(run, f"There is no training state in {resume_from}{near}: a new run begins.")
        else:
            self.seed = self.saved.seed
            self.choose_name([self.saved.path.parent])

    def choose_name(self, folders: Collection[Path], stores: Collection[RemoteFolder] = ()) -> None:
        """Keep the name of the saved run if this run continues it; a run that branches off has its own name.

        So each run manages only its own states. The name matters only on the first process.

        Args:
            folders: The folders in which this run saves its states.
            stores: The object stores to which this run sends its states.

        Raises:
            CheckpointError: A store cannot be queried.
        """
        if self.saved is not None and distributed.rank() == 0:
            is_continued = continues_run(self.saved.path, self.saved.name, folders, stores)
            self.name = self.saved.name if is_continued else self._new_name

    @property
    def continued_state(self) -> Path | None:
        """On the first process, the state that is resumed from; None for a new run, or a run that branches off."""
        return self.saved.path if self.saved is not None and self.name == self.saved.name else None

    def record_hyperparameters(self, run: ResumableRun) -> None:
        """Record the settings of optimizers that the script chose, before their schedulers are created.

        Args:
            run: The run.
        """
        self.hyperparameters = {
            name: initial_hyperparameters.begin_run(optimizer, is_resumed=self.saved is not None)
            for name, optimizer in run.named_optimizers().items()
        }

    def record_settings(self, run: ResumableRun, stepping: str, count_steps: Callable[[int, int], int]) -> None:
        """Record the requested settings of the run, once all of its objects are created.

        Args:
            run: The run.
            stepping: When schedulers are stepped, and with which metric.
            count_steps: A function that returns the number of steps of a scheduler in a number of updates and epochs.
        """
        config = run.run_config
        num_steps = count_steps(config.max_num_train_steps or 0, config.num_epochs)
        self.settings = describe_settings(run, stepping, num_steps, reproducible=self._reproducible)

    def restore(
        self,
        run: ResumableRun,
        *,
        scaler: SupportsStateDict | None,
        objects: Sequence[SupportsStateDict],
        allowed: Collection[str],
    ) -> None:
        """Restore the saved run, except for the values that callbacks set at its start, and print its position.

        Args:
            run: The run.
            scaler: The fp16 gradient scaler.
            objects: The registered objects that are saved with the run.
            allowed: Names of ``RESUME_OVERRIDES``.

        Raises:
            CheckpointError: The run differs from the saved run.
        """
        saved, settings = self.saved, self.settings or {}
        if saved is None:
            return
        differences = saved.compare(settings, allowed)
        differences += saved.restore(
            run, hyperparameters=self.hyperparameters, scaler=scaler, objects=objects, allowed=allowed
        )
        differences = with_schedule_lengths(differences, run.named_schedulers(), is_new="scheduler" in allowed)
        if settings["max_num_train_steps"] > saved.settings["max_num_train_steps"]:
            saved.extend(run)
        self._progress.updates, self._progress.epochs = saved.position.updates, saved.position.epochs
        self.phase = saved.position.phase
        self.was_complete = self.phase is Phase.COMPLETE
        self._restore_order(run, saved)
        has_other_data = any(difference.name == "dataset_length" for difference in differences)
        print_once(run, _describe_start(saved.path, saved.position, has_other_data=has_other_data))
        if differences:
            print_once(run, describe_differences(differences))

    @staticmethod
    def _restore_order(run: ResumableRun, saved: SavedRun) -> None:
        loader = innermost(run.train_dataloader)
        if not is_keyed(loader) or not loader.given_order.is_plain or "order" in saved.settings:
            return
        if loader.shuffle == saved.settings["shuffle"]:
            loader.algorithm = saved.algorithm

    # While it runs

    def remaining_epochs(self, run: ResumableRun) -> Iterator[int]:
        """Iterate over the numbers of the remaining epochs, from 0; the caller counts each epoch in the progress.

        Callbacks, loaders and the RNG state are restored with the first epoch, or without any epoch, unless they belong
        to a position within the epoch. The training loader has the order of the epoch that was yielded last.

        Args:
            run: The run.
        """
        if self.saved is not None and not self._is_mid_epoch:
            self.loaders.resume_between_epochs(run, self.saved, self.settings or {})
            self.saved.restore_callbacks(run)
            self.saved.restore_script_state(run)
            self.saved.restore_rng_state(run)
        while self._has_epochs_left(run):
            self._choose_order(run, self._progress.epochs)
            yield self._progress.epochs
            self.phase = None

    def _has_epochs_left(self, run: ResumableRun) -> bool:
        """Whether there is an epoch to train or complete; the number of epochs of a stream is known only at its end."""
        if self.phase is Phase.COMPLETE:
            return False
        if run.epoch_lengths.are_known:
            return self._progress.epochs < run.run_config.num_epochs
        is_in_epoch = self.phase is not None and self.phase is not Phase.EPOCH
        return is_in_epoch or self._progress.updates != run.run_config.max_num_train_steps

    def resume_steps(self, run: ResumableRun, train_dl: SizedIterable, report: Callable[[int], object]) -> Phase | None:
        """Restore a position within an epoch, after the first events of the epoch were called again.

        Args:
            run: The run.
            train_dl: The training loader of the epoch.
            report: A function that is called with the number of steps skipped so far.

        Returns:
            The next phase of the saved run; None in an epoch that begins at its first step.

        Raises:
            CheckpointError: The training loader has fewer batches than were trained on.
        """
        saved, phase, progress = self.saved, self.phase, self._progress
        if saved is None or not self._is_mid_epoch:
            return None
        settings = self.settings or {}
        progress.samples_in_epoch = saved.position.samples
        progress.steps_in_epoch = saved.steps_in_epoch(settings)
        loader = innermost(run.train_dataloader)
        if is_keyed(loader):
            progress.samples_in_epoch, progress.steps_in_epoch = loader.position, loader.split.steps_before
        is_at_last_update = progress.updates == run.run_config.max_num_train_steps
        length = length_of(train_dl)
        self.loaders.resume_mid_epoch(
            run,
            train_dl,
            saved,
            settings,
            steps=progress.steps_in_epoch,
            is_at_end=is_at_last_update or (length is not None and progress.steps_in_epoch >= length),
            report=report,
        )
        if not saved.is_extended:
            saved.restore_losses(run)
        saved.restore_callbacks(run)
        saved.restore_script_state(run)
        saved.restore_rng_state(run)
        self.phase = None
        return phase

    def interrupted_sets(self, run: ResumableRun) -> list[str] | None:
        """Return the remaining evaluation sets of the evaluation in which the saved run was interrupted.

        Args:
            run: The run, which may have different sets.

        Returns:
            The remaining sets that the run has; None if it was not interrupted in an evaluation of several sets.
        """
        names = () if self.saved is None else self.saved.position.eval_sets
        return [name for name in names if name in run.eval_dataloaders] or None

    def finish(self, run: ResumableRun) -> None:
        """Restore the RNG state at the end of a complete run.

        Args:
            run: The run.
        """
        if self.saved is not None and self.phase is Phase.COMPLETE:
            self.saved.restore_rng_state(run)

    @property
    def _is_mid_epoch(self) -> bool:
        return self.phase is not None and self.phase.is_mid_epoch

    def _choose_order(self, run: ResumableRun, epoch: int) -> None:
        """Choose the epoch whose order the training loader follows; custom data loaders may read it."""
        loader = innermost(run.train_dataloader)
        if is_keyed(loader):
            samples = self.saved.position.samples if self.saved is not None and self._is_mid_epoch else 0
            loader.start_epoch(epoch)
            if samples > 0:
                loader.start_epoch(epoch, loader.split.resume_point(min(samples, loader.split.num_samples)))
        else:
            set_epoch(loader, epoch)


def _describe_start(path: Path, position: Position, *, has_other_data: bool) -> str:
    """Describe the state that a run resumes from, and its position."""
    epochs, updates = position.epochs, position.updates
    if position.phase is Phase.COMPLETE:
        to_train_on_other_data = (
            f" num_epochs includes earlier epochs: pass num_epochs={epochs + 1} to train another epoch on this data."
        )
        return (
            f"Resuming from {path}: this run was complete after update {updates}, and nothing is left to "
            "train. Raise num_epochs or max_num_train_steps to train for longer."
            f"{to_train_on_other_data if has_other_data else ''}"
        )
    places = {Phase.EPOCH: "at the start of epoch", Phase.EVALUATION: "in the evaluation of epoch"}
    return f"Resuming from {path}: {places.get(position.phase, 'in epoch')} {epochs + 1}, after update {updates}."
