"""What one process does for all, or before the others."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import ParamSpec, Protocol, TypeVar

import torch.distributed as dist

from pa_distributed._errors import OtherProcessError
from pa_distributed._processes import gather_objects, is_alone

_P = ParamSpec("_P")
_R = TypeVar("_R")

_in_rank_local_block: ContextVar[bool] = ContextVar("_in_rank_local_block", default=False)
"""Whether this process is where the others are not, so that nobody may wait for anybody."""


class BlockOrDecorator(AbstractContextManager[None], Protocol):
    """A context manager that is a decorator as well."""

    def __call__(self, function: Callable[_P, _R], /) -> Callable[_P, _R]:
        """Return the function in the block."""
        ...


def rank_zero_only(
    *, local: bool = False, no_failure: tuple[type[BaseException], ...] = ()
) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """Make a function run on the process of rank zero only; the others wait until it has run, and return None.

    Every process must call it: in a block that only one of them enters, it would wait for the others for ever. What it
    calls may be decorated in the same way; there, nobody waits again.

    Args:
        local: Whether it runs on the first process of each machine, which launchers tell by ``LOCAL_RANK``.
        no_failure: Exceptions after which the others return None too, such as a request that they are told of later.

    Raises:
        OtherProcessError: By the decorated function, on the processes that waited, where the one that ran it failed.

    Example:
        >>> @rank_zero_only()
        ... def download() -> str:
        ...     return "downloaded once, and there for all that follows"
        >>> download()
        'downloaded once, and there for all that follows'
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        @functools.wraps(function)
        def on_some(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            waits = not is_alone() and not _in_rank_local_block.get()
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
    is_first = _is_first(local=local)
    waits = not is_alone() and not _in_rank_local_block.get()
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
    """Let the process of rank zero run a block, or a function, before all others.

    Every process must come there. Where the first one raises an exception, the others do not wait any longer, and run
    it themselves.

    Args:
        local: Whether the first process of each machine goes before the others of that machine.

    Example:
        >>> with rank_zero_first():
        ...     print("prepared once, then read by all")
        prepared once, then read by all
        >>> @rank_zero_first(local=True)
        ... def load() -> str:
        ...     return "downloaded once on each machine, then loaded by all"
        >>> load()
        'downloaded once on each machine, then loaded by all'
    """
    return _first_then_others(local=local)


def _is_first(*, local: bool) -> bool:
    if is_alone():
        return True
    return (int(os.environ.get("LOCAL_RANK", dist.get_rank())) if local else dist.get_rank()) == 0


def in_rank_local_block() -> bool:
    """Whether this process is in ``rank_local()``, ``rank_zero_only`` or ``rank_zero_first``.

    Example:
        >>> with rank_local():
        ...     print(in_rank_local_block())
        True
    """
    return _in_rank_local_block.get()


@contextmanager
def rank_local() -> Generator[None]:
    """Within the context, this process is where the others are not: what is decorated here waits for nobody.

    Example:
        >>> with rank_local():
        ...     rank_zero_only()(print)("on some processes")
        on some processes
    """
    token = _in_rank_local_block.set(True)
    try:
        yield
    finally:
        _in_rank_local_block.reset(token)
