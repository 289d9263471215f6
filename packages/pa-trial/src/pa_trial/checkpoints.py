"""Finds, restores, saves and deletes the checkpoints of a trial."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from pa_checkpoint import CheckpointError, Folder
from pa_distributed import require_same
from pa_trial.callback import PyTorchCallback
from pa_trial.checkpoint_files import LOAD_DATA, METADATA, STATE, TRIAL_STATE, name_of_rank
from pa_trial.checkpoint_folder import find_folder, read_saved
from pa_trial.context_parts import ContextParts
from pa_trial.errors import InvalidCheckpointException
from pa_trial.load_data import describe_checkpoint, describe_trial
from pa_trial.plain_files import read_torch_file, write_torch_file
from pa_trial.rank_outcomes import from_chief, on_each_rank
from pa_trial.saved_trial import Lineage, SavedTrial, trial_state_of
from pa_trial.trial import PyTorchTrial
from pa_trial.trial_contents import capture_process, capture_trial, load_weights, require_fit, take_over
from pa_trial.user_warnings import warn_user


class Checkpoints:
    """Saves a trial and restores it, completely or not at all; every process calls each method.

    Args:
        trial: The trial.
        parts: The parts of its context.
        callbacks: The callbacks of this process, by name.
    """

    def __init__(self, trial: PyTorchTrial, parts: ContextParts, callbacks: Mapping[str, PyTorchCallback]) -> None:
        self._trial = trial
        self._parts = parts
        self._callbacks = dict(callbacks)
        self._folder = parts.run_settings.checkpoint_dir.absolute()
        self._lineage = Lineage(secrets.token_hex(8))
        self._trusts_pickle = False
        self._description: dict[str, Any] = {}

    def find(self, latest_checkpoint: str | Path | None, *, trust_pickle: bool = False) -> SavedTrial | None:
        """Return the description of a checkpoint, once all of its files are known to be intact.

        Args:
            latest_checkpoint: Its name in the folder of the checkpoints, or its path; None to begin a new training.
            trust_pickle: Whether objects of any kind are unpickled, and pickled by ``save``.

        Raises:
            CheckpointNotFound: There is no such checkpoint.
            InvalidCheckpointException: It is damaged, or was saved by a different number of processes.
            RanksDifferError: The processes have found different checkpoints.
        """
        self._trusts_pickle = trust_pickle
        if latest_checkpoint is None:
            return None
        saved = self._read(latest_checkpoint, trust_pickle=trust_pickle)
        if saved.samples_per_update is None or saved.samples_per_update != self._parts.run_settings.samples_per_update:
            _require_as_many_processes(saved, self._parts.distributed.size)
        self._lineage = self._lineage._replace(before=saved.calls, begun_from=saved.uuid)
        return saved

    def restore(self, saved: SavedTrial) -> None:
        """Continue from a checkpoint: models, optimizers, schedulers, scaler, callbacks, gradients and RNG states.

        Args:
            saved: The return value of ``find``.

        Raises:
            InvalidCheckpointException: It does not fit the trial; nothing was changed.
        """
        content, own = on_each_rank(lambda: self._load(saved), _RESTORING)
        for callback in self._callbacks.values():
            callback.on_checkpoint_load_start(content)
        on_each_rank(lambda: require_fit(self._parts, content, own, saved), _RESTORING)
        self._warn_of_other_settings(saved)
        on_each_rank(lambda: take_over(self._parts, self._callbacks, content, own, saved), _RESTORING)

    def load_weights(self, checkpoint: str | Path, *, trust_pickle: bool = False) -> str:
        """Load the weights of a checkpoint's models, and nothing else; return its name.

        Args:
            checkpoint: Its name in the folder of the checkpoints, or its path.
            trust_pickle: Whether objects of any kind are unpickled.

        Raises:
            CheckpointNotFound: There is no such checkpoint.
            InvalidCheckpointException: It is damaged, or belongs to other models. Nothing was loaded.
        """
        saved = self._read(checkpoint, trust_pickle=trust_pickle, for_weights=True)
        load = partial(load_weights, self._parts.trained.models, saved, {"trust_pickle": trust_pickle})
        on_each_rank(load, "loading the weights of a checkpoint")
        return saved.uuid

    def save(self) -> str:
        """Save the trial in its current state, and delete checkpoints that are no longer kept.

        Returns:
            The name of the checkpoint.

        Raises:
            CheckpointError: Something could not be loaded again, such as an object in the state of a callback.
            OSError: A file cannot be written.
        """
        with ExitStack() as stack:
            uuid, staging = from_chief(lambda: self._begin(stack), _SAVING)
            on_each_rank(lambda: self._write(Path(staging)), _SAVING)
            from_chief(lambda: self._finish(stack), _SAVING)
        return uuid

    def tell_callbacks(self, uuid: str) -> None:
        """Call the callbacks after a checkpoint was saved: on the chief with its folder, then on all with its name.

        Args:
            uuid: The return value of ``save``.
        """
        from_chief(lambda: self._tell_of_files(uuid), "in a callback of a checkpoint")
        for callback in self._callbacks.values():
            callback.on_checkpoint_upload_end(uuid=uuid)

    def _read(self, checkpoint: str | Path, *, trust_pickle: bool, for_weights: bool = False) -> SavedTrial:
        """Read the description of the same checkpoint on all processes."""
        rank = self._parts.distributed.rank
        read = partial(read_saved, rank=rank, trust_pickle=trust_pickle, for_weights=for_weights)
        saved = on_each_rank(lambda: read(find_folder(checkpoint, self._folder)), "reading a checkpoint")
        require_same(
            {f"the content of {saved.path.name}, by its SHA-256": saved.digest},
            explain=lambda found: (
                f"The processes found different checkpoints under the same name: {found}. "
                "Use a folder on a file system that all machines share."
            ),
        )
        return saved

    def _load(self, saved: SavedTrial) -> tuple[dict[str, Any], dict[str, Any]]:
        """Load the common state of all processes, and the state of this process."""
        content: dict[str, Any] = read_torch_file(saved.path / STATE, trust_pickle=self._trusts_pickle)
        if self._parts.distributed.rank == 0 or saved.num_processes != self._parts.distributed.size:
            return content, content
        return content, read_torch_file(saved.path / name_of_rank(self._parts.distributed.rank))

    def _begin(self, stack: ExitStack) -> tuple[str, str]:
        """Make a folder to write into; return the name of the checkpoint, and the folder."""
        uuid = str(uuid4())
        self._folder.mkdir(parents=True, exist_ok=True)
        folder = Folder(self._folder)
        with suppress(CheckpointError):  # files that cannot be deleted only take space
            folder.remove_leftovers(self._lineage.fit)
        written = folder.writing(uuid, self._lineage.fit, {"update": self._parts.progress.batches_trained})
        return uuid, str(stack.enter_context(written))

    def _write(self, staging: Path) -> None:
        """Write the files of this process."""
        parts, own = self._parts, capture_process(self._parts)
        if not staging.is_dir():
            raise CheckpointError(
                "A process does not see the folder into which the others write a checkpoint.",
                given=f"{staging.parent} on rank {parts.distributed.rank}",
                do="Pass a folder on a file system that all machines share: init(checkpoint_dir=...).",
            )
        if parts.distributed.rank > 0:
            write_torch_file(staging / name_of_rank(parts.distributed.rank), own)
            return
        content = {**capture_trial(parts, self._callbacks), **own}
        for callback in self._callbacks.values():
            callback.on_checkpoint_save_start(content)
        write_torch_file(staging / STATE, content, trust_pickle=self._trusts_pickle)
        progress, settings = parts.progress, parts.settings
        state = trial_state_of(progress, self._lineage, parts.aggregation_frequency, parts.distributed.size)
        state["samples_per_update"] = parts.run_settings.samples_per_update
        self._description = self._description or describe_trial(type(self._trial), settings.hparams, settings.exp_conf)
        documents = {LOAD_DATA: self._description, METADATA: describe_checkpoint(progress), TRIAL_STATE: state}
        for name, document in documents.items():
            (staging / name).write_text(json.dumps(document, indent=1))

    def _finish(self, stack: ExitStack) -> None:
        """Give the checkpoint its name, in a single step, and delete the checkpoints that it supersedes.

        The newest checkpoints stay, the best, and the checkpoint from which the training was continued.
        """
        stack.close()
        keep, folder, lineage = self._parts.run_settings.max_checkpoints, Folder(self._folder), self._lineage
        if keep is not None:
            own = filter(lineage.wrote, folder.records())
            best = [record.path for record in own if record.update == self._parts.progress.best_batch][-1:]
            folder.keep(keep, lineage.wrote, [*best, self._folder / lineage.begun_from])

    def _tell_of_files(self, uuid: str) -> None:
        folder = str(self._folder / uuid)
        for callback in self._callbacks.values():
            callback.on_checkpoint_end(folder)
            callback.on_checkpoint_write_end(folder)

    def _warn_of_other_settings(self, saved: SavedTrial) -> None:
        """Warn if the training continues with data that seem to differ from before."""
        before, now = saved.progress.epoch_length, self._parts.progress.epoch_length
        if self._parts.distributed.rank == 0 and None not in (before, now) and before != now:
            warn_user(
                f"An epoch has {now} batches, and had {before} when {saved.uuid} was saved: the training continues at "
                f"batch {saved.progress.batches_trained}, which is a different place in the data."
            )


_SAVING = "saving a checkpoint"
_RESTORING = "restoring a checkpoint"


def _require_as_many_processes(saved: SavedTrial, num_processes: int) -> None:
    if saved.num_processes in (None, num_processes):
        return
    raise InvalidCheckpointException(
        "The checkpoint was saved by a different number of processes, and has the random states of each process.",
        given=f"{saved.path}, saved by {saved.num_processes}, and {num_processes} now",
        do=f"Start {saved.num_processes} processes, or start over with its weights: fit(warm_start={saved.uuid!r}).",
    )
