"""Buffers that differ between processes, for example a queue of values that each process computed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

import torch
from torch import Tensor, nn

from pa_checkpoint import StoredTensor
from pa_core import distributed
from pa_core._tensors import bytes_of, is_sharded, parameters_of, parameters_of_module
from pa_core.distributed.collectives import broadcast_tensors
from pa_core.training_state.script_state import shown_places
from pa_core.training_state.snapshotable import ResumableRun, modules_of
from pa_core.user_warnings import warn_user

_T = TypeVar("_T", int, str)

_MOST_NUMBERS = 2**20
_PIECE: Final = 2**24
_WORD: Final = 8


class OwnBuffers:
    """Returns the buffers that a training state must store for each process, because they are not exchanged.

    These buffers belong to modules without an optimizer, the loss function, and models in a run that does not exchange
    their buffers. A buffer that is too large to be collected on the first process is named in a warning, and so are
    weights without an optimizer that differ between processes.
    """

    def __init__(self) -> None:
        self._has_warned = False
        self._has_compared = False

    def capture(self, run: ResumableRun, shares_buffers: bool) -> dict[str, Tensor]:
        """Return the buffers in which this process differs from the first, by place; every process must call this.

        Args:
            run: The run.
            shares_buffers: Whether all processes have the same buffers of the models.
        """
        if distributed.num_processes() == 1:
            return {}
        if not self._has_compared:
            self._has_compared = True
            _name_differing_weights(run)
        buffers, rank = _buffers(run, of_models=not shares_buffers), distributed.rank()
        differing = _compare(buffers, _digest)
        large = [place for place in differing if place in buffers and buffers[place].numel() > _MOST_NUMBERS]
        if large and not self._has_warned and rank == 0:
            self._has_warned = True
            warn_user(
                f"{shown_places(large)} differ between the processes, and are too large to be stored for each process "
                "in a training state: a resumed run has the values of process 0. If later steps need "
                "them, keep them equal, for example with trainer.gather(...)."
            )
        return {
            place: buffers[place].detach().to("cpu", copy=True)
            for place, of_each in differing.items()
            if place in buffers and place not in large and of_each[0] != of_each[rank]
        }


def digests_of_own_buffers(run: ResumableRun, *, shares_buffers: bool) -> dict[str, list[str | None]]:
    """Return digests of the buffers that may differ between processes, by place; every process must call this.

    Args:
        run: The run.
        shares_buffers: Whether all processes have the same buffers of the models.

    Returns:
        The digests of each buffer in the order of the ranks, None if a process does not have it; the same on all
        processes.
    """
    return _compare(_buffers(run, of_models=not shares_buffers), _digest)


def restore_own_buffers(run: ResumableRun, stored: Mapping[str, Tensor | StoredTensor]) -> None:
    """Restore the result of ``OwnBuffers.capture``, after the buffers of the first process.

    Args:
        run: The run.
        stored: The stored buffers of this process, by place.
    """
    buffers = _buffers(run, of_models=True) if stored else {}
    with torch.no_grad():
        for place, buffer in stored.items():
            if place in buffers and tuple(buffers[place].shape) == tuple(buffer.shape):
                StoredTensor.of(buffer).read_into(buffers[place])


@contextmanager
def buffers_of_first_process(run: ResumableRun, *, shares_buffers: bool) -> Generator[None]:
    """Copy the buffers of the first process to all others within the context, except the buffers of a loss function.

    Every process must enter the context. Afterwards, each process has its own buffers again.

    Args:
        run: The run, with its modules on the device.
        shares_buffers: Whether all processes have the same buffers of the models.
    """
    modules = _modules(run, of_models=not shares_buffers)
    own = {} if distributed.num_processes() == 1 else _buffers_of(modules)
    kept = {place: buffer.detach().clone() for place, buffer in own.items()}
    broadcast_tensors(own.values())
    try:
        yield
    finally:
        with torch.no_grad():
            for place, buffer in _buffers_of(modules).items():
                if place in kept:
                    buffer.copy_(kept[place])


def _compare(tensors: Mapping[str, Tensor], digest: Callable[[Tensor], _T]) -> dict[str, list[_T | None]]:
    """Return the digests of tensors that are not the same on all processes, in the order of the ranks."""
    if distributed.num_processes() == 1 or not tensors:
        return {}
    of_all = distributed.gather_objects({place: digest(tensor.detach()) for place, tensor in tensors.items()})
    places = dict.fromkeys(place for each in of_all for place in each)
    by_place: dict[str, list[_T | None]] = {place: [each.get(place) for each in of_all] for place in places}
    return {place: of_each for place, of_each in by_place.items() if len(set(of_each)) > 1}


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(bytes_of(tensor)).hexdigest()


def _buffers(run: ResumableRun, *, of_models: bool) -> dict[str, Tensor]:
    left_out = () if of_models else run.named_models()
    return _buffers_of({name: module for name, module in modules_of(run).items() if name not in left_out})


def _modules(run: ResumableRun, *, of_models: bool) -> dict[str, nn.Module]:
    return {**(run.named_models() if of_models else {}), **run.untrained_modules()}


def _buffers_of(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{name}.{inner}": buffer
        for name, module in modules.items()
        for inner, buffer in module.named_buffers(remove_duplicate=False)
        if buffer.layout is torch.strided and not (is_sharded(buffer) or buffer.is_meta)
    }


def _name_differing_weights(run: ResumableRun) -> None:
    """Warn if modules without an optimizer have different weights on the processes, which began with the same weights.

    A state has only the weights of the first process, because otherwise each process would have to write a whole model.
    """
    weights = {
        place: weight
        for place, weight in _untrained_weights(run)
        if weight.layout is torch.strided and not (is_sharded(weight) or weight.is_meta)
    }
    differing = [*_compare(weights, _sum_of_bits)]
    if differing and distributed.rank() == 0:
        warn_user(
            f"{shown_places(differing)} differ between the processes, though no optimizer trains them. A training "
            "state has the values of process 0, and a resumed run copies them to all processes. Change them equally on "
            "each process, or make them buffers: each process gets its own buffers back."
        )


def _untrained_weights(run: ResumableRun) -> Iterator[tuple[str, Tensor]]:
    trained = {id(parameter) for optimizer in run.named_optimizers().values() for parameter in parameters_of(optimizer)}
    for name, module in modules_of(run).items():
        if trained.isdisjoint(map(id, parameters_of_module(module))):
            for inner, parameter in module.named_parameters():
                yield f"{name}.{inner}", parameter


def _sum_of_bits(tensor: Tensor) -> int:
    """Return a number that changes with any value, computed on the device, because a frozen model may be large."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    sums = [_as_numbers(piece).sum() for piece in torch.split(flat, _PIECE)]
    return int(torch.stack(sums).sum()) if sums else 0


def _as_numbers(piece: Tensor) -> Tensor:
    """View bytes as integers of 64 bits."""
    missing = -len(piece) % _WORD
    is_aligned = missing == 0 and piece.storage_offset() % _WORD == 0
    return (piece if is_aligned else nn.functional.pad(piece, (0, missing))).view(torch.int64)
