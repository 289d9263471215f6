"""Functions that a single process runs for all processes, or before the others."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import ParamSpec, Protocol, TypeVar

import torch.distributed as dist

from pa_distributed._errors import OtherProcessError
from pa_distributed._processes import RANK_LOCAL, gather_objects, is_alone

_P = ParamSpec("_P")
_R = TypeVar("_R")


class BlockOrDecorator(AbstractContextManager[None], Protocol):
    """A context manager that also works as a decorator."""

    def __call__(self, function: Callable[_P, _R], /) -> Callable[_P, _R]:
        """Return a function that runs within the context manager."""
        ...


def rank_zero_only(
    *, local: bool = False, no_failure: tuple[type[BaseException], ...] = ()
) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """Return a decorator that makes a function run on rank 0 only, while the other ranks wait for it.

    Use it for work that must happen once, for example to download a dataset, to write a file or to create a folder.
    After the call, every rank can rely on the finished work. If the function fails, all ranks raise an error, so that
    none of them continues without the work. If all ranks should run the function, with rank 0 before the others, use
    ``rank_zero_first``. For work that takes longer than the timeout of the process group, use
    ``run_while_others_wait``.

    Every process must call the decorated function. In a block that only some ranks enter, for example below ``if rank
    == 0``, the call would wait for the other ranks until it times out. Mark such a block with ``rank_local``,
    so that the call does not wait. A decorated function may call other decorated functions. The inner functions run
    directly, and do not wait a second time. On one process the function simply runs.

    Args:
        local: Whether the function runs on the first process of each machine instead, which launchers mark with
            ``LOCAL_RANK=0``. The default, False, is right for shared file systems. Pass True for files that each
            machine needs on its own disk.
        no_failure: Exception classes that do not count as failures, for example for a request to stop. If the function
            raises such an exception, the other ranks return None, and must learn about the exception in another way. By
            default there are none, so every exception is a failure.

    Returns:
        A decorator; write the parentheses in ``@rank_zero_only()``. The decorated function returns its result on the
        rank that runs it, and None on the other ranks.

    Raises:
        OtherProcessError: The decorated function raises it on the ranks that waited, if the function has raised an
            exception on the rank that runs it. That rank raises the exception itself.
        RuntimeError: The decorated function raises it if a launcher has started several processes, but
            ``torch.distributed.init_process_group()`` has not been called yet.

    Example:
        >>> from pa_distributed import rank_zero_only
        >>> @rank_zero_only()
        ... def download(name: str) -> str:
        ...     print(f"downloading {name}")
        ...     return f"/data/{name}"
        >>> download("digits.tar")
        downloading digits.tar
        '/data/digits.tar'
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        @functools.wraps(function)
        def on_some(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            waits = not is_alone() and not RANK_LOCAL.get()
            result = None
            try:
                if _is_first(local=local):
                    with rank_local():
                        result = function(*args, **kwargs)
            except BaseException as error:
                if waits:
                    with suppress(Exception):  # the others may have ended, and this error tells more
                        gather_objects(not isinstance(error, no_failure))
                raise
            if waits and any(gather_objects(False)):
                raise OtherProcessError(
                    "A function that this process waited for has failed on the first process, of the run or of a "
                    "machine. See the traceback of that process."
                )
            return result

        return on_some

    return decorate


@contextmanager
def _first_then_others(*, local: bool) -> Generator[None]:
    """Run the block on the first process, and then on the processes that have waited for it."""
    is_first = _is_first(local=local)
    waits = not is_alone() and not RANK_LOCAL.get()
    if waits and not is_first:
        gather_objects(None)
    try:
        with rank_local():
            yield
    finally:
        # Also when the block raised: the others must not wait for a process that has given up.
        if waits and is_first:
            gather_objects(None)


def rank_zero_first(*, local: bool = False) -> BlockOrDecorator:
    """Run a block or a function on rank 0 first, and on the other ranks after that.

    Use it where all ranks need the result of a preparation that the first rank caches, for example a tokenized dataset:
    rank 0 writes the cache, and the other ranks read it. If only rank 0 should run the function, use
    ``rank_zero_only``. Every process must enter the block, and no process may wait for the others in it:
    ``gather_objects`` raises an error there. If rank 0 raises an exception in the block, the other ranks still run the
    block, and rank 0 then raises its exception. The wait of the other ranks is limited by the timeout of the process
    group.

    Args:
        local: Whether the first process of each machine, which launchers mark with ``LOCAL_RANK=0``, runs before the
            others. The default, False, waits for rank 0 alone, which is right for a cache on a shared file system. Pass
            True if each machine has its own cache.

    Returns:
        A context manager, which yields None and also works as a decorator. A decorated function returns its result on
        every rank.

    Raises:
        RuntimeError: When the block begins, a launcher has started several processes, but
            ``torch.distributed.init_process_group()`` has not been called yet.

    Example:
        >>> from pa_distributed import rank_zero_first
        >>> with rank_zero_first():
        ...     print("prepared by rank 0, then read by all ranks")
        prepared by rank 0, then read by all ranks
        >>> @rank_zero_first(local=True)
        ... def load_dataset() -> list[int]:
        ...     return [1, 2, 3]
        >>> load_dataset()
        [1, 2, 3]
    """
    return _first_then_others(local=local)


def _is_first(*, local: bool) -> bool:
    """Return whether this process is rank 0, of the run or of its machine."""
    if is_alone():
        return True
    return (int(os.environ.get("LOCAL_RANK", dist.get_rank())) if local else dist.get_rank()) == 0


def in_rank_local_block() -> bool:
    """Return whether this process runs a block that the other processes do not run now.

    This is the case within ``rank_local()``, in functions that are decorated with ``rank_zero_only``, and in blocks of
    ``rank_zero_first``. Use it in a library to skip a collective that the other processes would not join. It does not
    recognize a plain ``if rank == 0`` block.

    Returns:
        True within such a block, False elsewhere. On one process it also returns True within such a block.

    Example:
        >>> from pa_distributed import in_rank_local_block, rank_local
        >>> in_rank_local_block()
        False
        >>> with rank_local():
        ...     in_rank_local_block()
        True
    """
    return RANK_LOCAL.get()


@contextmanager
def rank_local() -> Generator[None]:
    """Mark a block that only some processes run, so that decorated functions in it wait for no other process.

    Use it in a ``with`` statement below ``if rank == 0`` and similar conditions, if the block calls functions that are
    decorated with ``rank_zero_only`` or ``rank_zero_first``, perhaps deep in a library. These functions communicate
    with all processes, and in such a block the other processes would never answer. Within this context they skip the
    communication: on rank 0 they run, and on other ranks a ``rank_zero_only`` function returns None at once.

    Functions that need the other processes, for example ``gather_objects``, ``require_same`` and
    ``run_while_others_wait``, raise ``OtherProcessError`` there. Collectives of ``torch.distributed`` ignore the
    context. The context applies to this thread. Blocks may be nested.

    Yields:
        None.

    Example:
        >>> from pa_distributed import rank_local, rank_zero_only
        >>> @rank_zero_only()
        ... def write_report(text: str) -> None:
        ...     print(text)
        >>> rank = 0
        >>> if rank == 0:
        ...     with rank_local():
        ...         write_report("written by rank 0, while the other ranks work on")
        written by rank 0, while the other ranks work on
    """
    token = RANK_LOCAL.set(True)
    try:
        yield
    finally:
        RANK_LOCAL.reset(token)
