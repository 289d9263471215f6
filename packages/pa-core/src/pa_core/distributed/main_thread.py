"""What the thread of a run is doing, by its stack: whether it waits for other processes, and in which line of whose."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType

import torch
from typing_extensions import override

__all__ = ["Activity", "Waiting", "activity_of", "stack_of"]

_PACKAGE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_COLLECTIVES = (str(Path(_TORCH, "distributed")), str(Path(_TORCH, "nn", "parallel", "distributed.py")))
_LIBRARIES = (_PACKAGE, _TORCH, str(Path(_TORCH).with_name("accelerate")), str(Path(os.__file__).parent), "<")


class Waiting(Enum):
    """Whether a thread waits for other processes, as far as its stack tells."""

    NO = "no"
    PERHAPS = "perhaps"
    """It is in a backward pass, where it computes, and at the end waits for gradients."""
    YES = "yes"


@dataclass(frozen=True)
class Activity:
    """What a thread is doing.

    Attributes:
        waiting: Whether it waits for other processes.
        exchange: What it waits in, such as "all_gather"; empty where it does not wait.
        event: The callback that it is in, such as "on_train_step_end of MyCallback"; empty outside of them.
        line: The innermost line that belongs to none of the libraries, such as "script.py:31"; empty without one.
    """

    waiting: Waiting
    exchange: str
    event: str
    line: str

    @override
    def __str__(self) -> str:
        """What it is in, in words."""
        where = ", in ".join(filter(None, (self.exchange, self.event)))
        return f"{where} ({self.line})" if where and self.line else where or self.line


def activity_of(thread: int) -> Activity:
    """Return what a thread is doing.

    Args:
        thread: Its identifier, as ``threading.get_ident`` returns it there.
    """
    waiting, exchange, event, line = Waiting.NO, "", "", ""
    for number, frame in enumerate(_frames(thread)):
        code = frame.f_code
        if number == 0:
            waiting = _waiting_in(code.co_filename, code.co_name)
            exchange = {Waiting.NO: "", Waiting.PERHAPS: "the exchange of gradients"}.get(waiting, code.co_name)
        if not line and not code.co_filename.startswith(_LIBRARIES):
            line = f"{Path(code.co_filename).name}:{frame.f_lineno}"
        if not event and code.co_name.startswith("on_") and "." in code.co_qualname:
            event = f"{code.co_name} of {code.co_qualname.split('.')[-2]}"
    return Activity(waiting, exchange, event, line)


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


def _waiting_in(file: str, function: str) -> Waiting:
    if file.startswith(_COLLECTIVES):
        return Waiting.YES
    return Waiting.PERHAPS if function == "_engine_run_backward" else Waiting.NO
