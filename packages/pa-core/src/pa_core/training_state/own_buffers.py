"""Buffers in which a process differs from the first one, such as a queue of what each process has computed."""

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
    """Returns what a training state has to hold for each process of modules whose buffers no exchange makes equal.

    These are modules that no optimizer trains, the loss function, and models in a run that does not exchange their
    buffers. A buffer that is too large to be collected on the first process is named in one warning, and so are weights
    that nothing trains and that differ all the same.
    """

    def __init__(self) -> None:
        self._has_warned = False
        self._has_compared = False

    def capture(self, run: ResumableRun, shares_buffers: bool) -> dict[str, Tensor]:
        """Return the buffers in which this process differs from the first one, by place; every process must call this.

        Args:
            run: The run.
            shares_buffers: Whether all processes have the buffers of the models in common.
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
                f"{shown_places(large)} differ between the processes, and are too large for each process to have its "
                "own in a training state: a resumed run has what process 0 had. If later steps need "
                "them, keep them equal, as with trainer.gather(...)."
            )
        return {
            place: buffers[place].detach().to("cpu", copy=True)
            for place, of_each in differing.items()
            if place in buffers and place not in large and of_each[0] != of_each[rank]
        }


def digests_of_own_buffers(run: ResumableRun, *, shares_buffers: bool) -> dict[str, list[str | None]]:
    """Return digests of the buffers in which processes differ by design, by place; every process must call this.

    Args:
        run: The run.
        shares_buffers: Whether all processes have the buffers of the models in common.

    Returns:
        The same on all processes: of each buffer the digests in the order of the ranks, None where one lacks it.
    """
    return _compare(_buffers(run, of_models=not shares_buffers), _digest)


def restore_own_buffers(run: ResumableRun, stored: Mapping[str, Tensor | StoredTensor]) -> None:
    """Put back what ``OwnBuffers.capture`` returned, over what the first process had.

    Args:
        run: The run.
        stored: What this process stored, by place.
    """
    buffers = _buffers(run, of_models=True) if stored else {}
    with torch.no_grad():
        for place, one in stored.items():
            if place in buffers and tuple(buffers[place].shape) == tuple(one.shape):
                StoredTensor.of(one).read_into(buffers[place])


@contextmanager
def buffers_of_first_process(run: ResumableRun, *, shares_buffers: bool) -> Generator[None]:
    """Within the context, all processes have the buffers of the first one, but a loss function keeps its own.

    Every process must enter it. Afterwards, each has its own again.

    Args:
        run: The run, with its modules on the device.
        shares_buffers: Whether all processes have the buffers of the models in common.
    """
    modules = _modules(run, of_models=not shares_buffers)
    own = {} if distributed.num_processes() == 1 else _buffers_of(modules)
    kept = {place: one.detach().clone() for place, one in own.items()}
    broadcast_tensors(own.values())
    try:
        yield
    finally:
        with torch.no_grad():
            for place, one in _buffers_of(modules).items():
                if place in kept:
                    one.copy_(kept[place])


def _compare(tensors: Mapping[str, Tensor], digest: Callable[[Tensor], _T]) -> dict[str, list[_T | None]]:
    """Return the digests of tensors that are not the same on all processes, in the order of the ranks."""
    if distributed.num_processes() == 1 or not tensors:
        return {}
    of_all = distributed.gather_objects({place: digest(one.detach()) for place, one in tensors.items()})
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
        f"{name}.{inner}": one
        for name, module in modules.items()
        for inner, one in module.named_buffers(remove_duplicate=False)
        if one.layout is torch.strided and not (is_sharded(one) or one.is_meta)
    }


def _name_differing_weights(run: ResumableRun) -> None:
    """Warn if modules that no optimizer trains have other weights on some processes, though they began with the same.

    A state has what the first process has: otherwise, each process would have to write a whole model.
    """
    weights = {
        place: one
        for place, one in _untrained_weights(run)
        if one.layout is torch.strided and not (is_sharded(one) or one.is_meta)
    }
    differing = [*_compare(weights, _sum_of_bits)]
    if differing and distributed.rank() == 0:
        warn_user(
            f"{shown_places(differing)} differ between the processes, though no optimizer trains them. A training "
            "state has what process 0 has, and a resumed run gives it to all processes. Change them in the same way on "
            "each process, or make them buffers: each process gets its own buffers back."
        )


def _untrained_weights(run: ResumableRun) -> Iterator[tuple[str, Tensor]]:
    trained = {id(one) for optimizer in run.named_optimizers().values() for one in parameters_of(optimizer)}
    for name, module in modules_of(run).items():
        if trained.isdisjoint(map(id, parameters_of_module(module))):
            for inner, one in module.named_parameters():
                yield f"{name}.{inner}", one


def _sum_of_bits(tensor: Tensor) -> int:
    """A number that another value anywhere changes; on the device, as a frozen model may be as large as it can hold."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    sums = [_as_numbers(piece).sum() for piece in torch.split(flat, _PIECE)]
    return int(torch.stack(sums).sum()) if sums else 0


def _as_numbers(piece: Tensor) -> Tensor:
    """Bytes, eight of them as a number."""
    missing = -len(piece) % _WORD
    is_aligned = missing == 0 and piece.storage_offset() % _WORD == 0
    return (piece if is_aligned else nn.functional.pad(piece, (0, missing))).view(torch.int64)
