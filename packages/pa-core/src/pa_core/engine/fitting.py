"""``per_device_batch_size="fit"``: the number of samples that a process computes at a time, chosen by its memory."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pa_core._torch import before_collectives
from pa_core.data.custom_loader import describe_loader, innermost, is_keyed, is_slice
from pa_core.distributed import gather_objects, num_processes
from pa_core.engine.free_memory import free_memory
from pa_core.errors import ConfigurationError, SmallerBatchNeeded, UnsupportedConfigurationError
from pa_core.run_config import check_count
from pa_data import KeyedDataLoader

_NO_MEMORY = "out of memory", "can't allocate memory"
_FOR_LESS_MEMORY = (
    'Make the sample or the model smaller, compute in mixed_precision="bf16", compute activations again in the '
    "backward pass (activation checkpointing), or split the model over several devices (sharding)."
)
_LARGEST_PART = 4
"""The fraction of the free memory that tensors of a backward pass may take in the largest batch that is tried."""


class BatchSizeFitting:
    """Finds the largest batch that fits before a run, and writes a note if a later batch does not fit.

    Args:
        device: The device of the run.
        folders: The folders of the run's states, in which notes for the next start are kept.

    Attributes:
        batch_size: The largest number of samples that this process computes at a time; 0 until it is chosen.
    """

    def __init__(self, device: torch.device, folders: Iterable[Path]) -> None:
        self._device = device
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        name = f"per_device_batch_size_on_{re.sub('[^A-Za-z0-9]+', '_', kind)}.json"
        self._notes = [folder / name for folder in folders]
        self.batch_size: int = 0

    def find(
        self, loader: object, try_update: Callable[[Any], None] | None, report: Callable[[str], None]
    ) -> list[int]:
        """Return the batch sizes of all processes; every process must call this.

        Args:
            loader: The training loader.
            try_update: Makes an update with a batch; None if it cannot be tried, so that the largest batch is chosen.
            report: A function that prints the choice.

        Raises:
            ConfigurationError: The trainer cannot choose the sizes of the batches.
        """
        keyed = _resizable(loader)
        noted = self._noted()
        samples = min(keyed.samples_per_update or 0, keyed.split.num_samples)
        even = -(-samples // num_processes())
        size = min(even, noted or even)
        if try_update is not None:
            trial = _Trial(keyed, try_update, self._device)
            size = trial.largest(0, size)
            if min(gather_objects(size)) < even == size:  # this device fits a batch that others do not
                size = trial.largest(even, min(samples, noted or samples))
        sizes = gather_objects(size)
        self.batch_size = size
        least, most = min(sizes), max(sizes)
        known = "" if noted is None else f", because more did not fit before, according to {self._notes[0]}"
        report(f"Computing {most if least == most else f'on each process {least} to {most}'} samples at a time{known}.")
        return sizes

    def _noted(self) -> int | None:
        """Return the size in the notes of earlier starts; the same on all processes with such a device."""
        found: list[int] = []
        for note in filter(Path.exists, self._notes):
            try:
                found.append(json.loads(note.read_text())["fits"])
                check_count("fits", found[-1])
            except (KeyError, TypeError, ValueError) as error:
                do = "Remove the file: then batches are tried again."
                raise ConfigurationError(f"The note {note} does not contain a number of samples.", do=do) from error
        return min(found, default=None)

    def record_failure(self, error: BaseException) -> None:
        """Write a note if a run ended because memory was exhausted; other errors have no effect.

        Args:
            error: The error that ended the run.

        Raises:
            SmallerBatchNeeded: The next start continues with smaller batches.
        """
        size = self.batch_size
        if not _is_out_of_memory(error) or size == 0:
            return
        if size == 1:
            error.add_note(f"Not even a single sample at a time fits. {_FOR_LESS_MEMORY}")
            return
        problem = f"{size} samples at a time do not fit into the memory of {self._device}; {size // 2} may."
        if not self._notes:
            error.add_note(
                f"{problem} Pass per_device_batch_size={size // 2}; or resume from the states of "
                "SaveTrainingStateCallback, whose folder contains a note for the next start."
            )
            return
        for path in self._notes:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.{os.getpid()}")
            new.write_text(json.dumps({"fits": size // 2, "does_not_fit": size}))
            new.replace(path)
        sys.stderr.write(f"{problem} Start the script again: with resume_from, it continues with smaller batches.\n")
        raise SmallerBatchNeeded from error


class _Trial:
    """Tries updates with growing batches; the caller undoes their effects."""

    def __init__(self, loader: KeyedDataLoader[Any], try_update: Callable[[Any], None], device: torch.device) -> None:
        self._loader, self._try_update, self._device = loader, try_update, device
        self._saved_bytes = 0
        self._last_error: Exception | None = None

    def largest(self, known: int, most: int) -> int:
        """Return the largest batch that fits, between a size known to fit and the largest of interest."""
        for size in _sizes(known, most):
            if not self._fits(size):
                break
            known = size
        self._saved_bytes = 0  # a single sample is always tried
        if known == 0 and not self._fits(1):
            raise ConfigurationError(
                f"Not even a single sample fits into the memory of {self._device}.",
                given="an update of a single sample",
                do=_FOR_LESS_MEMORY,
            ) from self._last_error
        return known or 1

    def _fits(self, size: int) -> bool:
        if self._device.type == "cpu" and self._saved_bytes * 2 > (free_memory() or sys.maxsize) / _LARGEST_PART:
            return False
        try:
            self._update(size)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            self._last_error = error.with_traceback(None)  # frames of the traceback hold tensors
        else:
            return True
        gc.collect()  # collect the frames of the error, which hold tensors
        if self._device.type != "cpu":
            torch.accelerator.empty_cache()
        return False

    def _update(self, size: int) -> None:
        """Make an update of the first samples; gradients are kept, as in an update with several batches."""
        self._saved_bytes = 0
        counts = self._device.type == "cpu"
        with (
            before_collectives(_raise_for) if num_processes() > 1 else nullcontext(),
            saved_tensors_hooks(self._count, lambda saved: saved) if counts else nullcontext(),
        ):
            self._try_update(self._loader.fetch(range(size)))

    def _count(self, saved: Tensor) -> Tensor:
        self._saved_bytes += saved.nbytes
        return saved


def _raise_for(collective: str) -> None:
    """Raise an error, because the other processes may be trying a different size, or may be out of memory."""
    raise UnsupportedConfigurationError(
        'per_device_batch_size="fit" tries steps on each process separately, and this step communicates.',
        given=collective,
        do="Pass a number, or communicate between the steps.",
    )


def _sizes(known: int, most: int) -> Iterator[int]:
    """Yield doubled sizes, from 2 on, because batch norm needs two samples."""
    size = max(2 * known, 2)
    while size < most:
        yield size
        size *= 2
    if most > known:
        yield most


def _resizable(loader: object) -> KeyedDataLoader[Any]:
    keyed = innermost(loader)
    if is_slice(loader) or not is_keyed(keyed):
        what = "a limit on batches, which counts them" if is_slice(loader) else describe_loader(loader)
        raise ConfigurationError(
            'With per_device_batch_size="fit", the memory decides the number of batches.',
            given=what,
            do="Pass a dataset, and max_num_train_steps to limit the run; or pass a number.",
        )
    return keyed


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _NO_MEMORY)
