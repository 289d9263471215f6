"""Writes files with torch.save such that they load again without unpickling anything, and loads them in that way."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core import multiarray  # the function that pickled arrays name is not public

from pa_checkpoint.torch_states import ensure_plain, find_damage
from pa_trial.checkpoint_files import damaged
from pa_trial.errors import InvalidCheckpointException

_KINDS_OF_NUMBERS = "?bBhHiIlLqQefdgFDGSUVMm"


def write_torch_file(path: Path, content: dict[str, Any], *, trust_pickle: bool = False) -> None:
    """Write a file that ``read_torch_file`` can read.

    Args:
        path: A path without a file.
        content: Tensors, numbers, strings, numpy's arrays and numbers, and containers of them.
        trust_pickle: Whether the content may be anything that can be pickled; it must then be read in this way too.

    Raises:
        InvalidCheckpointException: Something in the content could not be loaded again.
        OSError: The file cannot be written.
    """
    if not trust_pickle:
        with torch.serialization.safe_globals(_types_of_numpy(with_scalars=True)):
            ensure_plain(content, "checkpoint")
    try:
        with path.open("xb") as file:
            torch.save(content, file)
    except RuntimeError as error:  # torch raises it for a full disk
        raise OSError(f"{path} could not be written: {error}") from error
    if not trust_pickle:
        _require_readable(path)


def read_torch_file(path: Path, *, trust_pickle: bool = False, **options: Any) -> Any:
    """Return the content of a file, with its tensors on the CPU unless the options say otherwise.

    Numpy's arrays are built by numpy; no other code than torch's and numpy's own runs.

    Args:
        path: The file.
        trust_pickle: Whether objects of any kind are unpickled, which runs any code that the file names.
        options: Further arguments of ``torch.load``.

    Raises:
        InvalidCheckpointException: The file is damaged, or holds something else.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        damage = find_damage(file)
    if damage is not None:
        raise damaged(path, damage)
    asked: dict[str, Any] = {"map_location": "cpu", "weights_only": not trust_pickle, **options}
    try:
        with torch.serialization.safe_globals(_types_of_numpy()):
            return torch.load(path, **asked)
    except (pickle.UnpicklingError, EOFError, KeyError, RuntimeError, ValueError, AttributeError, TypeError) as error:
        if not (isinstance(error, pickle.UnpicklingError) and asked["weights_only"]):
            raise damaged(path, f"{type(error).__name__}: {_first_line(error)}") from error
        raise InvalidCheckpointException(
            "Loading the objects in this checkpoint could run any code, so nothing was loaded.",
            given=f"{path}: {_first_line(error)}",
            do="If you trust the author of the file, pass trust_pickle=True.",
        ) from error


def _require_readable(path: Path) -> None:
    """Build everything in a file but the tensors' values, as loading it will."""
    try:
        with torch.serialization.safe_globals(_types_of_numpy()):
            torch.load(path, weights_only=True, mmap=True, map_location="meta")
    except pickle.UnpicklingError as error:
        raise InvalidCheckpointException(
            "The state of the trial cannot be loaded again safely, so it is not saved.",
            given=_first_line(error),
            do="Look for an array of objects in the state_dict() of the callbacks, and store a list instead.",
        ) from error


def _types_of_numpy(*, with_scalars: bool = False) -> list[Any]:
    """Return the types and functions that pickled arrays and numbers name, in all releases of numpy."""
    functions = [
        (function, f"numpy.{package}.multiarray.{name}")
        for name, function in (("_reconstruct", multiarray._reconstruct), ("scalar", multiarray.scalar))
        for package in ("core", "_core")
    ]
    dtypes = [np.dtype(kind) for kind in _KINDS_OF_NUMBERS]
    scalars = [dtype.type for dtype in dtypes] if with_scalars else []
    return [np.ndarray, np.dtype, *functions, *{type(dtype) for dtype in dtypes}, *scalars]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "GLOBAL" in line]
    return (named or lines or [type(error).__name__])[0]
