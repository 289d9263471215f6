"""Checkpoint files, which are loaded without running any code, and safetensors for other programs."""

from __future__ import annotations

import functools
import os
import pickle
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, ParamSpec, cast

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import TypeIs

from pa_checkpoint import CheckpointInfo, atomic_write
from pa_checkpoint.torch_states import ensure_plain, find_damage
from pa_core import _accelerate
from pa_core._tensors import is_sharded_module, without_frozen
from pa_core.checkpoints.accelerate_state import find_accelerate_state, refusal_of_accelerate_state
from pa_core.errors import CheckpointError, CheckpointNotFoundError, ConfigurationError
from pa_core.sharding.sharded_states import gather_state, gathering
from pa_core.sharding.weight_export import WeightExport
from pa_core.types import StatefulScheduler

MODEL, OPTIMIZER, SCHEDULER = "model_state_dict", "optimizer_state_dict", "scheduler_state_dict"
TRAINABLE_ONLY = "trainable_only"
"""The entry of files that lack the frozen parameters of the models."""
MODULES = "modules"
"""The states of further modules, by their names; each has the same keys as the file."""
LOSS_FUNC = "loss_func"
"""The name of the loss function among the modules; files of earlier versions do not contain it."""

_P = ParamSpec("_P")

_URL_AS_PATH = re.compile(r"[A-Za-z][\w+.-]+:/")
_PLACE_OF_FLAG = 4


