"""What a checkpoint of pa-checkpoint costs, compared with torch's own distributed checkpoints (DCP).

Runs as ``python -m benchmarks.checkpoints FIGURE MEGABYTES [ROUNDS]``, in one process or in several. The weights are
those of a transformer: 148 tensors; with ``_small``, they are tensors of 20 KB. Both save in turn, to a new folder each
time; a figure is that of the slowest process, in milliseconds. ``save`` and ``load`` block, ``load`` ends with the
weights in the tensors of a model, and ``peak`` is how many MiB it takes beyond them. ``held`` is how long a save in the
background holds up the process, ``durable`` the time until it is on disk. In ``unchanged``, 95 % of the bytes are as in
the checkpoint before. With ``_sharded``, each process has its rows of every weight.

Both have what they write reach the disk. Ours alone publishes a checkpoint by one rename, compares digests when it
reads, and unpickles nothing.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import pa_checkpoint as ckpt
from benchmarks.measures import side_by_side
from benchmarks.processes import is_first_process, publish, shared_folder

DISK = "/var/tmp"  # on a disk, also where the folder for temporary files is in memory
BLOCKS, VOCABULARY = 12, 47  # the vocabulary in multiples of the width
SHARE_OF_CHANGED = 20  # one of so many bytes

State = dict[str, Tensor]


def weights(megabytes: float) -> State:
    """The weights of a transformer of about this size."""
    width = max(1, math.isqrt(int(megabytes * 1e6 / 4 / (12 * BLOCKS + VOCABULARY))))
    state = {"embedding": torch.randn(VOCABULARY * width, width)}
    matrices = {"attention.in": 3, "attention.out": 1, "feed_forward.in": 4, "feed_forward.out": 4}
    for block in range(BLOCKS):
        for name, rows in matrices.items():
            state[f"blocks.{block}.{name}.weight"] = torch.randn(rows * width, width)
            state[f"blocks.{block}.{name}.bias"] = torch.randn(rows * width)
        for name in ("norm_1", "norm_2"):
            state[f"blocks.{block}.{name}.weight"] = torch.ones(width)
            state[f"blocks.{block}.{name}.bias"] = torch.zeros(width)
    return state | {"norm.weight": torch.ones(width), "norm.bias": torch.zeros(width), "step": torch.tensor(0)}


def small(megabytes: float) -> State:
    """Small tensors of about this size together."""
    return {f"{number}.weight": torch.randn(5_000) for number in range(int(megabytes * 50))}


def sharded(state: State) -> State:
    """The same weights, of which each process has its rows."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        name: distribute_tensor(tensor, mesh, [Shard(0)]) if tensor.dim() else tensor for name, tensor in state.items()
    }


class Dcp:
    """Saving and loading by torch's own, with buffers that are used again as ours are."""

    def __init__(self) -> None:
        self._stager = DefaultStager(StagingOptions(*[False] * 4))  # all but the buffers needs an accelerator
        self._saving: Future[Any] | None = None

    def save(self, path: Path, state: State) -> None:
        """Save, and return when it is on disk."""
        state_dict_saver.save({"model": state}, checkpoint_id=path)

    def start(self, path: Path, state: State) -> None:
        """Save in the background."""
        saving = state_dict_saver.async_save({"model": state}, checkpoint_id=path, async_stager=self._stager)
        self._saving = cast("Future[Any]", saving)

    def wait(self) -> None:
        """Return when it is on disk."""
        if self._saving is not None:
            self._saving.result()

    def load(self, path: Path, state: State) -> None:
        """Load into the tensors."""
        state_dict_loader.load({"model": state}, checkpoint_id=path)


class Ours:
    """A writer of pa-checkpoint, as a run has one."""

    def __init__(self) -> None:
        self._writer = ckpt.Writer()

    def save(self, path: Path, state: State) -> None:
        """Save, and return when it is on disk."""
        self._writer.save(path, {"model": state}, blocking=True)

    def start(self, path: Path, state: State) -> None:
        """Save in the background."""
        self._writer.save(path, {"model": state})

    def wait(self) -> None:
        """Return when it is on disk."""
        self._writer.wait()

    def load(self, path: Path, state: State) -> None:
        """Load, and copy into the tensors as ``load_state_dict`` does."""
        saved = ckpt.load(path, lazy=True, in_shares=dist.is_initialized())["model"]
        _meet()  # as the outcome of verifying is exchanged
        for name, tensor in state.items():
            value = saved[name]
            if isinstance(value, ckpt.StoredTensor):
                value.read_into(tensor)
            else:
                tensor.copy_(value)


