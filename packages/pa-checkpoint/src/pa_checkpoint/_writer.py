"""Saves at once or in the background, by one process or several."""

from __future__ import annotations

import atexit
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from pa_checkpoint._checkpoint import ShareOfFirst, ShareOfOther, write_checkpoint, write_pieces
from pa_checkpoint._encoding import Encoded, JsonScalar, encode
from pa_checkpoint._errors import CheckpointError
from pa_checkpoint._files import BackgroundSave
from pa_checkpoint._folder import Folder, FolderLock
from pa_checkpoint._manifest import LinkableFiles, UnchangedTensors
from pa_checkpoint._tensor_file import memory_of
from pa_distributed import RankMessages


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


def save(path: str | Path, parts: Mapping[str, object], *, summary: Mapping[str, JsonScalar] | None = None) -> None:
    """Save a checkpoint, whole or not at all.

    It is written to a hidden folder next to its place, reaches the disk, and takes its place in one step. If anything
    fails, a full disk or an interrupt included, what was there stays. Where ``torch.distributed`` is initialized,
    every process calls this: the first one writes, each process writes its pieces of sharded tensors, and all return
    when the checkpoint is there.

    Args:
        path: Its directory: a free path, an empty folder, or a checkpoint, which is then replaced.
        parts: Tensors, numbers, strings, and dictionaries, lists, tuples and sets of them, under names that are
            identifiers, such as ``{"model": model.state_dict(), "step": 100}``.
        summary: What can be read without the tensors, see ``CheckpointInfo``. The place in the order of its folder,
            ``"sequence"``, is added if it is missing.

    Raises:
        CheckpointError: Something else is at the path, a value cannot be stored, or the disk is full; on all processes.

    Example:
        >>> import tempfile, torch
        >>> from pa_checkpoint import load
        >>> temporary = tempfile.TemporaryDirectory()
        >>> path = Path(temporary.name, "step_100")
        >>> save(path, {"model": {"weight": torch.ones(2)}, "step": 100})
        >>> load(path)["step"]
        100
        >>> temporary.cleanup()
    """
    Writer().save(path, parts, summary=summary, blocking=True)


class Writer:
    """Saves the checkpoints of a run, while it continues if that is wanted.

    A checkpoint that is saved in the background is copied to host memory first, by buffers that are used again each
    time, and written by a thread. Tensors that are as in the checkpoint before, such as a frozen model, are linked to
    the files of that one if the file system can, after their digests were compared. Where ``torch.distributed`` is
    initialized, every process has a writer and makes the same calls, as ``save`` says.

    Example:
        >>> import tempfile, torch
        >>> temporary = tempfile.TemporaryDirectory()
        >>> folder, writer, weight = Folder(temporary.name), Writer(), torch.zeros(2)
        >>> for step in (1, 2, 3):
        ...     weight += 1
        ...     writer.save(folder.path / f"step_{step}", {"model": {"weight": weight}, "step": step})
        ...     removed = folder.keep(newest=2)
        >>> writer.wait()
        >>> [info.path.name for info in folder.records()], folder.newest()["model"]
        (['step_2', 'step_3'], {'weight': tensor([3., 3.])})
        >>> temporary.cleanup()
    """

    def __init__(self) -> None:
        self._thread, self._pool = BackgroundWriter(), HostPool()
        self._unchanged, self._linkable = UnchangedTensors(), LinkableFiles()

    @staticmethod
    def check(parts: Mapping[str, object]) -> None:
        """See that values can be stored, without storing them.

        Args:
            parts: As for ``save``.

        Raises:
            CheckpointError: One cannot.
        """
        for name, part in parts.items():
            encode(part, name)

    def note(self, parts: Mapping[str, object]) -> None:
        """Note the tensors as they are before training, to find in the first checkpoint what has not changed.

        Args:
            parts: What a checkpoint would hold.

        Raises:
            CheckpointError: A value cannot be stored.
        """
        self._unchanged.note(_tensors({name: encode(part, name) for name, part in parts.items()}))

    def save(
        self,
        path: str | Path,
        parts: Mapping[str, object],
        *,
        summary: Mapping[str, JsonScalar] | None = None,
        blocking: bool = False,
        lock: FolderLock | None = None,
        on_saved: Callable[[Path], object] | None = None,
    ) -> None:
        """Save a checkpoint, after the one before has been written.

        Args:
            path: As for ``save``.
            parts: As for ``save``.
            summary: As for ``save``.
            blocking: Whether to return when it is written; otherwise, when the tensors may change again.
            lock: On the first process, the lock of the folder, which is checked before the checkpoint is written and,
                as a more likely reason, if that fails.
            on_saved: Called with the path, by the process and the thread that write, once the checkpoint is there.
                What it raises is raised as if the checkpoint could not be written.

        Raises:
            CheckpointError: As ``save``; in the background, by the next call of ``save`` or ``wait``.
        """
        self.wait()
        messages = RankMessages() if dist.is_initialized() and dist.get_world_size() > 1 else None
        is_first = messages is None or messages.rank == 0
        job = partial(self._write, Path(path), dict(summary or {}), messages, lock, on_saved)
        try:
            encoded = {name: encode(part, name) for name, part in parts.items()}
            if not is_first:
                encoded = {name: part.without_tensors() for name, part in encoded.items()}
            constant = self._unchanged.find(_tensors(encoded), (summary or {}).get("update"))
            copied = encoded if blocking else self._pool.copy(encoded)
        except Exception as error:
            job(_raising(error), frozenset())  # which tells the others
            raise
        if blocking:
            job(lambda: copied, constant)
            return
        saving = BackgroundSave(Path(path)) if is_first else None
        try:
            self._thread.submit(partial(job, lambda: copied, constant, saving))
        except BaseException:
            if saving is not None:
                saving.forget()
            raise

    def wait(self) -> None:
        """Return when everything is written.

        Raises:
            CheckpointError: The checkpoint could not be written, if that was not raised yet.
        """
        self._thread.wait()

    def _write(
        self,
        path: Path,
        summary: dict[str, JsonScalar],
        messages: RankMessages | None,
        lock: FolderLock | None,
        on_saved: Callable[[Path], object] | None,
        parts: Callable[[], Mapping[str, Encoded]],
        constant: frozenset[str],
        saving: BackgroundSave | None = None,
    ) -> None:
        if messages is not None and messages.rank != 0:
            other = ShareOfOther(messages)
            other.write(path, lambda folder: write_pieces(folder, parts(), other.rank, constant, self._linkable))
            return
        share = ShareOfFirst(messages)
        with share.telling_outcome(), nullcontext() if lock is None else _in_its_place(lock):
            if "sequence" not in summary:
                summary["sequence"] = Folder(path.parent).next_sequence()
            with nullcontext() if saving is None else saving.ending():
                write_checkpoint(path, parts(), summary, constant=constant, linkable=self._linkable, share=share)
            if on_saved is not None:
                on_saved(path)


@contextmanager
def _in_its_place(lock: FolderLock) -> Generator[None]:
    """Check the lock of a folder before it is written to, and after a failure, which may come of its loss."""
    lock.check()
    try:
        yield
    except (CheckpointError, OSError):
        lock.check()
        raise


def _tensors(parts: Mapping[str, Encoded]) -> dict[str, Tensor]:
    return {name: tensor for part in parts.values() for name, tensor in part.all_tensors().items()}


def _raising(error: Exception) -> Callable[[], Mapping[str, Encoded]]:
    def raise_error() -> Mapping[str, Encoded]:
        raise error

    return raise_error
