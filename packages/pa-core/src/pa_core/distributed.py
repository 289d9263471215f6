"""What processes of a run tell each other: sums, gathered values, one decision for all, and who goes first.

Everything here works without a trainer, and on one process without a process group.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from pa_core import _accelerate
from pa_core.errors import UnsupportedConfigurationError
from pa_core.types import TensorsT

__all__ = [
    "CallsOfStep",
    "GradientAgreement",
    "LateReader",
    "agree_on_integer",
    "broadcast_buffers",
    "gather",
    "gather_objects",
    "gradients_carry_counts",
    "leave_processes_at_exit",
    "local_process_zero_first",
    "local_process_zero_only",
    "num_local_processes",
    "num_processes",
    "rank",
    "runs_on_gloo",
    "sum_over_processes",
    "synchronises_every_parameter",
    "to_device",
    "world_process_zero_only",
    "zero_pass",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")

# torch annotates its collectives only in part
_collectives: Any = dist


def num_processes() -> int:
    """Return the number of processes of the run, 1 where there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process in the run, 0 where there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def leave_processes_at_exit() -> None:
    """Make this process leave the others in order when it ends.

    Threads of gloo that are still alive then abort some processes after their work is done, with an exit status that
    tells the launcher of a failure. Other backends are left alone: leaving may wait for what runs on the device.
    """
    if runs_on_gloo():
        atexit.unregister(_leave_processes)
        atexit.register(_leave_processes)


def runs_on_gloo() -> bool:
    """Whether there are several processes, which communicate by threads of gloo."""
    return num_processes() > 1 and dist.get_backend() == "gloo"


def _leave_processes() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_processes(values: Tensor) -> Tensor:
    """Return the sum of a small tensor over all processes; every process must call this.

    Args:
        values: A tensor of the same shape on each process, on the device of the run.
    """
    if num_processes() == 1:
        return values
    total = values.clone()
    _collectives.all_reduce(total)
    return total


