"""The cells of the test matrix, and the proof that a run of the tests is in the cell it claims to be in."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Cell:
    """How the tests are run: on how many ranks, over which backend, in which precision."""

    ranks: int
    backend: str | None
    dtype: str


CELLS = {
    "one_process": Cell(ranks=1, backend=None, dtype="torch.float32"),
    "two_ranks": Cell(ranks=2, backend="gloo", dtype="torch.float32"),
    "bf16": Cell(ranks=1, backend=None, dtype="torch.bfloat16"),
    "two_ranks_bf16": Cell(ranks=2, backend="gloo", dtype="torch.bfloat16"),
}
"""fp16 is no cell: on a CPU accelerate accepts it and silently computes in fp32."""


def runs_in(cell: str, named: Collection[str]) -> bool:
    """Whether a test that names some cells runs in one: what holds on two ranks and in bf16, also holds in both."""
    return cell in named or (cell == "two_ranks_bf16" and {"two_ranks", "bf16"} <= {*named})


def observe() -> Cell:
    """Join the process group that the launcher described, train nothing, and report what really runs.

    The process group stays open for the tests; accelerate's own state is forgotten again.
    """
    import torch
    import torch.distributed as dist

    if importlib.util.find_spec("accelerate") is None:  # a library beneath it is tested
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group("gloo")
        return _observed(torch.get_default_dtype())
    from accelerate import Accelerator

    dtypes: list[torch.dtype] = []
    layer = torch.nn.Linear(2, 2)
    layer.register_forward_hook(lambda _module, _inputs, output: dtypes.append(output.dtype))
    model = cast("torch.nn.Module", Accelerator().prepare_model(torch.nn.Sequential(layer)))
    model(torch.zeros(1, 2))
    forget_accelerate_state()
    return _observed(dtypes[0])


def _observed(dtype: torch.dtype) -> Cell:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return Cell(ranks=1, backend=None, dtype=str(dtype))
    ranks = torch.ones(1)
    dist.all_reduce(ranks)
    return Cell(ranks=int(ranks.item()), backend=dist.get_backend(), dtype=str(dtype))


def forget_accelerate_state() -> None:
    """Let the next Accelerator of this process start from the environment, as the first one did.

    Does nothing where accelerate has not been imported.
    """
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)  # pyright: ignore[reportPrivateUsage] - no public way
        GradientState._reset_state()  # pyright: ignore[reportPrivateUsage] - no public way


def mismatch(name: str) -> str | None:
    """The difference between the cell called `name` and what really runs here, or None."""
    claimed, real = CELLS[name], observe()
    if real == claimed:
        return None
    environment = {key: os.environ.get(key) for key in ("ACCELERATE_MIXED_PRECISION", "WORLD_SIZE")}
    return f"the cell {name} is {claimed}, but what runs is {real}; environment: {environment}"