Variant: TypeAlias = Dcp | Ours


def time_of_save(variant: Variant, path: Path, state: State) -> float:
    """Milliseconds of a save that blocks."""
    return _milliseconds(lambda: variant.save(path, state))


def time_held(variant: Variant, path: Path, state: State) -> float:
    """Milliseconds until the process goes on after it has begun to save in the background."""
    _meet()
    start = time.perf_counter()
    variant.start(path, state)
    taken = time.perf_counter() - start
    variant.wait()  # first, since threads of torch's own exchange messages in the background
    return _of_slowest(taken)


def time_until_durable(variant: Variant, path: Path, state: State) -> float:
    """Milliseconds until such a save is on disk."""

    def save() -> None:
        variant.start(path, state)
        variant.wait()

    return _milliseconds(save)


def peak_of_load(variant: Variant, path: Path, state: State) -> float:
    """MiB that a load takes at its peak."""
    variant.save(path, state)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
    before = _memory("VmRSS")
    variant.load(path, state)
    return _memory("VmHWM") - before


def _memory(name: str) -> float:
    """An entry of the status of this process, in MiB."""
    found = re.search(rf"{name}:\s+([0-9]+) kB", Path("/proc/self/status").read_text())
    return math.nan if found is None else int(found[1]) / 1024


def time_of_load(variant: Variant, path: Path, state: State) -> float:
    """Milliseconds of a load, from the page cache."""
    variant.save(path, state)
    return _milliseconds(lambda: variant.load(path, state))


FIGURES: dict[str, Callable[[Variant, Path, State], float]] = {
    "save": time_of_save,
    "unchanged": time_of_save,
    "held": time_held,
    "durable": time_until_durable,
    "load": time_of_load,
    "peak": peak_of_load,
}


def _milliseconds(work: Callable[[], None]) -> float:
    """How long the slowest process takes, if all begin at once."""
    _meet()
    start = time.perf_counter()
    work()
    return _of_slowest(time.perf_counter() - start)


def _of_slowest(seconds: float) -> float:
    """The milliseconds of the slowest process."""
    taken = torch.tensor(seconds * 1e3)
    if dist.is_initialized():
        dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item()


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def main(figure: str, megabytes: str, rounds: str = "5") -> None:
    """Publish the medians."""
    torch.manual_seed(0)
    kind, _, form = figure.partition("_")
    times: dict[str, list[float]] = {"dcp": [], "ours": []}
    variants: dict[str, Variant] = {"dcp": Dcp(), "ours": Ours()}
    with side_by_side(), shared_folder(DISK) as folder:
        state = small(float(megabytes)) if form == "small" else weights(float(megabytes))
        state = sharded(state) if form == "sharded" else state
        for number in range(int(rounds) + 2):  # the first two make room, and find out what does not change
            for name in sorted(times, reverse=number % 2 == 1):
                _change(state, everything=kind != "unchanged")
                times[name].append(FIGURES[kind](variants[name], Path(folder, name, str(number)), state))
                _meet()
                if is_first_process():
                    shutil.rmtree(Path(folder, name, str(number - 1)), ignore_errors=True)
                    os.sync()  # so that nobody pays for what another one has left to be written or removed
    if is_first_process():
        publish(**{name: statistics.median(taken[2:]) for name, taken in times.items()})


def _change(state: State, *, everything: bool) -> None:
    """Change the weights in place, or only the last ones."""
    budget = sum(tensor.nbytes for tensor in state.values()) / (1 if everything else SHARE_OF_CHANGED)
    for tensor in reversed(state.values()):
        if (budget := budget - tensor.nbytes) >= 0:
            tensor.add_(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
