"""What a worker sends to the main process: batches and errors that arrive, or an error that says why they cannot."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

from torch import Tensor

from pa_data.errors import ConfigurationError

__all__ = ["refusing_stop_iteration", "require_sendable", "sendable"]

_SENT: set[type] = {Tensor, str, bytes, bool, int, float, complex, type(None)}
"""Types of which every object can be sent; those of which one was sent join them."""


@contextmanager
def refusing_stop_iteration() -> Generator[None]:
    """Within the context, a ``StopIteration`` is an error: a loader would take it for the end of the epoch.

    Raises:
        ConfigurationError: Something raised one.
    """
    try:
        yield
    except StopIteration as error:
        raised = ConfigurationError(
            "A sample or its collation raised StopIteration, which would have ended the epoch.",
            given="".join(traceback.format_tb(error.__traceback__)[-1:]).strip(),
            do="Find the call of next() for which there is nothing left, or give it a default.",
        )
        for note in getattr(error, "__notes__", ()):
            raised.add_note(note)
        raise raised from error


def sendable(error: Exception) -> Exception:
    """Return an error that can be sent to the main process: itself, or a ``RuntimeError`` that tells all of it.

    Of an error whose class is local to a function, nothing would arrive, and the main process would wait forever.

    Args:
        error: The error of a dataset.
    """
    if _can_be_pickled(type(error)):
        return error
    return RuntimeError("".join(traceback.format_exception(error)))


def require_sendable(batch: object) -> None:
    """Raise an error for a batch that cannot be sent to the main process, which would wait for it forever.

    Args:
        batch: What a worker has made.

    Raises:
        ConfigurationError: A part of it cannot be pickled.
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


def _cannot_be_sent(part: Any) -> ConfigurationError:
    return ConfigurationError(
        "A batch cannot be sent from a worker to the main process.",
        given=f"a {type(part).__qualname__} of {type(part).__module__} in the batch, which cannot be pickled",
        do="Return tensors, numbers, strings, and objects of classes at the top level of a file; or load without "
        "workers: num_workers=0.",
    )


def _can_be_pickled(value: object) -> bool:
    try:
        ForkingPickler.dumps(value)
    except Exception:
        return False
    return True
