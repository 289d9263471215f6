"""Keeps the elements of tensors and arrays, to restore them in place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from pa_data._torch import hooks_of
from pa_data.state_search import mark_of

__all__ = ["KeptTensors"]


class _Storage(NamedTuple):
    storage: torch.UntypedStorage
    copy: torch.UntypedStorage


class _Alias(NamedTuple):
    """A tensor, and a second tensor on the same memory, whose memory nothing replaces."""

    tensor: Tensor
    alias: Tensor
    is_leaf: bool
    requires_grad: bool
    grad: Tensor | None
    hooks: list[Any]


class KeptTensors:
    """The elements of tensors and arrays by their memory, which views share.

    Args:
        most_bytes: The largest number of bytes to copy.
    """

    def __init__(self, most_bytes: int) -> None:
        self._free = most_bytes
        self._storages: dict[tuple[torch.device, int], _Storage] = {}
        self._aliases: list[_Alias] = []
        self._restores: list[Callable[[], None]] = []
        self._marks: dict[str, tuple[object, object]] = {}

    def keep(self, place: str, tensor: Tensor) -> None:
        """Keep a tensor and its gradient.

        Args:
            place: The place of the tensor.
            tensor: The tensor.
        """
        is_plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout is torch.strided
        if tensor.is_meta or tensor.is_nested or not is_plain:
            self._keep_other(tensor)
        elif self._keep_memory(place, tensor):
            grad = tensor.grad if tensor.is_leaf else None
            if grad is not None:
                self.keep(f"{place}.grad", grad)
            hooks = [key for hooks in hooks_of(tensor) for key in hooks]
            self._aliases.append(_Alias(tensor, tensor.data, tensor.is_leaf, tensor.requires_grad, grad, hooks))

    def keep_array(self, place: str, array: Any) -> None:
        """Keep a NumPy array if it is writable.

        Args:
            place: The place of the array.
            array: The array.
        """
        numpy: Any = sys.modules["numpy"]
        if not isinstance(array, numpy.ndarray) or not array.flags.writeable:
            return
        if not self._takes(place, array, array.nbytes):
            return
        copy = array.copy()

        def restore() -> None:
            differs = array.dtype.hasobject or array.tobytes() != copy.tobytes()
            if differs:
                array[...] = copy

        self._restores.append(restore)

    def restore(self) -> None:
        """Restore the elements of all tensors and arrays; a tensor that has moved to a different device stays there."""
        with torch.no_grad():
            for storage, copy in self._storages.values():
                _restore_storage(storage, copy)
            for alias in self._aliases:
                _restore_tensor(alias)
            for restore in self._restores:
                restore()

    def lost(self) -> list[str]:
        """Return the places of values that have changed but were too large to be copied."""
        return [place for place, (value, mark) in self._marks.items() if mark_of(value) != mark]

    def _keep_memory(self, place: str, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        key = storage.device, storage.data_ptr()
        if storage.nbytes() == 0 or key in self._storages:
            return True
        if not self._takes(place, tensor, storage.nbytes()):
            return False
        of_storage: Any = storage  # torch annotates its methods only in part
        self._storages[key] = _Storage(
            storage, of_storage.clone() if storage.device.type == "cpu" else of_storage.cpu()
        )
        return True

    def _keep_other(self, tensor: Tensor) -> None:
        """Keep a tensor without plain memory, for example a sparse or sharded tensor, if it can be copied."""
        with suppress(Exception), torch.no_grad():
            copy = tensor.detach().clone()

            def restore() -> None:
                with suppress(Exception):
                    tensor.copy_(copy)

            self._restores.append(restore)

    def _takes(self, place: str, value: object, nbytes: int) -> bool:
        if nbytes > self._free:
            self._marks[place] = value, mark_of(value)
            return False
        self._free -= nbytes
        return True


def _restore_storage(storage: torch.UntypedStorage, copy: torch.UntypedStorage) -> None:
    """Write the memory only if it has changed, because it may be mapped from a read-only file."""
    if storage.nbytes() == copy.nbytes() and not torch.equal(_bytes_of(storage).cpu(), _bytes_of(copy)):
        storage.copy_(copy)


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(cast("Any", storage))


def _restore_tensor(kept: _Alias) -> None:
    tensor, alias = kept.tensor, kept.alias
    for hooks in hooks_of(tensor):
        for key in hooks.keys() - set(kept.hooks):
            del hooks[key]
    if tensor.device != alias.device:
        tensor.copy_(alias)
        tensor.grad = None if kept.grad is None else kept.grad.to(tensor.device)
        return
    if kept.is_leaf and not tensor.is_leaf:
        tensor.detach_()
    if (tensor.data_ptr(), tensor.shape, tensor.stride()) != (alias.data_ptr(), alias.shape, alias.stride()):
        tensor.data = alias
    if kept.is_leaf and tensor.requires_grad != kept.requires_grad:
        tensor.requires_grad_(kept.requires_grad)
    if kept.is_leaf and tensor.grad is not kept.grad:
        tensor.grad = kept.grad
