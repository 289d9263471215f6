"""Collective operations of the processes of a run: sums, gathered values and errors.

The functions work without a trainer, and on one process without a process group.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

import pa_distributed
from pa_core import _accelerate
from pa_core._tensors import buffers_of_module, is_sharded, parameters_of_module, reshard
from pa_core.errors import ArgumentTypeError, ConfigurationError, UnsupportedConfigurationError
from pa_core.types import TensorsT
from pa_distributed import prepare_gloo

_R = TypeVar("_R")

_EXCHANGED_TYPES = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
}

# torch annotates its collectives only in part
_collectives: Any = dist


def num_processes() -> int:
    """Return the total number of processes of the run across all machines; 1 without a launcher.

    Use it in code without a trainer; ``trainer.num_processes`` is the same number. If no trainer has been created yet,
    call ``connect()`` on every process first: until the processes are connected, the result is 1. This function does
    not communicate.

    Returns:
        A whole number of at least 1.

    Example:
        >>> from pa_core.distributed import connect, num_processes
        >>> connect()
        >>> num_processes()  # without a launcher
        1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process among all processes of the run, from 0 to ``num_processes() - 1``.

    Use it in code without a trainer; ``trainer.process_index`` is the same number. If no trainer has been created yet,
    call ``connect()`` on every process first: until the processes are connected, the result is 0 on each of them. This
    function does not communicate.

    Returns:
        A whole number; 0 without a launcher.

    Example:
        >>> from pa_core.distributed import connect, rank
        >>> connect()
        >>> rank()  # without a launcher
        0
    """
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _is_alone() -> bool:
    """Return whether the run has a single process, after connecting the processes of a launcher.

    A trainer connects them too; this is for functions that are called before the first trainer is created.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() == 1
    launched = os.environ.get("WORLD_SIZE", "1")
    if launched == "1":
        return True
    _accelerate.process_state()
    if num_processes() > 1:
        prepare_gloo()
        return False
    raise UnsupportedConfigurationError(
        "This process is not connected with the other processes of the launcher.",
        given=f"WORLD_SIZE={launched}, while accelerate runs 1 process",
        do="Create the trainer, or call this function, before PartialState() or Accelerator() of accelerate.",
    )


def connect() -> None:
    """Connect the processes that a launcher started, so that they can exchange values before the first trainer exists.

    The first trainer does the same, so you need this function only in code that runs before that. Call it on every
    process. ``gather_objects``, ``gather``, ``world_process_zero_only`` and the other decorators connect by themselves;
    ``rank`` and ``num_processes`` do not. Each process waits here until all have called it for the first time; later
    calls have no effect and wait for nothing, so it cannot be used as a barrier. Without a launcher, it does nothing.
    The device and the backend (NCCL on CUDA, gloo on a CPU) follow from the launcher's settings. A trainer that you
    create later has to use the same device and backend.

    Example:
        >>> from pa_core.distributed import connect, rank
        >>> connect()
        >>> rank()  # without a launcher
        0
    """
    _accelerate.process_state()


def sum_over_processes(values: Tensor) -> Tensor:
    """Return the sum of a small tensor over all processes, for example of counters; every process must call this.

    Each process waits until the others have called it. Use it for counts and sums. For tensors with different numbers
    of rows, use ``gather``; for metrics of a run, use ``trainer.log``, which sends all of its values together.

    Args:
        values: A tensor of the same shape and dtype on each process, on a device that the process group's backend
            supports: CUDA for NCCL, the CPU for gloo.

    Returns:
        A tensor of the same shape, dtype and device, without a graph, the same on every process. On one process, it is
        ``values`` itself.

    Raises:
        UnsupportedConfigurationError: A launcher started several processes, but they cannot be connected.

    Example:
        >>> import torch
        >>> from pa_core.distributed import sum_over_processes
        >>> correct_and_total = torch.tensor([3.0, 8.0])
        >>> sum_over_processes(correct_and_total)  # on one process
        tensor([3., 8.])
    """
    if _is_alone():
        return values
    # In gloo, all_reduce takes half as long again as all_gather.
    return values_of_all(values).sum(0)


def values_of_all(values: Tensor) -> Tensor:
    """Return the values of all processes, stacked in the order of the ranks; every process must call this.

    Args:
        values: A tensor of the same shape on each process, on the device of the run.
    """
    if _is_alone():
        return values[None]
    return torch.stack(_all_gather(values))


