"""Copies of tensors that are made while training continues, up to the moment at which it changes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from pa_core._torch import version_of

__all__ = ["LateCopies", "differ"]

_BLOCK = 1 << 22  # bytes: little enough to wait for, and enough for the thread not to ask for the GIL all the time
_BETWEEN_PROBES = 1 << 17  # bytes
_SIGN_OF_LIFE = 0.2  # seconds
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class LateCopies:
    """Fills copies of tensors in several threads: in the background, and in that which waits for them.

    Args:
        pairs: Tensors on the CPU, each with the one that takes its values.
        probed: The tensors of which samples are kept, to see even changes that torch does not note.

    Example:
        >>> weight, copy = torch.ones(2**16), torch.zeros(2**16)
        >>> copies = LateCopies([(weight, copy)])
        >>> copies.finish()
        True
        >>> copy.equal(weight)
        True
    """

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], probed: Sequence[Tensor] = ()) -> None:
        self._versions = [(source, version_of(source)) for source, _ in pairs]
        self._probes = [(tensor, _probe(tensor)) for tensor in probed if tensor.is_contiguous()]
        self._blocks = (block for pair in pairs for block in _blocks(*pair))
        self._lock = threading.Lock()
        self._num_under_way = 0
        self._is_exhausted = False
        self._are_complete, self._is_judged = threading.Event(), threading.Event()
        self._are_exact = True

    def finish(self) -> bool:
        """Return when everything is copied, and whether nobody has changed the tensors since the copies were begun.

        The thread that may change the tensors calls this before it does.
        """
        self._complete()
        if not self._is_judged.is_set():
            self._are_exact = all(version_of(tensor) == version for tensor, version in self._versions) and all(
                _probe(tensor).equal(before) for tensor, before in self._probes
            )
            self._is_judged.set()
        return self._are_exact

    def wait(self) -> bool:
        """Copy in the background, and return what ``finish`` has returned in the other thread."""
        self._complete()
        while not self._is_judged.wait(_SIGN_OF_LIFE):
            if not threading.main_thread().is_alive():  # nobody is left to change anything
                return self.finish()
        return self._are_exact

    def _complete(self) -> None:
        """Copy what no other thread has begun to copy, and wait for what others have begun."""
        while (copy := self._next()) is not None:
            try:
                copy()
            finally:
                self._end()
        self._are_complete.wait()

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            block = next(self._blocks, None)
            if block is not None:
                self._num_under_way += 1
                return block
            self._is_exhausted = True
            if self._num_under_way == 0:
                self._are_complete.set()
            return None

    def _end(self) -> None:
        with self._lock:
            self._num_under_way -= 1
            if self._num_under_way == 0 and self._is_exhausted:
                self._are_complete.set()


def _blocks(source: Tensor, copy: Tensor) -> Iterator[Callable[[], object]]:
    if not source.is_contiguous():
        yield partial(copy.copy_, source)
        return
    # not with torch's threads, which those of training would have to share the cores with
    import numpy as np

    values, copied = _bytes(source).numpy(), _bytes(copy).numpy()
    for start in range(0, len(values), _BLOCK):
        yield partial(np.copyto, copied[start : start + _BLOCK], values[start : start + _BLOCK])


def differ(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor on the CPU differs from its contiguous copy in some bit."""
    return not _bits(tensor.contiguous()).equal(_bits(copy))


def _probe(tensor: Tensor) -> Tensor:
    return _bits(tensor)[:: _BETWEEN_PROBES // tensor.element_size()].clone()


def _bits(tensor: Tensor) -> Tensor:
    """The elements as integers, of which bit-for-bit identical ones are equal."""
    return tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
