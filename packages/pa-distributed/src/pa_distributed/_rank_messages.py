"""Named messages between processes, from any thread, and a wait for long work of some processes.

No waiting process is in a collective or holds a connection open, so none of them runs into a timeout.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from pa_distributed._errors import OtherProcessError
from pa_distributed._processes import gather_objects, is_alone, num_processes, require_others
from pa_distributed._signs import Signs
from pa_distributed._torch import store_of_processes

_SECONDS_UNTIL_GONE = 15.0
_SECONDS_BETWEEN_LOOKS: Final = (0.002, 0.1)
"""The first and the longest interval."""
_SHARE_OF_WAIT: Final = 0.1
"""How much longer a wait may take because the process looks rarely."""

_COME: Final = "has come"

_topics = itertools.count(1)


class RankMessages:
    """Exchanges named text messages between the processes of a run, from any thread.

    Use it where collectives do not fit: in a background thread, for example while a checkpoint is written, or for a
    wait that may take longer than the timeout of the backend. Collectives must be called by all ranks in the same
    order, so calls from two threads would be mixed up. Messages have names, so their order does not matter. For objects
    that all processes exchange at the same point of the script, use ``gather_objects``.

    Create an object for each shared task. Every process must create the same number of objects in the same order, in
    its main thread; messages of different objects do not mix. All methods may then be called from any thread.
    ``torch.distributed`` must be initialized. The constructor has no arguments.

    Attributes:
        rank: The rank of this process, from 0.
        num_processes: The number of processes.

    Raises:
        ValueError: ``torch.distributed`` is not initialized.

    Example:
        >>> import torch
        >>> from pa_distributed import RankMessages
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> messages = RankMessages()
        >>> messages.post(f"file of rank {messages.rank}", "part-0.bin")
        >>> [messages.wait_for(f"file of rank {rank}", rank) for rank in range(messages.num_processes)]
        ['part-0.bin']
        >>> messages.wait_for_all()  # all parts are written
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.num_processes: int = num_processes()
        # A separate connection: other threads may be waiting in theirs. Torch does not annotate clone().
        shared: Any = store_of_processes()
        connection: Store = shared.clone()
        self._store = PrefixStore(f"pa_distributed/messages/{next(_topics)}", connection)
        self._has_come = False
        self._signs = Signs(PrefixStore("pa_distributed/watch", connection), self.rank, self.num_processes)

    def post(self, key: str, message: str) -> None:
        """Publish a message that any process can read with ``wait_for``.

        You call it on the process that has the information. It returns at once, without waiting for a reader. The
        message is kept until you call ``remove``.

        Args:
            key: The name of the message. A second message of the same name replaces the first. Put the rank into the
                name if several processes post.
            message: The text of the message, for example JSON.

        Raises:
            OtherProcessError: The process that keeps the messages, usually rank 0, is gone.

        Example:
            >>> import torch
            >>> from pa_distributed import RankMessages
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> messages = RankMessages()
            >>> messages.post("best rank", str(messages.rank))
            >>> torch.distributed.destroy_process_group()
        """
        with _explained():
            self._store.set(key, message)

    def wait_for(self, key: str, rank: int) -> str:
        """Wait for a message, and return its text.

        You call it on each process that needs the message, which another process publishes with ``post``. There is no
        timeout: as long as that process lives, this process waits. Several processes may read the same message, which
        is not removed.

        Args:
            key: The name of the message.
            rank: The rank of the process that publishes it. This rank is watched, so that the caller does not wait for
                a process that is gone.

        Returns:
            The text of the message.

        Raises:
            OtherProcessError: That process has sent no heartbeat for 15 seconds, or the process that keeps the messages
                is gone. Heartbeats are sent while a ``HangDetector`` runs.

        Example:
            >>> import torch
            >>> from pa_distributed import RankMessages
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> messages = RankMessages()
            >>> if messages.rank == 0:
            ...     messages.post("folder", "/tmp/run-7")
            >>> messages.wait_for("folder", rank=0)
            '/tmp/run-7'
            >>> torch.distributed.destroy_process_group()
        """
        shortest, longest = _SECONDS_BETWEEN_LOOKS
        started = time.monotonic()
        with _explained():
            while not self._store.check([key]):
                if rank != self.rank and self._signs.of_others()[rank].silent > _SECONDS_UNTIL_GONE:
                    raise _missing(rank, f"which has sent no heartbeat for {_SECONDS_UNTIL_GONE:g} seconds")
                waited = time.monotonic() - started
                time.sleep(min(max(shortest, _SHARE_OF_WAIT * waited), longest))
            return self._store.get(key).decode()

    def wait_for_all(self) -> None:
        """Wait until every process has called this method, no matter how long that takes.

        You call it on every process, once per object, when its part of the shared task is done. Unlike
        ``torch.distributed.barrier`` it has no timeout, and may be called in a background thread. A process that cannot
        call it, because of an error, calls ``leave``.

        Raises:
            OtherProcessError: A process has called ``leave``, no longer sends heartbeats (which are sent while a
                ``HangDetector`` runs), or kept the messages and is gone.

        Example:
            >>> import torch
            >>> from pa_distributed import RankMessages
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> messages = RankMessages()
            >>> messages.wait_for_all()  # after each process has written its part
            >>> torch.distributed.destroy_process_group()
        """
        self._has_come = True
        self.post(f"come/{self.rank}", _COME)
        for rank in range(self.num_processes):
            if self.wait_for(f"come/{rank}", rank) != _COME:
                raise _missing(rank, "which has raised an error before it was done")

    def leave(self) -> None:
        """Tell the other processes that this process will not call ``wait_for_all``, for example because of an error.

        You call it in a ``finally`` or ``except`` clause around the shared task. The other processes then raise an
        ``OtherProcessError`` in ``wait_for_all``, instead of waiting. After ``wait_for_all`` the call has no effect. It
        raises no error, even if the process that keeps the messages is gone.

        Example:
            >>> import torch
            >>> from pa_distributed import RankMessages
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> messages = RankMessages()
            >>> try:
            ...     part = b"content"  # may fail
            ...     messages.wait_for_all()
            ... finally:
            ...     messages.leave()
            >>> torch.distributed.destroy_process_group()
        """
        if not self._has_come:
            with suppress(OtherProcessError):  # no other process is left to be told
                self.post(f"come/{self.rank}", "has left")

    def remove(self, key: str) -> None:
        """Remove a message after all processes have read it, to free the memory of the store.

        You call it on one process, if you post many messages under different names. A later ``wait_for`` for this name
        waits for a new message. If there is no such message, the call has no effect.

        Args:
            key: The name of the message.

        Raises:
            OtherProcessError: The process that keeps the messages is gone.

        Example:
            >>> import torch
            >>> from pa_distributed import RankMessages
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> messages = RankMessages()
            >>> messages.post("folder", "/tmp/run-7")
            >>> messages.remove("folder")
            >>> torch.distributed.destroy_process_group()
        """
        with _explained():
            self._store.delete_key(key)


