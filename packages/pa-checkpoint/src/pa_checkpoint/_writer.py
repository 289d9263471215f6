"""Saves checkpoints at once or in the background, from one process or several."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from pa_checkpoint._checkpoint import ShareOfFirst, ShareOfOther, write_checkpoint, write_pieces
from pa_checkpoint._encoding import Encoded, JsonScalar, encode
from pa_checkpoint._errors import CheckpointError
from pa_checkpoint._files import BackgroundSave, local_path
from pa_checkpoint._folder import Folder, FolderLock
from pa_checkpoint._manifest import LinkableFiles, UnchangedTensors
from pa_checkpoint._tensor_file import memory_of
from pa_distributed import RankMessages


class BackgroundWriter:
    """Runs one job at a time in a thread, and reports each failure once.

    If a job is running when the interpreter ends, the interpreter waits for it. If the job then fails, its traceback is
    printed.

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
        """Start a job, after waiting for the previous job.

        Raises:
            BaseException: The previous job has failed, and the failure was not raised yet; the new job is not started.
        """
        self.wait()
        # A thread for each job, and no daemon: the interpreter waits for it, and none is left waiting for work.
        thread = threading.Thread(target=self._run, args=(job,), name="pa_checkpoint background writer")
        with _ctrl_c_held_back():
            thread.start()
            self._thread = thread

    def wait(self) -> None:
        """Wait until no job is running.

        Raises:
            BaseException: The job has failed, and the failure was not raised yet.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_error()

    def _run(self, job: Callable[[], None]) -> None:
        """Run a job, and keep its error for the thread that waits."""
        try:
            job()
        except BaseException as error:  # whatever it is, the thread that waits for the job is told
            self._error = error
            atexit.register(self._print_error)

    def _raise_error(self) -> None:
        """Raise the error of the last job, if there is any."""
        error, self._error = self._error, None
        if error is not None:
            atexit.unregister(self._print_error)
            raise error

    def _print_error(self) -> None:
        """Print the traceback of an error that was not raised."""
        traceback.print_exception(self._error)


@contextmanager
def _ctrl_c_held_back() -> Generator[None]:
    """Delay Ctrl-C until the end of the block, since within the block it could leave a thread in an unknown state."""
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


_WORTH_A_THREAD = 1 << 20  # bytes
_NUM_THREADS = min(4, os.cpu_count() or 1)  # more than these do not copy faster, since memory limits them


class HostPool:
    """Buffers in host memory that hold a copy of tensors, and are used again for each copy.

    Allocating memory takes longer than copying, so it happens once. Large tensors on the CPU are copied by several
    threads, since the training waits for the copy. Tensors on CUDA are copied to pinned memory, with a single wait at
    the end. The next copy overwrites the previous copy, so first let the readers of that copy finish, with
    ``BackgroundWriter.wait``.

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
        """Copy all tensors; tensors that share their memory share it in the copy, too.

        Of sharded tensors, only the pieces that this process writes are copied. When the call returns, the originals
        may change.
        """
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            return self._copy(encoded, threads)

    def _copy(self, encoded: Mapping[str, Encoded], threads: ThreadPoolExecutor) -> dict[str, Encoded]:
        """Copy all tensors."""
        previous, self._buffers = self._buffers, {}
        copies: dict[Hashable, Tensor] = {}
        snapshot: dict[str, Encoded] = {}
        under_way: list[Future[None]] = []
        for part, value in encoded.items():
            tensors: dict[str, Tensor] = {}
            for name, tensor in value.all_tensors().items():
                memory = memory_of(tensor)
                if memory not in copies:
                    buffer = _buffer_for(tensor, previous.get((part, name)))
                    self._buffers[part, name] = buffer
                    size = tensor.numel() * tensor.element_size()
                    copies[memory] = buffer[:size].view(tensor.dtype).view(tensor.shape)
                    if tensor.device.type == "cpu" and size >= _WORTH_A_THREAD:
                        under_way.append(threads.submit(_fill, copies[memory], tensor))
                    else:
                        copies[memory].copy_(tensor, non_blocking=_is_on_cuda(tensor))
                tensors[name] = copies[memory]
            snapshot[part] = value.with_copies(tensors)
        for copying in under_way:
            copying.result()
        for device in {tensor.device for value in encoded.values() for tensor in value.all_tensors().values()}:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return snapshot


def _fill(target: Tensor, source: Tensor) -> None:
    """Copy a tensor in a thread, which does not know whether the training thread is in inference mode."""
    with torch.inference_mode():
        target.copy_(source)


def _buffer_for(tensor: Tensor, buffer: Tensor | None) -> Tensor:
    """Return the previous buffer if the tensor fits, or a new buffer."""
    size = tensor.numel() * tensor.element_size()
    pinned = _is_on_cuda(tensor)
    if buffer is not None and buffer.numel() >= size and buffer.is_pinned() == pinned:
        return buffer
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)


