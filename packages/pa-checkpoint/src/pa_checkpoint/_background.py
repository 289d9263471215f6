"""Saving while the training continues: a snapshot of the tensors in host memory, and a thread that writes it."""

from __future__ import annotations

import atexit
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from pa_checkpoint._encoding import Encoded
from pa_checkpoint._tensor_memory import memory_of

__all__ = ["BackgroundWriter", "HostPool"]


class BackgroundWriter:
    """Runs one job at a time in its own thread, and reports its failure once.

    A job that is running when the interpreter ends is completed first; if it fails and the failure was not raised
    before the end, its traceback is printed.

    Example:
        >>> done = []
        >>> writer = BackgroundWriter()
        >>> writer.submit(lambda: done.append("first"))
        >>> writer.submit(lambda: done.append("second"))
        >>> writer.wait()
        >>> done
        ['first', 'second']
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Start a job, after waiting for the previous one.

        Raises:
            BaseException: What the previous job raised, if that was not raised yet; the new job is not started then.
        """
        self.wait()
        # A thread for each job, and no daemon: the interpreter waits for it, and none is left waiting for work.
        thread = threading.Thread(target=self._run, args=(job,), name="pa_checkpoint background writer")
        with _ctrl_c_held_back():
            thread.start()
            self._thread = thread

    def wait(self) -> None:
        """Return when no job is running.

        Raises:
            BaseException: What the job raised, if that was not raised yet.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_error()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # whatever it is, the thread that waits for the job is told
            self._error = error
            atexit.register(self._print_error)

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            atexit.unregister(self._print_error)
            raise error

    def _print_error(self) -> None:
        traceback.print_exception(self._error)


@contextmanager
def _ctrl_c_held_back() -> Generator[None]:
    """Let Ctrl-C wait for the end of the context: it would leave a thread of which nobody can tell whether it runs."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []
    try:
        signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


class HostPool:
    """Buffers in the host's memory that take a snapshot of tensors, the same ones for every snapshot.

    Allocating and first touching the memory takes longer than copying, so it is done once. What comes from CUDA is
    copied to pinned memory, by as many copies at a time as the device makes, with one wait at the end.

    A snapshot is overwritten by the next one: have any reader of it finish first, with ``BackgroundWriter.wait``.

    Example:
        >>> from pa_checkpoint._encoding import encode
        >>> weight, pool = torch.zeros(2), HostPool()
        >>> snapshot = pool.copy({"model": encode({"weight": weight}, "model")})
        >>> weight += 1
        >>> snapshot["model"].tensors
        {'model/weight': tensor([0., 0.])}
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Tensor] = {}

    def copy(self, encoded: Mapping[str, Encoded]) -> dict[str, Encoded]:
        """Copy all tensors; those that share their memory share it in the copy as well.

        Of sharded tensors, those pieces are copied that this process writes. Returns when the copies are complete, so
        the originals may change at once.
        """
        previous, self._buffers = self._buffers, {}
        copies: dict[Hashable, Tensor] = {}
        snapshot: dict[str, Encoded] = {}
        for part, value in encoded.items():
            tensors: dict[str, Tensor] = {}
            for name, tensor in value.all_tensors().items():
                memory = memory_of(tensor)
                if memory not in copies:
                    buffer = _buffer_for(tensor, previous.get((part, name)))
                    self._buffers[part, name] = buffer
                    size = tensor.numel() * tensor.element_size()
                    copies[memory] = buffer[:size].view(tensor.dtype).view(tensor.shape)
                    copies[memory].copy_(tensor, non_blocking=_is_on_cuda(tensor))
                tensors[name] = copies[memory]
            snapshot[part] = value.with_copies(tensors)
        for device in {tensor.device for value in encoded.values() for tensor in value.all_tensors().values()}:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return snapshot


def _buffer_for(tensor: Tensor, buffer: Tensor | None) -> Tensor:
    """The buffer that was used before, if the tensor goes into it."""
    size = tensor.numel() * tensor.element_size()
    pinned = _is_on_cuda(tensor)
    if buffer is not None and buffer.numel() >= size and buffer.is_pinned() == pinned:
        return buffer
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)


def _is_on_cuda(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"
