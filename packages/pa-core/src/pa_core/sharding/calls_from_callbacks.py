"""Finds a callback that uses a sharded model on some processes only, before that mixes up what they exchange."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final, NamedTuple

from torch import nn
from typing_extensions import override

from pa_core.distributed.collectives import rank
from pa_core.distributed.meeting import Absent, MeetingPoint
from pa_core.errors import RanksDifferError
from pa_core.sharding.calls_for_all import is_told, not_compiled

__all__ = ["CallsFromCallbacks", "come_together"]

_LOSSES: Final = ("calculate_train_batch_loss", "calculate_eval_batch_loss")
"""In these, all processes call the model, as the loop sees to it, even in events of the script's own."""
_STEPS: Final = ("_run_train_step", "_run_eval_step")
"""In these too, but for the events that are called from them."""


class CallsFromCallbacks:
    """Lets all processes meet before a callback calls a sharded model; a call on only some raises an error.

    Each has a piece of the weights only, so that all must call it. One that did so alone would exchange its call for
    what the others exchange in their step: a crash without a message, or wrong values. Calls of a step cost a look at
    the stack.

    Args:
        model: The sharded model.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1)
        >>> calls = CallsFromCallbacks(model)  # on one process, there is nothing to find
        >>> _ = model(torch.ones(1))
        >>> calls.close()
    """

    def __init__(self, model: nn.Module) -> None:
        self._meeting = MeetingPoint()
        # Before the module gathers its pieces.
        self._hook = model.register_forward_pre_hook(not_compiled(self._before_call), prepend=True)

    def close(self) -> None:
        """Leave the model alone."""
        self._hook.remove()

    def _before_call(self, module: nn.Module, _inputs: object) -> None:
        event = None if is_told(module) else _event_under_way()
        if event is not None:
            _meet(self._meeting, "calls the model", event)


def come_together() -> None:
    """Let all processes come together before a callback brings the weights of a sharded model together.

    Raises:
        RanksDifferError: It does so on some of the processes only.
    """
    event = _event_under_way()
    if event is not None:
        _meet(MeetingPoint(), "brings the weights together", event)


class _Event(NamedTuple):
    """An event, and the class of the callback that it is called on."""

    name: str
    callback: str

    @override
    def __str__(self) -> str:
        return f"{self.name} of {self.callback}"


def _event_under_way() -> _Event | None:
    """The event in which a callback is about to call the model; None in the steps of a loop, and outside of events."""
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # documented in spite of its name
    event: _Event | None = None
    while frame is not None:
        code = frame.f_code
        if code.co_name in _LOSSES:
            return None
        if code.co_name in _STEPS:
            return event
        if event is None and code.co_name.startswith("on_") and code.co_argcount:
            listener: object = frame.f_locals.get(code.co_varnames[0])
            if hasattr(type(listener), "joins_sanity_evaluation"):  # a TrainerCallback, which is in a module above
                event = _Event(code.co_name, type(listener).__qualname__)
        frame = frame.f_back
    return event


def _meet(meeting: MeetingPoint, does: str, event: _Event) -> None:
    try:
        meeting.meet(f"{does} in {event}")
    except Absent as absent:
        raise RanksDifferError(
            "A callback has used a sharded model on some of the processes only.",
            given=f"rank {rank()} {does} in {event}; {absent}",
            do=f"In {event.callback}.{event.name}, use the model on all processes, even if only one needs what "
            "comes of it.",
        ) from None