class Trained(NamedTuple):
    """A module with its optimizer and its scheduler.

    Attributes:
        model: The module without wrappers.
        optimizer: The optimizer, or None to leave it out.
        scheduler: The scheduler, or None to leave it out.
    """

    model: nn.Module
    optimizer: Optimizer | None = None
    scheduler: StatefulScheduler | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether the model is sharded."""
        return is_sharded_module(self.model)

    def states(self, *, keep: bool = True, trainable_only: bool = False) -> dict[str, Any]:
        """Return the states; every process must call this if the model is sharded.

        Args:
            keep: Whether this process needs the tensors of a sharded model.
            trainable_only: Whether frozen parameters are left out.
        """
        states: dict[str, Any] = {MODEL: self._weights(keep=keep, trainable_only=trainable_only)}
        if self.optimizer is not None:
            state = self.optimizer.state_dict()
            states[OPTIMIZER] = gather_state(state, keep=keep) if self.is_sharded else state
        if self.scheduler is not None:
            states[SCHEDULER] = self.scheduler.state_dict()
        return states

    def _weights(self, *, keep: bool, trainable_only: bool) -> dict[str, Any]:
        if not (self.is_sharded or trainable_only):
            return self.model.state_dict()
        weights: dict[str, Any] = self.model.state_dict(keep_vars=True)  # in which tied weights are the same object
        weights = without_frozen(weights) if trainable_only else weights
        if self.is_sharded:
            return gather_state(weights, keep=keep)
        return {
            name: tensor.detach() if isinstance(tensor, torch.Tensor) else tensor for name, tensor in weights.items()
        }


def rejecting_ambiguous_flag(save_checkpoint: Callable[_P, None]) -> Callable[_P, None]:
    """Raise an error for False as the fourth argument, whose meaning depends on the release of pytorch-accelerated.

    This argument was first ``save_per_node`` and later ``save_scheduler``. Both are True by default, and a fifth
    argument shows which of them is meant.

    Args:
        save_checkpoint: The method.
    """

    @functools.wraps(save_checkpoint)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
        given = args[1:]
        if len(given) == _PLACE_OF_FLAG and not given[-1] and "save_per_node" not in kwargs:
            raise ConfigurationError(
                "The fourth argument of save_checkpoint must be passed by name, as save_per_node or as save_scheduler, "
                f"got {given[-1]!r}."
            )
        save_checkpoint(*args, **kwargs)

    return checked


def build_checkpoint(
    trained: Mapping[str, Trained], extras: Mapping[str, Any] | None, *, keep: bool = True, trainable_only: bool = False
) -> dict[str, Any]:
    """Collect the content of a checkpoint file; every process must call this if a model is sharded.

    Args:
        trained: The trained modules by name; the model itself is the first.
        extras: Further entries, next to the states at the top level.
        keep: Whether this process writes the file, and so needs the tensors of sharded models.
        trainable_only: Whether frozen parameters are left out.

    Raises:
        CheckpointError: An extra entry has the name of a state, or an object could not be loaded again without
            unpickling code.
    """
    own, modules = apart(trained)
    checkpoint = own.states(keep=keep, trainable_only=trainable_only)
    if modules:
        of_all = {name: module.states(keep=keep, trainable_only=trainable_only) for name, module in modules.items()}
        checkpoint[MODULES] = of_all
    if trainable_only:
        checkpoint[TRAINABLE_ONLY] = True
    taken = sorted({OPTIMIZER, SCHEDULER, *checkpoint}.intersection(extras or ()))
    if taken:
        raise CheckpointError(
            f"checkpoint_kwargs would replace states of the checkpoint, got {', '.join(taken)}. Rename the entries."
        )
    checkpoint.update(extras or {})
    ensure_plain(checkpoint, "checkpoint")
    return checkpoint


def write_checkpoint(path: str | Path, checkpoint: Mapping[str, Any]) -> None:
    """Write a checkpoint file atomically; an existing file is replaced only by a complete file.

    Raises:
        OSError: The file cannot be written.
        CheckpointError: The file cannot be written, but torch does not report the reason; often the disk is full.
    """
    path = Path(path)
    try:
        atomic_write(path, lambda file: torch.save(dict(checkpoint), file))
    except RuntimeError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            "The checkpoint could not be written; an existing file was not changed.",
            given=f"{path}, on a disk with {shutil.disk_usage(path.parent).free:,} free bytes: {error}",
            do="Free some space, or choose another folder.",
        ) from error


def read_checkpoint(path: str | Path, device: torch.device, *, mapped: bool = False) -> dict[str, Any]:
    """Read a checkpoint file without unpickling code.

    Args:
        path: The file.
        device: The device of its tensors.
        mapped: Whether tensors stay in the file until they are used, so that the processes on a machine read them into
            memory only once. The tensors are then on the CPU.

    Raises:
        CheckpointNotFoundError: There is no such file.
        CheckpointError: The file is damaged, is not a checkpoint, or needs code to be unpickled; or it is a directory.
    """
    path = Path(path)
    if path.is_dir():
        raise _refusal_of_directory(path)
    if not path.is_file():
        raise CheckpointNotFoundError(f"There is no checkpoint {path}. Check the path.")
    if mapped:
        content = _read_mapped(path)
    else:
        with path.open("rb") as file:  # once: another process may replace the file at any time
            content = _load(file, path, device)
    if not _is_checkpoint(content):
        found = f"an object of type {type(content).__name__}"
        if isinstance(content, dict):
            found = f"the keys {', '.join(map(str, cast('dict[object, object]', content)))}"
        raise CheckpointError(
            "The file is not a checkpoint.",
            given=f"{path} with {found}",
            do="Load weights that are not a checkpoint with model.load_state_dict(torch.load(path)).",
        )
    return content


def _read_mapped(path: Path) -> object:
    """Read a file that torch maps into memory; another process may have replaced it since it was checked."""
    while True:
        with path.open("rb") as file:
            # Files in the old format of torch cannot be mapped.
            content = _load(file, path, torch.device("cpu"), mapped=zipfile.is_zipfile(file))
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return content


def _load(file: BinaryIO, path: Path, device: torch.device, *, mapped: bool = False) -> object:
    file.seek(0)
    damage = find_damage(file, of_tensors=device.type != "meta")
    if damage is not None:
        raise _damaged(path, damage)
    try:
        return torch.load(path if mapped else file, map_location=device, weights_only=True, mmap=mapped or None)
    except pickle.UnpicklingError as error:
        # Most of torch's message is about the options of torch.load.
        refused = re.search(r"GLOBAL (\S+)", str(error))
        what = f"an object of {refused.group(1)}" if refused else "an object that torch.load does not know"
        raise CheckpointError(
            "The checkpoint holds more than tensors and plain values, or is not a checkpoint; no code in it was run.",
            given=f"{path}, with {what}",
            do="Load it yourself, if you trust its author, with torch.load(..., weights_only=False).",
        ) from error
    except (MemoryError, OSError, RecursionError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a damaged pickle can raise any error
        raise _damaged(path, f"torch says: {error!r}") from error


def _damaged(path: Path, damage: str) -> CheckpointError:
    return CheckpointError(
        "The checkpoint file is damaged; it may have been cut short. Nothing was loaded.",
        given=f"{path} ({path.stat().st_size} bytes): {damage}",
        do="Use an earlier checkpoint.",
    )


def _refusal_of_directory(path: Path) -> CheckpointError:
    foreign = find_accelerate_state(path)
    if foreign is not None:
        return refusal_of_accelerate_state(foreign)
    is_state = CheckpointInfo.at(path) is not None
    return CheckpointError(
        f"{path} is {'a training state' if is_state else 'a directory'}, and not a checkpoint file. "
        + (f"Load it with load_training_state({str(path)!r})." if is_state else "Pass the path of a file in it.")
    )


def _is_checkpoint(content: object) -> TypeIs[dict[str, Any]]:
    return isinstance(content, dict) and MODEL in content


def apart(trained: Mapping[str, Trained]) -> tuple[Trained, dict[str, Trained]]:
    """Return the model, whose states are the entries of the file, and the further modules."""
    modules = dict(trained)
    return modules.pop(next(iter(modules))), modules


def as_url(place: str | Path) -> str | None:
    """Return the URL of a place in an object store, with the slash that a ``Path`` removes; None for a local path.

    Example:
        >>> as_url("s3://bucket/model"), as_url(Path("s3://bucket/model")), as_url("model")
        ('s3://bucket/model', 's3://bucket/model', None)
    """
    text = str(place)
    if "://" in text:
        return text
    return text.replace(":/", "://", 1) if _URL_AS_PATH.match(text) and not Path(place).drive else None


def save_safetensors(
    accelerator: _accelerate.AcceleratorLike,
    model: nn.Module,
    directory: str | Path,
    max_shard_size: int | str,
    *,
    trainable_only: bool = False,
) -> None:
    """Write the weights of a model as safetensors, to a file or, with an index, to several files.

    The first process writes the files to a folder next to the target, and moves them when all are complete. A weight
    that is tied to another weight is stored once, under the first of its names. Every process may call this; for a
    sharded model, every process must call it.

    Args:
        accelerator: The accelerator of the run.
        model: The model without wrappers.
        directory: The folder of the files, created if it is missing.
        max_shard_size: The largest size of a file, in bytes or as in ``"5GB"``.
        trainable_only: Whether frozen parameters are left out.

    Raises:
        ConfigurationError: The target is a file or a URL, or the model has no trainable parameters.
    """
    if as_url(directory) is not None:
        raise ConfigurationError(
            "Weights are written to a folder on the disk, not in an object store. Pass a local path as save_directory, "
            "and send the files to the store afterwards."
        )
    export = WeightExport(model, max_shard_size, trainable_only=trainable_only)
    with gathering(export.tensors()) as whole:
        if accelerator.is_main_process:
            with _replacing_weights(Path(directory)) as staging:
                export.write(staging, whole)


@contextmanager
def _replacing_weights(target: Path) -> Generator[Path]:
    """Yield a folder whose files replace the weights in the target when the context ends without an error."""
    if target.exists() and not target.is_dir():
        raise ConfigurationError(
            f"save_directory={str(target)!r} is a file. Pass a folder, for example {str(target.parent)!r}, or call "
            "save_checkpoint() to write a single file."
        )
    target.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=target))
    try:
        yield staging
        new = sorted(path.name for path in staging.iterdir())
        mode = _mode_of_new_files(staging)
        for name in new:
            (staging / name).chmod(mode)  # safetensors writes files that other users cannot read
            (staging / name).replace(target / name)
        for old in target.glob("model*.safetensors*"):
            if old.name not in new:
                old.unlink()
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _mode_of_new_files(folder: Path) -> int:
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        made = Path(beside) / "made"
        made.touch()
        return stat.S_IMODE(made.stat().st_mode)
