"""Exporting weights for other programs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from torch import nn

from pa_core import _accelerate

__all__ = ["save_safetensors"]


def save_safetensors(
    accelerator: _accelerate.AcceleratorLike,
    model: nn.Module,
    directory: str | Path,
    max_shard_size: int | str,
) -> None:
    """Write the weights of a model as safetensors, one file or, with an index, several.

    The files are made in a folder beside the target and moved into it when all are whole. A weight that is tied to
    another is stored once, under the first of its names.

    Args:
        accelerator: The accelerator of the run.
        model: The model without wrappers.
        directory: The folder of the files, made if it is missing.
        max_shard_size: The size of a file, in bytes or as in ``"5GB"``.

    Raises:
        NotADirectoryError: The target is a file.
    """
    target = Path(directory)
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(
            f"Given as a folder for weights: the file {target}. Expected: a folder. Choose another."
        )
    target.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=target))
    try:
        accelerator.save_model(model, staging, max_shard_size=max_shard_size)
        new = sorted(path.name for path in staging.iterdir())
        for name in new:
            (staging / name).replace(target / name)
        for old in target.glob("model*.safetensors*"):
            if old.name not in new:
                old.unlink()
    finally:
        shutil.rmtree(staging, ignore_errors=True)