def _all_gather(mine: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, which have the same shape."""
    mine = mine.contiguous()
    of_all = [torch.empty_like(mine) for _ in range(num_processes())]
    _collectives.all_gather([*map(_exchanged, of_all)], _exchanged(mine))
    return of_all


def _exchanged(tensor: Tensor) -> Tensor:
    """View the memory as a dtype that each backend exchanges; gloo lacks small integers and 8-bit floats."""
    is_known = tensor.dtype in _EXCHANGED_TYPES or tensor.is_complex()
    return tensor if is_known else tensor.view(-1).view(torch.uint8)


def broadcast_buffers(module: nn.Module) -> None:
    """Copy the buffers of rank zero to every process, for example the running statistics of BatchNorm.

    Every process must call this, and waits for the others. Trainers call it in each update; call it yourself before you
    use buffers that the processes changed separately, for example in a loop without a trainer. ``broadcast_weights``
    also copies the parameters. The buffers are changed in place. Buffers of the same dtype are sent in a single
    message, so that the cost does not grow with the number of layers. On one process it has no effect.

    Args:
        module: A module with buffers of the same shapes on every process, on a device that the process group's backend
            supports: CUDA for NCCL, the CPU for gloo. The buffers of submodules and non-persistent buffers are
            included.

    Raises:
        UnsupportedConfigurationError: A launcher started several processes, but they cannot be connected.

    Example:
        >>> import torch
        >>> from pa_core.distributed import broadcast_buffers
        >>> layer = torch.nn.BatchNorm1d(2)
        >>> broadcast_buffers(layer)  # on one process, nothing changes
        >>> layer.running_mean
        tensor([0., 0.])
    """
    if not _is_alone():
        broadcast_tensors(buffers_of_module(module))


def broadcast_weights(module: nn.Module) -> None:
    """Copy the parameters and the buffers of rank zero to every process, except for sharded tensors.

    Every process must call this, and waits for the others. Trainers call it for the modules that they train; call it
    for other modules that each process has initialized differently, for example a teacher with random weights. The
    tensors are changed in place; a message is sent for each dtype. Sharded tensors, which are split over the processes,
    are not changed. On one process it has no effect.

    Args:
        module: A module with parameters and buffers of the same shapes on every process, on a device that the process
            group's backend supports: CUDA for NCCL, the CPU for gloo.

    Raises:
        UnsupportedConfigurationError: A launcher started several processes, but they cannot be connected.

    Example:
        >>> import torch
        >>> from pa_core.distributed import broadcast_weights
        >>> teacher = torch.nn.Linear(2, 1)
        >>> broadcast_weights(teacher)  # now the same on every process
    """
    if not _is_alone():
        reshard(module)
        tensors = (*parameters_of_module(module), *buffers_of_module(module))
        broadcast_tensors([tensor for tensor in tensors if not is_sharded(tensor)])


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Copy the values of rank zero to every process; tensors of the same dtype are sent together.

    Updates call it, so it does not check whether the other processes call it too.

    Args:
        tensors: Tensors of the same shapes on each process, in the same order, on the device of the run.
    """
    if num_processes() == 1:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    with torch.no_grad():
        for tensors_of_dtype in by_dtype.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors_of_dtype])
            _collectives.broadcast(_exchanged(flat), src=0)
            pieces = torch.split(flat, [tensor.numel() for tensor in tensors_of_dtype])
            for tensor, piece in zip(tensors_of_dtype, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))


def gather(data: TensorsT, padding_value: float | None = None, *, with_gradient: bool = False) -> TensorsT:
    """Return the tensors of all processes, concatenated along the first dimension in the order of the ranks.

    Every process must call this, and waits for the others. Use it in code without a trainer; within a run,
    ``trainer.gather`` does the same, and ``Run.gather`` leaves out padding batches. For Python objects, for example
    texts, use ``gather_objects``; for sums, ``sum_over_processes`` sends less.

    Args:
        data: A tensor on the device of the run (CUDA for NCCL, the CPU for gloo), or a nested list, tuple or mapping of
            tensors. The first dimension may differ between processes; a tensor without dimensions counts as a row.
        padding_value: None, the default, requires the other dimensions to be equal, so that no value of your data can
            be mistaken for padding. If you pass a number, these dimensions are padded with it to the largest size on
            any process, and rows that consist only of this number are removed, including such rows of your data. So
            choose a value that your data does not contain. A process whose rows are all padding may have a tensor of a
            different number of dimensions.
        with_gradient: Whether gradients flow through the result; False, the default, detaches it, because metrics need
            none. With True, the gradient of a row is the sum over all processes of the gradients of their losses, and
            every process must run a backward pass through the result.

    Returns:
        The same structure; each tensor has the rows of all processes, on the device of this process, and is the same on
        every process. On one process these are the rows of ``data``.

    Raises:
        ArgumentTypeError: ``data`` contains an object that is neither a tensor nor a container of tensors.
        ConfigurationError: The tensors of the processes do not fit together.
        UnsupportedConfigurationError: A launcher started several processes, but they cannot be connected.

    Example:
        >>> import torch
        >>> from pa_core.distributed import gather
        >>> gather({"score": torch.tensor([0.5, 1.0])})  # on one process
        {'score': tensor([0.5000, 1.0000])}
    """
    with torch.set_grad_enabled(with_gradient and torch.is_grad_enabled()):
        return cast("TensorsT", _map_tensors(partial(_gather_tensor, padding_value=padding_value), data))