def _is_on_cuda(tensor: Tensor) -> bool:
    """Return whether a tensor is on a CUDA device."""
    return tensor.device.type == "cuda"


def save(path: str | Path, parts: Mapping[str, object], *, summary: Mapping[str, JsonScalar] | None = None) -> None:
    """Save a checkpoint to a directory, completely or not at all.

    Use it where a script may wait for the disk, for example after the last epoch; a ``Writer`` saves in the background
    while training continues. The files are written to a hidden folder next to the path and flushed to the disk. Then
    the folder is renamed in a single step. If anything fails, including a full disk, Ctrl-C or a kill, the previous
    checkpoint at the path stays. The call returns when the checkpoint is on the disk. Read it with ``load``.

    If ``torch.distributed`` is initialized, every process must call this function with the same arguments: rank 0
    writes, each process writes its pieces of sharded tensors, and all of them return when the checkpoint is complete.
    The path must then be on a file system that all processes share.

    Args:
        path: The directory. There may be nothing at this path, an empty folder, or a checkpoint, which is replaced.
            Missing folders above it are created.
        parts: The values to save, by names that are Python identifiers of ASCII letters, for example ``{"model":
            model.state_dict(), "step": 100}``. Allowed are None, booleans, numbers, strings, bytes, tensors, NumPy
            arrays, and dictionaries, lists, tuples and sets of all these. Other objects raise an error: pass their
            ``state_dict()``.
        summary: Plain values by name that can be read without the tensors: booleans, finite numbers, strings and None.
            ``CheckpointInfo`` shows ``"run"`` (a string that identifies the run), ``"update"`` and ``"epoch"`` (whole
            numbers >= 0), and ``"complete"`` (a boolean). ``"sequence"``, a number that orders the checkpoints of the
            folder, is added if it is missing. The default, None, adds nothing else.

    Raises:
        CheckpointError: The path is in use by something else, a value or the summary cannot be stored, a name is not an
            identifier, or the disk is full. All processes raise it.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from pa_checkpoint import load, save
        >>> temporary = tempfile.TemporaryDirectory()
        >>> path = Path(temporary.name, "step_100")
        >>> save(path, {"model": {"weight": torch.ones(2)}, "step": 100}, summary={"update": 100})
        >>> load(path)["step"]
        100
        >>> temporary.cleanup()
    """
    Writer().save(path, parts, summary=summary, blocking=True)