def _missing(rank: int, why: str) -> OtherProcessError:
    """Return the error about a process that did not arrive."""
    return OtherProcessError(
        f"Another process has failed, or is gone, while this one waited for it: rank {rank}, {why}. See the last "
        "lines that it printed."
    )


@contextmanager
def _explained() -> Generator[None]:
    """Turn errors of a lost connection into an ``OtherProcessError``."""
    try:
        yield
    except OtherProcessError:
        raise
    except RuntimeError as error:  # of the connection
        raise OtherProcessError(
            f"The process that connects the others is gone ({type(error).__name__}: {error}). See what the other "
            "processes and the launcher printed last."
        ) from error


def run_while_others_wait(action: Callable[[], None] | None, *, fails_at_once: bool = False) -> None:
    """Run a function that may take long on some processes, while the other processes wait.

    Use it for work that rank 0 does for minutes, for example to merge files or to evaluate on one device. In a
    collective, or in a function decorated with ``rank_zero_only``, the other ranks would run into the timeout of the
    backend. Here, they wait for as long as necessary. Every process must call this function. If the function raises an
    error on a process, all processes raise that error.

    Args:
        action: The function that this process runs, without arguments, or None on a process that only waits. Its result
            is ignored.
        fails_at_once: Whether a process raises the error of its function at once, and the other processes raise
            ``OtherProcessError`` when their functions are done. With the default, False, all processes raise the same
            error when all functions are done, so that all of them can react in the same way.

    Raises:
        Exception: The first error, by rank, of the functions.
        OtherProcessError: Another process is gone, or its function raised an error that is not raised here; or the
            function is called within ``rank_zero_only``, ``rank_zero_first`` or ``rank_local``, so that the other
            processes do not run it now.
        RuntimeError: A launcher has started several processes, but ``torch.distributed.init_process_group()`` has not
            been called yet.

    Example:
        >>> from pa_distributed import run_while_others_wait
        >>> def merge_files() -> None:
        ...     print("merging 12 files")
        >>> rank = 0
        >>> run_while_others_wait(merge_files if rank == 0 else None)
        merging 12 files
    """
    if is_alone():
        if action is not None:
            action()
        return
    require_others()
    messages, problem = RankMessages(), None
    try:
        if action is not None:
            action()
    except BaseException as error:
        if fails_at_once or not isinstance(error, Exception):
            messages.leave()
            raise
        problem = error  # all processes are told
    messages.wait_for_all()
    for met in [] if fails_at_once else gather_objects(problem):
        if met is not None:
            raise met
