"""Where the training of a checkpoint stood, as it is stored and as it is read."""

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
"""Raised when a checkpoint is laid out in a way that earlier releases would misread."""


class SavedTrial(NamedTuple):
    """A checkpoint that a training can be continued from.

    Attributes:
        uuid: Its name.
        path: Its folder.
        progress: How far the training had come.
        digest: Identifies its content.
        samples_per_update: The samples in an update of the training; None without a number.
        num_processes: The number of processes of the training; None if unknown.
        aggregation_frequency: The frequency of the training; None if unknown.
        calls: The calls of ``fit`` that have led to it, by name: after how many batches each was continued, or, of the
            last one, saved.
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
    """A call of ``fit``, and what it continues.

    Attributes:
        fit: Its name.
        before: The ``calls`` of the checkpoint that it continues.
        begun_from: The name of that checkpoint, which others may continue too.
    """

    fit: str
    before: Mapping[str, int] = MappingProxyType({})
    begun_from: str = ""

    def wrote(self, checkpoint: CheckpointInfo) -> bool:
        """Whether this call saved a checkpoint, or one that it continues did, before it was continued.

        Checkpoints of other trainings in the same folder are not, even of one that has continued from the same one.
        """
        limit = {**self.before, self.fit: sys.maxsize}.get(checkpoint.run, -1)
        return checkpoint.update <= limit and not checkpoint.path.is_symlink()


def trial_state_of(
    progress: TrialProgress, lineage: Lineage, aggregation_frequency: int, num_processes: int
) -> dict[str, Any]:
    """Return where a training stands, as it is stored.

    Args:
        progress: How far it has come.
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
    """Return where the training of a checkpoint stood.

    Args:
        folder: The checkpoint, whose files were found intact.
        state: What ``trial_state_of`` returned.
        digest: Identifies its content.

    Raises:
        InvalidCheckpointException: An entry is missing, or of another kind.
    """
    path = folder / TRIAL_STATE
    if (number := state.get("format_version")) != _FORMAT_VERSION:
        expected = f"format_version {_FORMAT_VERSION}, the only one that this release of pa-trial reads"
        raise damaged(path, f"format_version {number}", expected)
    try:
        progress = TrialProgress(**{field.name: state[field.name] for field in fields(TrialProgress)})
        others = (state[name] for name in ("num_processes", "aggregation_frequency", "calls"))
        return SavedTrial(folder.name, folder, progress, digest, state.get("samples_per_update"), *others)
    except KeyError as error:
        raise damaged(path, f"{error} is missing") from error
