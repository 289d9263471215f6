"""What a thread is doing, by its stack: whether it waits for other processes, and in which line of whose."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import torch

__all__ = ["BACKWARD", "Activity", "activity_of", "stack_of"]

BACKWARD: Final = "the exchange of gradients"
"""Where a thread is in a backward pass or behind it: it computes, and waits for the gradients of the others."""

_TORCH = str(Path(torch.__file__).parent)
_COLLECTIVES = (str(Path(_TORCH, "distributed")), str(Path(_TORCH, "nn", "parallel", "distributed.py")))
_GRADIENTS = str(Path(__file__).with_name("gradient_exchange.py"))
_OURS = str(Path(__file__).parents[1])
_LIBRARIES = (_OURS, _TORCH, str(Path(_TORCH).with_name("accelerate")), str(Path(os.__file__).parent), "<")


class Activity(NamedTuple):
    """What a thread is doing.

    Attributes:
        exchange: What it waits in for other processes, such as "all_gather"; empty where it does not wait.
        event: The callback that it is in, such as "on_train_step_end of MyCallback"; empty outside of them.
        line: The innermost line that belongs to none of the libraries, such as "script.py:31"; empty without one.
    """

    exchange: str
    event: str
    line: str

    def describe(self) -> str:
        """Return what it is in, in words."""
        where = ", in ".join(filter(None, (self.exchange, self.event)))
        return f"{where} ({self.line})" if where and self.line else where or self.line


def activity_of(thread: int) -> Activity:
    """Return what a thread is doing.

    Args:
        thread: Its identifier, as ``threading.get_ident`` returns it there.
    """
    exchange = event = line = ""
    for number, frame in enumerate(_frames(thread)):
        code = frame.f_code
        if number == 0 and code.co_filename.startswith(_COLLECTIVES):
            exchange = code.co_name
        elif number == 0 and (code.co_name == "_engine_run_backward" or code.co_filename == _GRADIENTS):
            exchange = BACKWARD
        if not line and not code.co_filename.startswith(_LIBRARIES):
            line = f"{Path(code.co_filename).name}:{frame.f_lineno}"
        if not event and code.co_name.startswith("on_") and "." in code.co_qualname:
            event = f"{code.co_name} of {code.co_qualname.split('.')[-2]}"
    return Activity(exchange, event, line)


def stack_of(thread: int) -> str:
    """Return the stack of a thread as text, the innermost call last.

    Args:
        thread: Its identifier.
    """
    return "".join(traceback.format_stack(next(_frames(thread), None)))


def _frames(thread: int) -> Iterator[FrameType]:
    """The frames of a thread from the innermost one on; their variables are left alone, so that none lives longer."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]  # documented in spite of its name
    while frame is not None:
        yield frame
        frame = frame.f_back
