"""What is looked at when callbacks are registered: that they are callbacks, and that their methods are events."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any

from pa_core.errors import ArgumentTypeError
from pa_core.user_warnings import warn_user

_SURELY_A_TYPO = 0.85


def require_iterable(callbacks: object, base: type) -> None:
    """Raise an error for callbacks that are not in a list.

    Args:
        callbacks: What was given as callbacks.
        base: ``TrainerCallback``.

    Raises:
        ArgumentTypeError: They are not.
    """
    if isinstance(callbacks, Iterable):
        return
    if _is_callback(callbacks, base):
        shown = callbacks.__name__ if isinstance(callbacks, type) else f"{type(callbacks).__name__}(...)"
        raise ArgumentTypeError(
            "The callbacks are not in a list.",
            given=f"callbacks={shown}",
            do=f"Put it into a list: callbacks=[{shown}].",
        )
    raise ArgumentTypeError(
        "The callbacks are not a list.",
        given=f"callbacks={callbacks!r}",
        do="Pass callbacks=[] for none, or leave the argument out for the default ones.",
    )


def require_callback(callback: object, base: type) -> None:
    """Raise an error for anything that is not a callback, or a class that cannot be constructed without arguments.

    Args:
        callback: What was given as a callback.
        base: ``TrainerCallback``.

    Raises:
        ArgumentTypeError: It is not.
    """
    if not _is_callback(callback, base):
        kind = callback if isinstance(callback, type) else type(callback)
        is_users_class = kind.__module__ != "builtins"
        raise ArgumentTypeError(
            "An object in the list of callbacks is not a callback.",
            given=repr(callback),
            expected="an instance or a subclass of TrainerCallback",
            do=f"Derive {kind.__name__} from TrainerCallback." if is_users_class else "Take it out of the list.",
        )
    if isinstance(callback, type) and (missing := _required_arguments(callback)):
        raise ArgumentTypeError(
            f"{callback.__name__} cannot be created without arguments.",
            given=f"the class {callback.__name__}",
            do=f"Create it: {callback.__name__}({', '.join(f'{name}=...' for name in missing)}).",
        )


def _is_callback(value: object, base: type) -> bool:
    return isinstance(value, base) or (isinstance(value, type) and issubclass(value, base))


def _required_arguments(kind: type) -> list[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(kind).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variable]


def implements(callback: object, event: str, base: type) -> bool:
    """Return whether a callback has an event, and not only inherits it.

    Args:
        callback: The callback.
        event: The name of the event.
        base: ``TrainerCallback``.
    """
    method = getattr(callback, event, None)
    inherited = getattr(base, event, None)
    return method is not None and getattr(method, "__func__", method) is not inherited


def with_known_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """Leave out what an event passes beyond its documented arguments where a callback takes no ``**kwargs``.

    Args:
        method: The bound method.
    """
    parameters = inspect.signature(method).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return method
    names = {one.name for one in parameters}

    @wraps(method)
    def listener(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **{name: value for name, value in kwargs.items() if name in names})

    return listener


def unknown_events(callback: object, events: Collection[str]) -> dict[str, str]:
    """Map the ``on_`` methods of a callback that are not events of the trainer to the nearest event.

    Args:
        callback: The callback.
        events: The names of all events.
    """
    named = [name for name in dir(callback) if name.startswith("on_") and name not in events]
    unknown = [name for name in named if callable(getattr(type(callback), name, None))]
    return {name: difflib.get_close_matches(name, events, n=1, cutoff=0.0)[0] for name in unknown}


def is_surely_a_typo(name: str, nearest: str) -> bool:
    """Return whether a method is meant to be an event; others may be custom events, and are warned about later.

    Args:
        name: Its name.
        nearest: The name of the nearest event.
    """
    return difflib.SequenceMatcher(None, name, nearest).ratio() >= _SURELY_A_TYPO


def warn_of_unknown_event(callback: object, name: str, nearest: str) -> None:
    """Point at a method that is never called, in its class: that is what has to be renamed.

    Args:
        callback: The callback.
        name: The name of the method.
        nearest: The name of the nearest event.
    """
    message = (
        f"{type(callback).__name__}.{name} is never called: no event has this name. The nearest event is {nearest}."
    )
    code = getattr(inspect.unwrap(getattr(type(callback), name)), "__code__", None)
    if code is None:
        warn_user(message)
    else:
        warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno)
