"""Workers of data loaders: how they start, or why they cannot, what they do about SIGTERM, send, and draw."""

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
"""As long as launchers wait for a process before they kill it."""

SECONDS_BEFORE_HINT = 60
"""After this time without a batch from the workers, a line says what may keep them."""

_HINT = (
    "The workers of a loader have sent no batch in {} seconds. If none comes at all: libraries with threads, such as "
    'polars, wait forever in a process that was forked. Pass num_workers=0, or multiprocessing_context="forkserver".\n'
)
_SECONDS_BETWEEN_LOOKS = 1.0
_CAN_HOLD_BACK = hasattr(signal, "pthread_sigmask")  # not on Windows


@dataclass(frozen=True)
class WorkerStart:
    """Makes a worker look as under a plain loader, then calls the user's ``worker_init_fn``.

    Attributes:
        worker_init_fn: The user's function, if there is one.
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
    """Where the script handles SIGTERM, lets it: launchers send it to all processes, and torch's workers end by it.

    Several may come while the main process saves a state. But a worker that is stuck must not keep it from ending: the
    second one ends the worker after some time, the one of torch among them that comes when a loader is closed.
    """

    def __init__(self) -> None:
        self._has_come = False
        self.deadline: float = math.inf

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self._has_come:
            self.deadline = min(self.deadline, time.monotonic() + SECONDS_AFTER_SECOND_SIGTERM)
        self._has_come = True


def end_with_main_process(sigterm: _SigtermForMainProcess | None = None) -> None:
    """End this worker as soon as the process that started it is gone, no matter how that ended; does nothing elsewhere.

    Torch's workers look for it themselves, but not while they have a batch to hand over that nobody takes any more. And
    they look for the process that forked them: under ``"forkserver"`` that is another one, and where the main process
    was killed while a worker started, no matter which process adopted it.

    Args:
        sigterm: What handles SIGTERM in this worker, and knows when it has to end in any case.
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
    """Within the context, workers may be started: SIGTERM waits until they know what to do about it.

    Until then torch's own handler would end them, and the run with them.
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
    """Return how processes are started: ``"fork"``, ``"spawn"`` or ``"forkserver"``; calling this does not set it.

    Args:
        context: The ``multiprocessing_context`` of a loader; None for what holds in this process.

    Example:
        >>> start_method("spawn")
        'spawn'
    """
    if isinstance(context, str):
        return context
    chosen = (context or multiprocessing).get_start_method(allow_none=True)
    return multiprocessing.get_all_start_methods()[0] if chosen is None else chosen


@contextmanager
def explaining_failed_start(context: str | BaseContext | None, sent: Mapping[str, object]) -> Generator[None]:
    """Explain errors of workers that end before their first batch, as everything they need has to be sent to them.

    Args:
        context: The ``multiprocessing_context`` of the loader.
        sent: What is sent to the workers, by the name that users know it by.

    Raises:
        DataError: Something could not be pickled, or a worker ended by itself.
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
                f"worker that ended before its first batch; what it printed is above ({type(error).__name__}). Put "
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
    """Within the context, workers make their first batch: if none comes for long, print what may be the cause.

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
"""Types of which every object can be sent; a type joins them when an object of it was sent."""


def raised_stop_iteration(error: StopIteration) -> DataError:
    """Return the error in place of a ``StopIteration`` of a sample: a loader would take it for the end of the epoch.

    Args:
        error: What a dataset or a ``collate_fn`` raised.
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
    """Return an error that can be sent to the main process: itself, or a ``RuntimeError`` that tells all of it.

    Of an error whose class is local to a function, nothing would arrive, and the main process would wait forever. Of an
    ``ExceptionGroup``, and others that torch cannot make again, a ``TypeError`` of torch would arrive.

    Args:
        error: The error of a dataset.
    """
    if _can_be_pickled(type(error)) and _can_be_made_again(type(error)):
        return error
    return RuntimeError("".join(traceback.format_exception(error)))


def _can_be_made_again(kind: Callable[..., Exception]) -> bool:
    """Whether the main process can make an error of the class: torch passes ``message=`` if that is a name of it."""
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
        batch: What a worker has made.

    Raises:
        DataError: A part of it cannot be pickled.
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
    """Give each worker different RNG states: Python's ``random``, NumPy's and torch's.

    Pass it as ``worker_init_fn`` to a ``DataLoader`` that you make yourself. If every process of a run has the same
    seed, torch gives the first worker of each the same seed too, and all processes augment in step; here the rank is a
    part of the seed. As usual, it is torch's global generator that decides the seed.

    It also ends the worker as soon as the main process is gone, even if that was killed.

    A `KeyedDataLoader` does not need it, as it does both itself; there it does no harm.

    Args:
        worker_id: The number of the worker, as the loader passes it.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(range(8), batch_size=4, num_workers=2, worker_init_fn=worker_init_fn)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    end_with_main_process()
    # From the environment, as a worker is not a member of the process group.
    rank = int(os.environ.get("RANK", "0"))
    seed_rng(mix(torch.initial_seed(), worker_id, rank))
