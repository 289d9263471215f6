"""The progress of the training of a checkpoint, in its stored form."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pa_checkpoint import CheckpointInfo
from pa_trial.checkpoint_files import TRIAL_STATE, damaged
from pa_trial.progress import TrialProgress

_FORMAT_VERSION = 1
"""Increased when the layout of checkpoints changes such that earlier releases would misread them."""


class SavedTrial(NamedTuple):
    """A checkpoint from which a training can be continued.

    Attributes:
        uuid: Its name.
        path: Its folder.
        progress: The counters of the training.
        digest: Identifies its content.
        samples_per_update: The samples in an update of the training; None if the training did not set it.
        num_processes: The number of processes of the training; None if unknown.
        aggregation_frequency: The frequency of the training; None if unknown.
        calls: The calls of ``fit`` that have led to it, by name, with the number of batches after which each was
            continued or, for the last call, saved.
    """

    uuid: str
    path: Path
    progress: TrialProgress
    digest: str
    samples_per_update: int | None = None
    num_processes: int | None = None
    aggregation_frequency: int | None = None
    calls: Mapping[str, int] = MappingProxyType({})


class Lineage(NamedTuple):
    """A call of ``fit``, and the calls that it continues.

    Attributes:
        fit: Its name.
        before: The ``calls`` of the checkpoint that it continues.
        begun_from: The name of that checkpoint, which other calls may also continue.
    """

    fit: str
    before: Mapping[str, int] = MappingProxyType({})
    begun_from: str = ""

    def wrote(self, checkpoint: CheckpointInfo) -> bool:
        """Whether this call saved a checkpoint, or a call that it continues saved it before it was continued.

        It is False for checkpoints of other trainings in the same folder, even if they continue from the same
        checkpoint.
        """
        limit = {**self.before, self.fit: sys.maxsize}.get(checkpoint.run, -1)
        return checkpoint.update <= limit and not checkpoint.path.is_symlink()


def trial_state_of(
    progress: TrialProgress, lineage: Lineage, aggregation_frequency: int, num_processes: int
) -> dict[str, Any]:
    """Return the progress of a training, in its stored form.

    Args:
        progress: Its counters.
        lineage: Its call of ``fit``.
        aggregation_frequency: The number of batches of an optimizer step.
        num_processes: The number of its processes.
    """
    return {
        "format_version": _FORMAT_VERSION,
        **asdict(progress),
        "aggregation_frequency": aggregation_frequency,
        "num_processes": num_processes,
        "calls": {**lineage.before, lineage.fit: progress.batches_trained},
    }


def saved_trial(folder: Path, state: Mapping[str, Any], digest: str) -> SavedTrial:
    """Return the progress of the training of a checkpoint.

    Args:
        folder: The checkpoint, whose files were found intact.
        state: The return value of ``trial_state_of``.
        digest: Identifies its content.

    Raises:
        InvalidCheckpointException: An entry is missing or has the wrong type.
    """
    path = folder / TRIAL_STATE
    if (number := state.get("format_version")) != _FORMAT_VERSION:
        expected = f"format_version {_FORMAT_VERSION}, the only version that this release of pa-trial reads"
        raise damaged(path, f"format_version {number}", expected)
    try:
        progress = TrialProgress(**{field.name: state[field.name] for field in fields(TrialProgress)})
        others = (state[name] for name in ("num_processes", "aggregation_frequency", "calls"))
        return SavedTrial(folder.name, folder, progress, digest, state.get("samples_per_update"), *others)
    except KeyError as error:
        raise damaged(path, f"{error} is missing") from error
