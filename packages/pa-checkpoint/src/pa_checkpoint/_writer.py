"""Saving checkpoints: at once or in the background, by one process or by several, each tensor once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from torch import Tensor

from pa_checkpoint._background import BackgroundWriter, HostPool
from pa_checkpoint._checkpoint import write_checkpoint, write_pieces
from pa_checkpoint._encoding import Encoded, JsonScalar, encode
from pa_checkpoint._folder import Folder
from pa_checkpoint._messages import Messages, MessagesInStore, Nobody, several_processes
from pa_checkpoint._shared_write import ShareOfFirst, ShareOfOther
from pa_checkpoint._unchanged import LinkableFiles, UnchangedTensors

__all__ = ["Writer", "save"]


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

    Args:
        connect: Returns, for each checkpoint, what the processes tell each other about it. By default they do so in
            the store of ``torch.distributed``.

    Example:
        >>> import tempfile, torch
        >>> temporary = tempfile.TemporaryDirectory()
        >>> folder, writer, weight = Folder(temporary.name), Writer(), torch.zeros(2)
        >>> for step in (1, 2, 3):
        ...     weight += 1
        ...     writer.save(folder.path / f"step_{step}", {"model": {"weight": weight}, "step": step})
        >>> writer.wait()
        >>> [info.path.name for info in folder.keep(newest=2)], folder.newest()["model"]
        (['step_1'], {'weight': tensor([3., 3.])})
        >>> temporary.cleanup()
    """

    def __init__(self, connect: Callable[[], Messages] | None = None) -> None:
        self._connect = MessagesInStore if connect is None else connect
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
        around: Callable[[Path], AbstractContextManager[Path]] | None = None,
    ) -> None:
        """Save a checkpoint, after the one before has been written.

        Args:
            path: As for ``save``.
            parts: As for ``save``.
            summary: As for ``save``.
            blocking: Whether to return when it is written; otherwise, when the tensors may change again.
            around: Returns the context in which the first process writes the checkpoint, in the thread that writes. It
                is given the path, and says where the checkpoint is written; when it is left, the checkpoint is there.

        Raises:
            CheckpointError: As ``save``; in the background, by the next call of ``save`` or ``wait``.
        """
        self.wait()
        messages = self._connect() if several_processes() else Nobody()
        job = partial(self._write, Path(path), dict(summary or {}), messages, around or nullcontext)
        try:
            encoded = {name: encode(part, name) for name, part in parts.items()}
            if messages.rank != 0:
                encoded = {name: part.without_tensors() for name, part in encoded.items()}
            constant = self._unchanged.find(_tensors(encoded), (summary or {}).get("update"))
            copied = encoded if blocking else self._pool.copy(encoded)
        except Exception as error:
            job(_raising(error), frozenset())  # which tells the others
            raise
        if blocking:
            job(lambda: copied, constant)
        else:
            self._thread.submit(partial(job, lambda: copied, constant))

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
        messages: Messages,
        around: Callable[[Path], AbstractContextManager[Path]],
        parts: Callable[[], Mapping[str, Encoded]],
        constant: frozenset[str],
    ) -> None:
        if messages.rank != 0:
            ShareOfOther(messages).write(
                path, lambda folder: write_pieces(folder, parts(), messages.rank, constant, self._linkable)
            )
            return
        share = ShareOfFirst(messages)
        with share.telling_outcome(), around(path) as place:
            if "sequence" not in summary:
                summary["sequence"] = Folder(place.parent).next_sequence()
            write_checkpoint(place, parts(), summary, constant=constant, linkable=self._linkable, share=share)


def _tensors(parts: Mapping[str, Encoded]) -> dict[str, Tensor]:
    return {name: tensor for part in parts.values() for name, tensor in part.all_tensors().items()}


def _raising(error: Exception) -> Callable[[], Mapping[str, Encoded]]:
    def raise_error() -> Mapping[str, Encoded]:
        raise error

    return raise_error
