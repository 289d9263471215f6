"""Which of its older checkpoints a training deletes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pa_checkpoint import Folder
from pa_trial.errors import InvalidCheckpointException
from pa_trial.saved_trial import Ancestor, Metadata, read_metadata


class _Own(NamedTuple):
    """A checkpoint of this training."""

    path: Path
    metadata: Metadata


def delete_superseded(
    checkpoint_dir: Path,
    *,
    fit: str,
    ancestors: Sequence[Ancestor],
    keep: int,
    best_batch: int | None,
    begun_from: str | None,
) -> list[Path]:
    """Delete this training's checkpoints, but for the newest ones, the best one, and the one it was continued from.

    A checkpoint belongs to this training if this call of ``fit`` saved it, or one that it continues, before it was
    continued. Checkpoints of other trainings in the same folder stay, even of one that has continued from the
    same checkpoint.

    Args:
        checkpoint_dir: The folder of the checkpoints.
        fit: The name of this call of ``fit``.
        ancestors: The calls that it continues.
        keep: How many of the newest ones stay.
        best_batch: After how many batches the best validation was; None without one.
        begun_from: The name of the checkpoint that this call was given, and that others may be given too.

    Returns:
        The folders that were deleted.
    """
    own = _find_own(checkpoint_dir, [*ancestors, Ancestor(fit, _ALL)])
    own.sort(key=lambda one: (one.metadata.saved_at, one.metadata.batches_trained))
    best = [one.path for one in own if one.metadata.batches_trained == best_batch][-1:]
    deleted: list[Path] = []
    for path, _ in own[:-keep]:
        if path in best or path.name == begun_from:
            continue
        with contextlib.suppress(FileNotFoundError):  # another training with the same ancestors was faster
            Folder(checkpoint_dir).remove(path.name)
            deleted.append(path)
    return deleted


_ALL = 2**63
"""More batches than any training has."""


def _find_own(checkpoint_dir: Path, calls: Sequence[Ancestor]) -> list[_Own]:
    limits = {call.fit: call.batches_trained for call in calls}
    own: list[_Own] = []
    for path in sorted(checkpoint_dir.iterdir()):
        if path.name.startswith(".") or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(InvalidCheckpointException, OSError):  # what cannot be read belongs to nobody
            metadata = read_metadata(path)
            if metadata.batches_trained <= limits.get(metadata.fit, -1):
                own.append(_Own(path, metadata))
    return own
