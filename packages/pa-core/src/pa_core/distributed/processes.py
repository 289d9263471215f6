"""Decorators for code that some processes run, and a launcher for notebooks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar, TypeVarTuple, overload

from pa_core import _accelerate
from pa_core.distributed.collectives import gather, gather_objects, num_processes
from pa_core.errors import OtherProcessError, StopTrainingError, UnsupportedConfigurationError
from pa_distributed import prepare_gloo, rank_local, rank_zero_first, rank_zero_only

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Arguments = TypeVarTuple("_Arguments")


def prepare_process(accelerator: _accelerate.AcceleratorLike) -> None:
    """Prepare the process of a trainer for a run on several processes; on one process nothing is changed.

    The changes last until the process ends. With gloo, the process disconnects cleanly at exit, and forks workers only
    while gloo's threads are idle. The ``gather`` method of the Accelerator is replaced with the trainer's.

    Args:
        accelerator: The Accelerator of the trainer, which has connected the processes.
    """
    if num_processes() == 1:
        return
    _accelerate.replace_gather(accelerator, gather)
    prepare_gloo()


def world_process_zero_only(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """Decorate a function that only rank zero runs, for example a download; the other processes wait, and return None.

    Use it for work on a shared disk whose result all processes need. ``local_process_zero_only`` runs a function once
    on each machine, and ``trainer.on_main_process`` does not wait. It works without a trainer, and connects the
    processes of a launcher in its first call.

    Every process must call the decorated function. In a block that only one process enters, that process would wait for
    the others until it times out. The function may call other functions that are decorated in the same way; they do not
    wait again.

    Args:
        function: The function to decorate.

    Returns:
        A function with the same arguments; its result is None on all processes except rank zero.

    Raises:
        OtherProcessError: The function raised an exception on rank zero. Rank zero raises the exception itself, and the
            waiting processes raise this error, so that none of them waits forever. A ``StopTrainingError`` is
            different: the other processes stop with the next update.

    Example:
        >>> from pa_core import world_process_zero_only
        >>> @world_process_zero_only
        ... def download() -> str:
        ...     return "downloaded once, and there for all that follows"
        >>> download()
        'downloaded once, and there for all that follows'
    """
    return _after_connecting(rank_zero_only(no_failure=(StopTrainingError,))(function))


def local_process_zero_only(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """Decorate a function that only the first process of each machine runs; the others wait, and return None.

    Use it for files on the local disk of each machine, for example an unpacked archive. ``world_process_zero_only``
    runs a function once in the whole run, which is right for a shared disk, and ``trainer.on_local_main_process`` does
    not wait. It works without a trainer, and connects the processes of a launcher in its first call.

    Every process must call the decorated function; otherwise, the processes that call it wait for the others until they
    time out.

    Args:
        function: The function to decorate.

    Returns:
        A function with the same arguments; its result is None on all processes except the first of each machine.

    Raises:
        OtherProcessError: The function raised an exception on the first process of a machine. That process raises the
            exception itself, and the waiting processes raise this error, so that none of them waits forever. A
            ``StopTrainingError`` is different: the other processes stop with the next update.

    Example:
        >>> from pa_core import local_process_zero_only
        >>> @local_process_zero_only
        ... def unpack() -> str:
        ...     return "unpacked once on each machine"
        >>> unpack()
        'unpacked once on each machine'
    """
    return _after_connecting(rank_zero_only(local=True, no_failure=(StopTrainingError,))(function))


class BlockOrDecorator(AbstractContextManager[None], Protocol):
    """A context manager that can also be used as a decorator."""

    def __call__(self, function: Callable[_P, _R], /) -> Callable[_P, _R]:
        """Return a function that runs within the context."""
        ...


@overload
def local_process_zero_first(function: None = None) -> BlockOrDecorator: ...


@overload
def local_process_zero_first(function: Callable[_P, _R]) -> Callable[_P, _R]: ...


def local_process_zero_first(function: Callable[_P, _R] | None = None) -> BlockOrDecorator | Callable[_P, _R]:
    """Let the first process of each machine run a block or a function before the others, which run it afterwards.

    Use it for data that the first process prepares and caches, and the others then read from the cache. All processes
    run the code, and each gets its own result; with ``local_process_zero_only``, only the first process runs it. Every
    process must enter the block, or call the function. If the first process raises an exception, it leaves the block
    there, and the others still run the block. It works without a trainer, and connects the processes of a launcher.

    Args:
        function: The function to decorate. None, the default, is for a block: ``with local_process_zero_first():``.

    Returns:
        The decorated function, with the same arguments and results; without a function, a context manager, which can
        also decorate functions.

    Example:
        >>> from pa_core import local_process_zero_first
        >>> with local_process_zero_first():
        ...     print("prepared once, then read by all")
        prepared once, then read by all
        >>> @local_process_zero_first
        ... def load() -> str:
        ...     return "downloaded once, then loaded by all"
        >>> load()
        'downloaded once, then loaded by all'
    """
    block = _local_first_after_connecting()
    return block if function is None else block(function)


@contextmanager
def _local_first_after_connecting() -> Generator[None]:
    _accelerate.process_state()
    with rank_zero_first(local=True):
        yield


def run_if(applies: bool, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """Run a function on some processes only; the others return None at once, without waiting.

    Args:
        applies: Whether this process runs the function.
        function: The function to decorate.

    Example:
        >>> from functools import partial
        >>> @partial(run_if, True)
        ... def report(loss: float) -> str:
        ...     return f"loss {loss}"
        >>> report(0.5)
        'loss 0.5'
    """

    @functools.wraps(function)
    def on_some(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        if not applies:
            return None
        with rank_local():
            return function(*args, **kwargs)

    return on_some


def wait_for_all(caller: str) -> None:
    """Wait until all processes have called this.

    Args:
        caller: The name of the calling method, for the error.

    Raises:
        OtherProcessError: Another process is gone, or the other processes do not run this now. A note names the caller.
    """
    try:
        gather_objects(None)
    except OtherProcessError as error:
        error.add_note(f"Raised in {caller}.")
        raise


def _after_connecting(function: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(function)
    def connected(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        _accelerate.process_state()
        return function(*args, **kwargs)

    return connected


@overload
def notebook_launcher(
    function: Callable[[], object], args: tuple[()] = ..., num_processes: int | None = ..., **kwargs: Any
) -> None: ...
@overload
def notebook_launcher(
    function: Callable[[*_Arguments], object], args: tuple[*_Arguments], num_processes: int | None = ..., **kwargs: Any
) -> None: ...
def notebook_launcher(
    function: Callable[..., object], args: tuple[object, ...] = (), num_processes: int | None = None, **kwargs: Any
) -> None:
    """Run a training function from a notebook, in several processes, for example one for each GPU.

    Call it in a cell in place of ``accelerate launch``, which starts scripts. It returns when all processes have ended.
    Create the trainer inside the function: objects that a notebook has initialized on an accelerator cannot be shared
    with the processes that are started here. Results have to be written to files, because the result of the function is
    dropped.

    Args:
        function: The function to run; it is called once in each process.
        args: The positional arguments of the function; none by default.
        num_processes: The number of processes: pass the number of GPUs, for example 2. A single process runs the
            function in the kernel itself. None, the default, is only for Colab with at most one GPU, where accelerate
            runs a single process; everywhere else, accelerate raises an error.
        **kwargs: Passed on to ``accelerate.notebook_launcher``, for example ``mixed_precision="bf16"``.

    Raises:
        UnsupportedConfigurationError: Several processes are requested after a trainer was created in this process.
            Restart the kernel.
        ValueError: ``num_processes`` is None, except in Colab with at most one GPU.
        Exception: With a single process, the exception of the function. With several, an error of
            ``torch.distributed``, ``ChildFailedError`` or ``ProcessRaisedException``, after the first failed process
            has printed its traceback; the other processes are ended.

    Example:
        >>> from pa_core import notebook_launcher
        >>> def main(epochs: int) -> None:
        ...     print("training for", epochs, "epochs")
        >>> notebook_launcher(main, (3,), num_processes=1)
        Launching training on CPU.
        training for 3 epochs
    """
    if num_processes is not None and num_processes > 1 and _accelerate.precision_of_process() is not None:
        raise UnsupportedConfigurationError(
            "The processes of a notebook cannot be started once it has made a trainer: they would share its device.",
            given=f"num_processes={num_processes}, after a Trainer, a Run or an Accelerator in this process",
            do="Restart the kernel, and make the trainer inside the function.",
        )
    _accelerate.launch_in_notebook(function, args, num_processes=num_processes, **kwargs)