def num_local_processes() -> int:
    """Return the number of processes of the run on this machine, as the launcher tells it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_processes()))


def agree_on_integer(value: int, device: torch.device) -> int:
    """Return the value that rank zero gave; every process must call this."""
    if num_processes() == 1:
        return value
    shared = torch.tensor(value, dtype=torch.int64, device=device)
    _collectives.broadcast(shared, src=0)
    return int(shared.item())


def broadcast_buffers(module: nn.Module) -> None:
    """Give every process the buffers of rank zero, for example the running statistics of BatchNorm.

    Buffers of one dtype travel together, so that the cost does not grow with the number of layers.
    """
    if num_processes() == 1:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for buffer in module.buffers():
        by_dtype.setdefault(buffer.dtype, []).append(buffer)
    with torch.no_grad():
        for buffers in by_dtype.values():
            flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
            _collectives.broadcast(flat, src=0)
            pieces = torch.split(flat, [buffer.numel() for buffer in buffers])
            for buffer, piece in zip(buffers, pieces, strict=True):
                buffer.copy_(piece.view_as(buffer))


def gather(data: TensorsT, padding_value: float | None = None) -> TensorsT:
    """Return the tensors of all processes, concatenated along the first dimension in the order of the ranks.

    The first dimension may differ between processes; the other dimensions may not. A tensor without dimensions
    counts as one row. Every process must call this.

    Args:
        data: A tensor on the device of the run, or a nested list, tuple or mapping of tensors.
        padding_value: None concatenates what is there. A number pads the first dimension with it to the longest
            of all processes first, so that each process takes up the same number of rows.

    Raises:
        TypeError: Something in ``data`` is neither a tensor nor a container of tensors.
    """
    return cast("TensorsT", _gather_nested(data, padding_value))


def _gather_nested(data: object, padding_value: float | None) -> Any:
    if isinstance(data, Tensor):
        return _gather_tensor(data, padding_value)
    container: Any = data
    if isinstance(data, Mapping):
        return type(container)({key: _gather_nested(value, padding_value) for key, value in container.items()})
    if isinstance(data, tuple) and hasattr(container, "_fields"):
        return type(container)(*(_gather_nested(value, padding_value) for value in container))
    if isinstance(data, (list, tuple)):
        return type(container)(_gather_nested(value, padding_value) for value in container)
    raise TypeError(
        f"Given to gather: an object of type {type(data).__name__}. Expected: a tensor, or a nested list, tuple or "
        "mapping of tensors. Use gather_objects for other Python objects."
    )


def _gather_tensor(tensor: Tensor, padding_value: float | None) -> Tensor:
    rows = tensor.detach().contiguous() if tensor.dim() else tensor.detach().reshape(1)
    world = num_processes()
    if world == 1:
        return rows
    lengths = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world)]
    _collectives.all_gather(lengths, torch.tensor([rows.size(0)], device=rows.device))
    counts = [int(length.item()) for length in lengths]
    longest = max(counts)
    padded = rows.new_full((longest, *rows.shape[1:]), padding_value or 0)
    padded[: rows.size(0)] = rows
    gathered = [torch.empty_like(padded) for _ in range(world)]
    _collectives.all_gather(gathered, padded)
    if padding_value is None:
        gathered = [piece[:count] for piece, count in zip(gathered, counts, strict=True)]
    return torch.cat(gathered)


def gather_objects(value: _R) -> list[_R]:
    """Return the picklable Python objects of all processes, in the order of the ranks.

    Every process must call this. The objects are pickled between processes of one run, never read from a file.
    """
    world = num_processes()
    if world == 1:
        return [value]
    gathered: list[Any] = [None] * world
    _collectives.all_gather_object(gathered, value)
    return gathered


def gradients_carry_counts(module: nn.Module) -> bool:
    """Whether the gradients of a module have the precision to add up counts."""
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    return dtypes <= {torch.float32, torch.float64}


class GradientAgreement:
    """Adds up small numbers of all processes with the gradients of an update, at no extra collective.

    A small parameter is registered on the module while ``DistributedDataParallel`` wraps it, and taken out of it
    again, so that state dicts stay clean. Its gradient travels in the same bucket as the others.

    Args:
        module: The inner module, before it is wrapped, on the device of the run.
        num_values: How many numbers travel with each update.

    Raises:
        UnsupportedConfigurationError: The module has no trainable parameter, so that there are no gradients.

    Example:
        >>> import torch
        >>> module = torch.nn.Linear(2, 1)
        >>> agreement = GradientAgreement(module, num_values=2)
        >>> agreement.hide_from(module)
        >>> sorted(module.state_dict())
        ['bias', 'weight']
        >>> agreement.add_to(module(torch.ones(1, 2)).sum(), [0, 7]).backward()
        >>> agreement.sums()
        tensor([0., 7.])
    """

    _NAME = "_agreement_of_processes"

    def __init__(self, module: nn.Module, num_values: int = 1) -> None:
        trainable = next((p for p in module.parameters() if p.requires_grad), None)
        if trainable is None:
            raise UnsupportedConfigurationError(
                "Several processes cannot train a model without trainable parameters.",
                given=f"{type(module).__name__}, every parameter of which has requires_grad=False",
                expected="at least one trainable parameter",
                do="Unfreeze a part of the model, or call evaluate() instead of train().",
            )
        self._values = nn.Parameter(torch.zeros(num_values, dtype=trainable.dtype, device=trainable.device))
        module.register_parameter(self._NAME, self._values)

    def hide_from(self, module: nn.Module) -> None:
        """Take the parameter out of the module again, once it is wrapped."""
        delattr(module, self._NAME)

    def add_to(self, loss: Tensor, values: Sequence[float]) -> Tensor:
        """Return the loss of a synchronised backward pass with the numbers of this process; its value is kept."""
        numbers = to_device(values, self._values.dtype, self._values.device)
        return loss + (self._values * numbers).sum().to(loss.dtype)

    def sums(self) -> Tensor:
        """Return the sums over all processes after the synchronised backward pass, on the device."""
        gradient = self._values.grad
        self._values.grad = None
        return torch.zeros_like(self._values) if gradient is None else gradient * num_processes()


class LateReader:
    """Reads small tensors of an accelerator without waiting: a fixed number of calls after they were handed in.

    All processes read what belongs to the same update, because each counts its own calls. On the CPU nothing has to be
    waited for, and what was handed in is read at once.

    Args:
        delay: After how many further calls a tensor is read. Two updates are enough for the copy to have arrived.

    Example:
        >>> import torch
        >>> reader = LateReader(delay=1)
        >>> [reader.read(torch.tensor([value])) for value in (1.0, 2.0, 3.0)]
        [None, [1.0], [2.0]]
    """

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._under_way: deque[tuple[Tensor, torch.Event | None]] = deque()

    def read(self, values: Tensor) -> list[float] | None:
        """Hand in the values of this call, and return those of the call ``delay`` calls ago, if there was one."""
        self._under_way.append(_copy_to_host(values))
        if len(self._under_way) <= self._delay:
            return None
        on_host, copied = self._under_way.popleft()
        if copied is not None:
            copied.synchronize()
        return cast("list[float]", on_host.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch


def to_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a small tensor on the device; on CUDA, nothing waits for the copy, since it starts in pinned memory."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def _copy_to_host(values: Tensor) -> tuple[Tensor, torch.Event | None]:
    if values.device.type == "cpu":
        return values, None
    on_host = torch.empty_like(values, device="cpu", pin_memory=values.device.type == "cuda")
    on_host.copy_(values, non_blocking=True)
    copied = torch.Event(values.device)
    copied.record()
    return on_host, copied


class _Zero(nn.Module):
    """Stands in for a module on a process without a sample: its trainable parameters, summed, times zero."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._stands_in_for = (module,)  # in a tuple, or it would be a child of this module

    @override
    def forward(self) -> Tensor:
        trainable = [parameter for parameter in self._stands_in_for[0].parameters() if parameter.requires_grad]
        return torch.stack([parameter.sum() for parameter in trainable]).sum() * 0.0

    @override
    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers of the module, which each call of the wrapper exchanges."""
        return self._stands_in_for[0].named_buffers(prefix, recurse, remove_duplicate)


class CallsOfStep:
    """Counts how often a training step calls the model, so that a process without a sample makes as many calls.

    Each call of ``DistributedDataParallel`` may exchange the buffers of the model: a process that called it less
    often than the others would keep them waiting.

    Args:
        model: The wrapped model, as a training step calls it.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1)
        >>> calls = CallsOfStep(model)
        >>> for inputs in torch.ones(2, 1):  # a step that compares two views
        ...     _ = model(inputs)
        >>> calls.start_step()
        >>> calls.missing
        2
    """

    def __init__(self, model: nn.Module) -> None:
        self._in_this_step = 0
        self._in_a_step = 1
        model.register_forward_pre_hook(self._count)

    def start_step(self) -> None:
        """Begin to count the calls of the next step, which is expected to make as many as the last one."""
        self._in_a_step = self._in_this_step or self._in_a_step
        self._in_this_step = 0

    @property
    def missing(self) -> int:
        """The number of calls that the present step still lacks."""
        return max(self._in_a_step - self._in_this_step, 0)

    def _count(self, _model: nn.Module, _inputs: object) -> None:
        self._in_this_step += 1


def zero_pass(model: nn.Module, calls: int = 1) -> Tensor:
    """Return a loss whose gradients are zero, through the wrapper that synchronises gradients.

    A process without a sample takes part in the collectives of the others this way: one that left the step out would
    keep them waiting. The model itself, and any hook on it, is not called.

    Args:
        model: A ``DistributedDataParallel``, or a compiled one.
        calls: How many calls of the model the other processes make that this process has not made. With 0, it has
            made them all, but has no loss to show for it.
    """
    wrapper = _synchronising_wrapper(model)
    if wrapper is None:
        return cast("Tensor", _Zero(model)())
    module = cast("nn.Module", wrapper.module)  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it
    wrapper.module = _Zero(module)
    if calls == 0:
        wrapper.require_forward_param_sync = False  # for one call: the buffers of this step were exchanged already
    # Not wrapper(): hooks on it are not for these calls, and would count them.
    forward = cast("Callable[[], Tensor]", wrapper.forward)  # pyright: ignore[reportUnknownMemberType]  # as above
    try:
        losses = [forward() for _ in range(max(calls, 1))]
    finally:
        wrapper.module = module
    return losses[-1]


def synchronises_every_parameter(model: nn.Module) -> bool:
    """Whether each backward pass exchanges the gradient of every trainable parameter, used or not."""
    wrapper = _synchronising_wrapper(model)
    return wrapper is not None and not (wrapper.find_unused_parameters or wrapper.static_graph)


def _synchronising_wrapper(model: nn.Module) -> DistributedDataParallel | None:
    compiled_from = model.__dict__.get("_modules", {}).get("_orig_mod")
    wrapper = model if compiled_from is None else compiled_from
    return wrapper if isinstance(wrapper, DistributedDataParallel) else None


def world_process_zero_only(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """Make a function run on the process of rank zero only; on all others it returns None."""

    @functools.wraps(function)
    def on_rank_zero(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        return function(*args, **kwargs) if _accelerate.process_state().is_main_process else None

    return on_rank_zero


def local_process_zero_only(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """Make a function run on the first process of each machine only; on all others it returns None."""

    @functools.wraps(function)
    def on_first_of_machine(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        return function(*args, **kwargs) if _accelerate.process_state().is_local_main_process else None

    return on_first_of_machine


@contextmanager
def local_process_zero_first() -> Generator[None]:
    """Let the first process of each machine run the block before the others, for example to download a dataset.

    Example:
        >>> with local_process_zero_first():
        ...     print("prepared once, then read by all")
        prepared once, then read by all
    """
    state = _accelerate.process_state()
    if not state.is_local_main_process:
        state.wait_for_everyone()
    try:
        yield
    finally:
        # Also when the block raised: the others must not wait for a process that has given up.
        if state.is_local_main_process:
            state.wait_for_everyone()