def gather_without_rows(data: TensorsT, padding_value: float | None = None, *, with_gradient: bool = False) -> TensorsT:
    """Return the tensors of the other processes, which call ``gather``, without rows of this process.

    Args:
        data: The tensors that this process would have gathered, which determine the structure.
        padding_value: The value of padding; see ``gather``.
        with_gradient: Whether gradients flow through the result; see ``gather``.

    Raises:
        ArgumentTypeError: ``data`` contains an object that is neither a tensor nor a container of tensors.
        ConfigurationError: The tensors of the processes do not fit together.
    """
    without = _map_tensors(lambda tensor: tensor[:0] if tensor.dim() else tensor.reshape(1)[:0], data)
    return gather(cast("TensorsT", without), padding_value, with_gradient=with_gradient)


def _map_tensors(function: Callable[[Tensor], Tensor], data: object) -> Any:
    """Apply a function to each tensor in a nested container."""
    if isinstance(data, Tensor):
        return function(data)
    container: Any = data
    if isinstance(data, Mapping):
        return type(container)({key: _map_tensors(function, value) for key, value in container.items()})
    if isinstance(data, tuple) and hasattr(container, "_fields"):
        return type(container)(*(_map_tensors(function, value) for value in container))
    if isinstance(data, (list, tuple)):
        return type(container)(_map_tensors(function, value) for value in container)
    raise ArgumentTypeError(
        f"Only tensors, and nested lists, tuples and mappings of them, can be gathered, got {type(data).__name__}. Use "
        "gather_objects for other Python objects."
    )


def _gather_tensor(tensor: Tensor, padding_value: float | None) -> Tensor:
    rows = tensor if torch.is_grad_enabled() else tensor.detach()
    rows = rows.contiguous() if rows.dim() else rows.reshape(1)
    if padding_value is not None:
        rows = remove_padding(rows, padding_value)
    if _is_alone():
        return rows
    shapes = _shapes_of_all(rows)
    fitting = shapes if padding_value is None else _without_placeholders(shapes)
    _require_fitting(fitting, shapes, padding_value)
    padded = rows.new_full([max(sizes) for sizes in zip(*fitting, strict=True)], padding_value or 0)
    if len(rows) > 0:
        padded[tuple(slice(size) for size in rows.shape)] = rows
    elif rows.requires_grad:  # the backward pass must include this operation anyway
        padded = padded + rows.sum()
    gathered = cast("tuple[Tensor, ...]", cast("Any", _Gather).apply(padded))
    return torch.cat([piece[: shape[0]] for piece, shape in zip(gathered, shapes, strict=True)])


def remove_padding(padded_tensor: Tensor, pad_value: float) -> Tensor:
    """Remove the rows of a tensor that are padding.

    A row, which is the content at an index of the first dimension, is padding if every element of it is the padding
    value. So choose a value that your data does not contain. Use it for tensors that you padded yourself, for example
    sequences of different lengths; the result of ``trainer.gather`` with a padding value has no padding. This function
    does not communicate.

    Args:
        padded_tensor: A tensor of shape ``(rows, ...)``, with at least one dimension, on any device.
        pad_value: The value of the padding; NaN is possible.

    Returns:
        A new tensor of shape ``(remaining rows, ...)``, in the same order, with the same dtype and device.

    Example:
        >>> import torch
        >>> from pa_core.distributed import remove_padding
        >>> remove_padding(torch.tensor([[1, -100], [-100, -100], [2, 3]]), -100)
        tensor([[   1, -100],
                [   2,    3]])
        >>> remove_padding(torch.tensor([1, 2, -1, 3, -1]), -1)
        tensor([1, 2, 3])
    """
    is_padding = padded_tensor.isnan() if math.isnan(pad_value) else padded_tensor == pad_value
    if padded_tensor.dim() > 1:
        is_padding = is_padding.flatten(start_dim=1).all(dim=1)
    return padded_tensor[~is_padding]