class Writer:
    """Saves the checkpoints of a run in the background, while training continues.

    If a loop should not wait for the disk, use one writer for all checkpoints of a run instead of calling ``save`` for
    each. ``Writer.save`` copies the tensors to host memory, which is fast, and a thread writes them to the disk. The
    buffers for the copies are reused, so the writer takes as much host memory as a checkpoint. Tensors that have not
    changed since the previous checkpoint, for example a frozen model, are stored as hard links to its files, if the
    file system supports hard links and the digests are equal.

    If a save in the background fails, the next ``save`` or ``wait`` call raises its error. If the interpreter exits
    before such a call, it waits for the thread and prints the traceback of the error. Call ``wait`` at the end of a
    script.

    If ``torch.distributed`` is initialized, every process needs a writer, and all processes must make the same calls in
    the same order. The constructor has no arguments.

    Example:
        >>> import tempfile, torch
        >>> from pa_checkpoint import Folder, Writer
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
        """Raise an error if a value cannot be stored, without writing anything.

        You call it before training with the values that you will save, so that an unsupported value causes an error
        then, and not at the first checkpoint. It needs no writer, copies no tensors, and does not check the names of
        the values.

        Args:
            parts: The values by name, in the form that ``save`` accepts, for example ``{"model": model.state_dict()}``.

        Raises:
            CheckpointError: A value is of a type that cannot be stored. The message names the first such entry.

        Example:
            >>> from pa_checkpoint import Writer
            >>> Writer.check({"metrics": {"loss": [0.5, 0.25]}})
            >>> Writer.check({"metrics": {"loss": len}})
            Traceback (most recent call last):
            ...
            pa_checkpoint.CheckpointError: This entry cannot be stored in a checkpoint.
              given:    metrics['loss']: builtin_function_or_method <built-in function len>
              ...
        """
        for name, part in parts.items():
            encode(part, name)

    def note(self, parts: Mapping[str, object]) -> None:
        """Record the tensors before training, so that the first save can detect which of them have not changed.

        The call is optional. You make it once, after the model is built and, when a run resumes, after loading. The
        writer then puts tensors that have not changed by the first ``save``, for example a frozen model, into a
        separate file, so that the second checkpoint can share this file instead of writing it again. Without the call,
        the second checkpoint creates the separate file and the third shares it. The values are not copied or written.

        Args:
            parts: The values that the next checkpoint will contain, by the same names.

        Raises:
            CheckpointError: A value cannot be stored.

        Example:
            >>> import tempfile, torch
            >>> from pathlib import Path
            >>> from pa_checkpoint import Writer
            >>> frozen, weight = torch.zeros(2**18), torch.zeros(2)
            >>> writer = Writer()
            >>> writer.note({"model": {"frozen": frozen, "weight": weight}})
            >>> weight += 1
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     writer.save(f"{folder}/step_1", {"model": {"frozen": frozen, "weight": weight}}, blocking=True)
            ...     sorted(path.name for path in Path(folder, "step_1").glob("model*"))
            ['model.constant.safetensors', 'model.safetensors']
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
        """Save a checkpoint, in the background by default.

        You call it in the training loop. The call first waits for the previous save of this writer, and returns when
        all tensors are copied to host memory, so the next update may change them. If ``torch.distributed`` is
        initialized, all processes must make the call.

        Args:
            path: The directory. There may be nothing at this path, an empty folder, or a checkpoint, which is replaced.
                Missing folders above it are created.
            parts: The values to save, by names that are Python identifiers, for example ``{"model": model.state_dict(),
                "step": 100}``. Allowed are None, booleans, numbers, strings, bytes, tensors, NumPy arrays, and
                dictionaries, lists, tuples and sets of all these.
            summary: Plain values that can be read without the tensors, for example ``{"run": "first", "update": 100}``.
                ``CheckpointInfo`` shows ``"run"`` (a string), ``"update"`` and ``"epoch"`` (whole numbers >= 0) and
                ``"complete"`` (a boolean). ``"sequence"``, a number that orders the checkpoints of the folder, is added
                if it is missing. The default, None, adds nothing else.
            blocking: Whether to return only when the checkpoint is on the disk. The default, False, lets training
                continue. Pass True for the last checkpoint of a script, or if host memory is too small for a copy.
            lock: The ``FolderLock`` of the folder, on rank 0. It is checked before the checkpoint is written, and after
                a failure, which the loss of the lock may have caused. The default, None, checks nothing.
            on_saved: A function that is called with the path when the checkpoint is complete, for example to upload it.
                It is called on rank 0, in the thread that writes, and its result is ignored. If it raises an exception,
                this exception is raised in the same way as the error of a failed save. The default, None, calls
                nothing.

        Raises:
            CheckpointError: A value cannot be stored. This call raises it.
            CheckpointError: The path is in use by something else, the summary cannot be stored, the lock was lost, or
                the disk is full. With ``blocking=True``, this call raises it; otherwise, the next ``save`` or ``wait``
                call does.

        Example:
            >>> import tempfile, torch
            >>> from pa_checkpoint import Writer
            >>> writer, weight = Writer(), torch.zeros(2)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     writer.save(f"{folder}/step_1", {"weight": weight}, on_saved=lambda path: print("saved", path.name))
            ...     weight += 1  # while the checkpoint is written
            ...     writer.wait()
            saved step_1
        """
        self.wait()
        path = local_path(path)
        messages = RankMessages() if dist.is_initialized() and dist.get_world_size() > 1 else None
        is_first = messages is None or messages.rank == 0
        job = partial(self._write, path, dict(summary or {}), messages, lock, on_saved)
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
        saving = BackgroundSave(path) if is_first else None
        try:
            self._thread.submit(partial(job, lambda: copied, constant, saving))
        except BaseException:
            if saving is not None:
                saving.forget()
            raise

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk.

        You call it at the end of a script, so that a failed save raises its error there, and before you read a
        checkpoint that ``save`` is still writing. It returns at once if no save is in progress. On several processes,
        every process calls it. The writer can be used again afterwards.

        Raises:
            CheckpointError: The checkpoint could not be written. Each failure is raised once. An exception of the
                ``on_saved`` function is raised unchanged.

        Example:
            >>> import tempfile
            >>> from pa_checkpoint import Writer, load
            >>> writer = Writer()
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     writer.save(f"{folder}/final", {"step": 480})
            ...     writer.wait()
            ...     load(f"{folder}/final")["step"]
            480
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
        """Write a checkpoint, or the part of this process."""
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
    """Check the lock of a folder before writing, and after a failure, which the loss of the lock may have caused."""
    lock.check()
    try:
        yield
    except (CheckpointError, OSError):
        lock.check()
        raise


def _tensors(parts: Mapping[str, Encoded]) -> dict[str, Tensor]:
    """Return the tensors of all parts by name."""
    return {name: tensor for part in parts.values() for name, tensor in part.all_tensors().items()}


def _raising(error: Exception) -> Callable[[], Mapping[str, Encoded]]:
    """Return a function that raises an error."""

    def raise_error() -> Mapping[str, Encoded]:
        raise error

    return raise_error
