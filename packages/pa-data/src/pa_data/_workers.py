"""Workers of data loaders: their start, errors, signals and random numbers."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from pa_data.errors import DataError
from pa_data.rng import mix, seed_rng

__all__ = [
    "WorkerStart",
    "end_with_main_process",
    "explaining_failed_start",
    "hinting_at_long_wait",
    "raised_stop_iteration",
    "require_sendable",
    "sendable",
    "sigterm_held_back",
    "start_method",
    "worker_init_fn",
]

SECONDS_AFTER_SECOND_SIGTERM = 30.0
"""The time that launchers give a process before they kill it."""

SECONDS_BEFORE_HINT = 60
"""After this time without a batch from the workers, a line names the probable cause."""

_HINT = (
    "The workers of a loader have sent no batch in {} seconds. If none comes at all: libraries with threads, such as "
    'polars, wait forever in a process that was forked. Pass num_workers=0, or multiprocessing_context="forkserver".\n'
)
_SECONDS_BETWEEN_LOOKS = 1.0
_CAN_HOLD_BACK = hasattr(signal, "pthread_sigmask")  # not on Windows


@dataclass(frozen=True)
class WorkerStart:
    """Prepares a worker as a plain loader would, and then calls the ``worker_init_fn`` of the user.

    Attributes:
        worker_init_fn: The function of the user, or None.
    """

    worker_init_fn: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        """Prepare the worker with this number."""
        sigterm = _SigtermForMainProcess()
        end_with_main_process(sigterm)
        info: Any = get_worker_info()
        # Users reach their dataset through the worker info, which refuses plain assignment.
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if callable(signal.getsignal(signal.SIGTERM)):  # inherited, if the worker was forked
            signal.signal(signal.SIGTERM, sigterm)
        if _CAN_HOLD_BACK:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


class _SigtermForMainProcess:
    """Leaves SIGTERM to the main process if the script handles it, because launchers send it to all processes.

    Several signals may arrive while the main process saves a state. But a stuck worker must not keep the main process
    from ending, so some time after the second signal the worker ends. Closing a loader sends a signal, too.
    """

    def __init__(self) -> None:
        self._has_come = False
        self.deadline: float = math.inf

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self._has_come:
            self.deadline = min(self.deadline, time.monotonic() + SECONDS_AFTER_SECOND_SIGTERM)
        self._has_come = True


def end_with_main_process(sigterm: _SigtermForMainProcess | None = None) -> None:
    """End this worker as soon as the process that started it is gone, even if it was killed; elsewhere do nothing.

    Torch's workers check this themselves, but not while they wait with a finished batch. And they check the process
    that forked them, which with ``"forkserver"`` is not the main process, or the process that has adopted them if the
    main process was killed during the start.

    Args:
        sigterm: The handler of SIGTERM in this worker, which knows when the worker has to end in any case.
    """
    main = multiprocessing.parent_process()
    if main is not None:
        threading.Thread(target=_end_with, args=(main, sigterm), name="pa_data main process watch", daemon=True).start()


def _end_with(main: BaseProcess, sigterm: _SigtermForMainProcess | None) -> None:
    is_child = os.getppid() == main.pid
    while main.is_alive() and not (is_child and os.getppid() != main.pid):
        if sigterm is not None and time.monotonic() > sigterm.deadline:
            break
        # Returns as soon as it is gone, unless another process has inherited what tells: then the next look shows it.
        main.join(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


@contextmanager
def sigterm_held_back() -> Generator[None]:
    """Delay SIGTERM within the block, in which workers are started, until the workers can handle it.

    Until then, torch's own handler would end them, and the run with them.
    """
    if not _CAN_HOLD_BACK:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # which workers inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_ENDED = re.compile(r"DataLoader worker .*(exited unexpectedly|is killed)", re.DOTALL)


def start_method(context: str | BaseContext | None = None) -> str:
    """Return how worker processes are started: ``"fork"``, ``"spawn"`` or ``"forkserver"``.

    Use it to check whether a dataset must be picklable; with ``"fork"``, it need not be. Unlike
    ``multiprocessing.get_start_method()``, the call does not fix the method for the rest of the script.

    Args:
        context: The ``multiprocessing_context`` of a loader: the name of a method, which is returned unchecked, or a
            context of ``multiprocessing``. The default, None, means the method of this process, as it does for a
            loader.

    Returns:
        The name of the method. If the script has not chosen a method, it is Python's default on this system.

    Example:
        >>> from pa_data import start_method
        >>> start_method("spawn")
        'spawn'
        >>> start_method() in ("fork", "spawn", "forkserver")
        True
    """
    if isinstance(context, str):
        return context
    chosen = (context or multiprocessing).get_start_method(allow_none=True)
    return multiprocessing.get_all_start_methods()[0] if chosen is None else chosen


@contextmanager
def explaining_failed_start(context: str | BaseContext | None, sent: Mapping[str, object]) -> Generator[None]:
    """Explain the errors of workers that end before their first batch, since everything they need must be sent to them.

    Args:
        context: The ``multiprocessing_context`` of the loader.
        sent: The objects that are sent to the workers, by the names that users know.

    Raises:
        DataError: An object could not be pickled, or a worker has ended.
    """
    try:
        yield
    except (PicklingError, AttributeError, TypeError, RuntimeError, OSError, EOFError) as error:
        method = start_method(context)
        if method == "fork":
            raise
        if isinstance(error, BrokenPipeError | ConnectionError | EOFError) or _ENDED.search(str(error)):
            raise DataError(
                f"The workers of a loader could not start. Got processes that are started by {method!r}, and a "
                f"worker that ended before its first batch; its output is above ({type(error).__name__}). Put "
                'what loads and trains under if __name__ == "__main__":, and move classes that were defined in a '
                "notebook to a file; or load without workers: num_workers=0."
            ) from error
        for name, value in sent.items():
            if not _can_be_pickled(value):
                kind = getattr(value, "__qualname__", type(value).__name__)
                raise DataError(
                    f"The {name} cannot be sent to the workers of a loader. Got the {name} {kind}, processes that "
                    f"are started by {method!r}, and {type(error).__name__}: {error}. Replace lambdas and local "
                    f"functions in the {name} by functions at the top level of a file, or load without workers: "
                    "num_workers=0."
                ) from error
        raise


@contextmanager
def hinting_at_long_wait(context: str | BaseContext | None) -> Generator[None]:
    """Print the probable cause if the workers make no batch for a long time within the block.

    Args:
        context: The ``multiprocessing_context`` of the loader.
    """
    if start_method(context) != "fork":
        yield
        return
    timer = threading.Timer(SECONDS_BEFORE_HINT, sys.stderr.write, (_HINT.format(SECONDS_BEFORE_HINT),))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _can_be_pickled(value: object) -> bool:
    try:
        ForkingPickler.dumps(value)
    except Exception:
        return False
    return True


_SENT: set[type] = {Tensor, str, bytes, bool, int, float, complex, type(None)}
"""Types whose objects can all be sent; a type is added when an object of it was sent."""


def raised_stop_iteration(error: StopIteration) -> DataError:
    """Return the error to raise in place of a ``StopIteration`` from a sample, which would end the epoch.

    Args:
        error: The error of a dataset or a ``collate_fn``.
    """
    raised = DataError(
        "A sample or its collation raised StopIteration, which would have ended the epoch. Got "
        f"{''.join(traceback.format_tb(error.__traceback__)[-1:]).strip()}. Find the call of next() for which there "
        "is nothing left, or give it a default."
    )
    for note in getattr(error, "__notes__", ()):
        raised.add_note(note)
    return raised


def sendable(error: Exception) -> Exception:
    """Return an error that can be sent to the main process: the error itself, or a ``RuntimeError`` with its full text.

    An error whose class is local to a function would not arrive, and the main process would wait forever. For an
    ``ExceptionGroup``, and for other errors that torch cannot create again, a ``TypeError`` of torch would arrive.

    Args:
        error: The error of a dataset.
    """
    if _can_be_pickled(type(error)) and _can_be_made_again(type(error)):
        return error
    return RuntimeError("".join(traceback.format_exception(error)))


def _can_be_made_again(kind: Callable[..., Exception]) -> bool:
    """Return whether the main process can create an error of a class, to which torch may pass ``message=``."""
    if not getattr(kind, "message", None):
        return True
    try:
        kind(message="")
    except Exception:
        return False
    return True


def require_sendable(batch: object) -> None:
    """Raise an error for a batch that cannot be sent to the main process, which would wait for it forever.

    Args:
        batch: The batch of a worker.

    Raises:
        DataError: A part of the batch cannot be pickled.
    """
    kind = type(batch)
    if kind in _SENT:
        return
    if isinstance(batch, (list, tuple, set, frozenset)):
        for part in cast("list[object]", batch):
            require_sendable(part)
    elif isinstance(batch, Mapping):
        for key, part in cast("Mapping[object, object]", batch).items():
            require_sendable(key)
            require_sendable(part)
    elif dataclasses.is_dataclass(batch):
        for field in dataclasses.fields(batch):
            require_sendable(getattr(batch, field.name, None))
    elif _can_be_pickled(batch):
        _SENT.add(kind)
        return
    else:
        raise _cannot_be_sent(batch)
    if not _can_be_pickled(kind):  # of a container
        raise _cannot_be_sent(batch)


def _cannot_be_sent(part: Any) -> DataError:
    return DataError(
        f"A batch cannot be sent from a worker to the main process. Got a {type(part).__qualname__} of "
        f"{type(part).__module__} in the batch, which cannot be pickled. Return tensors, numbers, strings, and "
        "objects of classes at the top level of a file; or load without workers: num_workers=0."
    )


def worker_init_fn(worker_id: int) -> None:
    """Give each worker of each process different random numbers in Python's ``random``, NumPy and torch.

    Pass it as ``worker_init_fn`` to a plain ``DataLoader`` of torch, which calls it once in each worker process, before
    the first sample. If all processes of a run use the same seed, torch gives the same seed to the first worker of each
    process, and all processes augment their samples in the same way. With this function the rank, read from the
    environment variable ``RANK`` that ``torchrun`` sets, is a part of the seed; without the variable it is 0. The rest
    of the seed comes from torch's global generator in the main process, as usual.

    The function also ends the worker as soon as the main process is gone, even if the main process was killed. A
    ``KeyedDataLoader`` does both by itself, and does not need this function.

    Args:
        worker_id: The worker number, from 0. The loader passes it.

    Raises:
        ValueError: The ``RANK`` variable is not an integer.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from pa_data import worker_init_fn
        >>> loader = DataLoader(range(8), batch_size=4, num_workers=2, worker_init_fn=worker_init_fn)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    end_with_main_process()
    # From the environment, as a worker is not a member of the process group.
    rank = int(os.environ.get("RANK", "0"))
    seed_rng(mix(torch.initial_seed(), worker_id, rank))