class _Gather(torch.autograd.Function):
    """Gathers tensors of the same shape; the gradient of each is the sum over the processes."""

    @staticmethod
    @override
    def forward(ctx: Any, mine: Tensor) -> tuple[Tensor, ...]:
        return tuple(_all_gather(mine))

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch leaves the decorator untyped
        summed = torch.stack(gradients)
        _collectives.all_reduce(summed)
        return summed[rank()]


def tensors_with_gradient(data: object) -> list[Tensor]:
    """Return the tensors in nested containers that require gradients.

    Args:
        data: Tensors, or containers of them, in any form that ``gather`` accepts.
    """
    found: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _map_tensors(collect, data)
    return [tensor for tensor in found if tensor.requires_grad]


def tensors_in_graph(loss: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that are in the graph of a loss.

    Args:
        loss: The loss.
        tensors: Results of operations.

    Example:
        >>> weight = torch.ones(1, requires_grad=True)
        >>> used, unused = weight * 2, weight * 3
        >>> tensors_in_graph(used.sum(), [used, unused]) == [used]
        True
    """
    seen: set[Any] = set()
    nodes: list[Any] = [loss.grad_fn] if tensors else []
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
    return [tensor for tensor in tensors if tensor.grad_fn in seen]


_MOST_DIMENSIONS = 16


def _shapes_of_all(tensor: Tensor) -> list[list[int]]:
    """Return the shapes of the tensors of all processes, whose numbers of dimensions may differ."""
    sizes = [tensor.dim(), *tensor.shape] + [0] * (_MOST_DIMENSIONS - tensor.dim())
    of_each = cast("list[list[int]]", values_of_all(torch.tensor(sizes, device=tensor.device)).tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
    return [shape[:dimensions] for dimensions, *shape in of_each]


def _without_placeholders(shapes: list[list[int]]) -> list[list[int]]:
    """Leave out shapes of tensors without rows that have a different number of dimensions from the others."""
    dimensions = max(len(shape) for shape in [shape for shape in shapes if shape[0] > 0] or shapes)
    return [shape for shape in shapes if shape[0] > 0 or len(shape) == dimensions]


def _require_fitting(fitting: list[list[int]], shapes: list[list[int]], padding_value: float | None) -> None:
    """Raise the same error on all processes for shapes with which a collective would hang or mix up values."""
    same_dimensions = len({len(shape) for shape in fitting}) == 1
    if same_dimensions and (padding_value is not None or len({tuple(shape[1:]) for shape in fitting}) == 1):
        return
    by_rank = ", ".join(f"{shape} on rank {number}" for number, shape in enumerate(shapes))
    raise ConfigurationError(
        "The tensors of the processes cannot be concatenated along the first dimension.",
        given=f"tensors of shape {by_rank}",
        do="Pass padding_value to gather, which pads the other dimensions."
        if same_dimensions
        else "Give the tensor the same number of dimensions on each process, even without rows.",
    )


def gather_objects(value: _R) -> list[_R]:
    """Return the Python objects of all processes, in the order of the ranks, for example lists of texts.

    Every process must call this, and waits for the others. The objects are pickled for the exchange; for tensors,
    ``gather`` is faster. It works without a trainer: if none exists yet, it connects the processes of a launcher, as
    ``connect()`` does.

    Args:
        value: The object of this process, which can be pickled. The objects of the processes may differ in type and
            size.

    Returns:
        A list with an object for each process, the same on every process. On one process, it is ``[value]``, with the
        object itself.

    Raises:
        UnsupportedConfigurationError: A launcher started several processes, but they cannot be connected.
        OtherProcessError: Another process has ended, or this process runs a function that the others do not run.

    Example:
        >>> from pa_core import gather_objects
        >>> per_process = gather_objects(["cat", "dog"])  # on one process
        >>> [text for texts in per_process for text in texts]
        ['cat', 'dog']
    """
    return [value] if _is_alone() else pa_distributed.gather_objects(value)


def raise_on_all(problem: Exception | None) -> None:
    """Raise the error of any process on all of them; every process must call this.

    Args:
        problem: The error of this process, or None.
    """
    for error in gather_objects(problem):
        if error is not None:
            raise error
