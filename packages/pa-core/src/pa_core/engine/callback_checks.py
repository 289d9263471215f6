"""Checks of callbacks when they are registered: their types, and the names of their methods."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from types import FunctionType
from typing import Any

from pa_core._tensors import missing_methods
from pa_core.errors import ArgumentTypeError
from pa_core.steps.input_checks import required_arguments
from pa_core.user_warnings import warn_user

_SURELY_A_TYPO = 0.85


def require_iterable(callbacks: object, base: type) -> None:
    """Raise an error for callbacks that are not in a list.

    Args:
        callbacks: The argument of a trainer.
        base: ``TrainerCallback``.

    Raises:
        ArgumentTypeError: The callbacks are not in a list.
    """
    if not isinstance(callbacks, Iterable):
        shown = callbacks.__name__ if isinstance(callbacks, type) else f"{type(callbacks).__name__}(...)"
        is_callback = _is_callback(callbacks, base)
        raise ArgumentTypeError(
            "The callbacks are not in a list.",
            given=f"callbacks={shown if is_callback else repr(callbacks)}",
            do=f"Put it into a list: callbacks=[{shown}]."
            if is_callback
            else "Pass callbacks=[] for none, or leave the argument out for the default callbacks.",
        )


def require_callback(callback: object, base: type) -> None:
    """Raise an error for an object that is not a callback, or a class that needs arguments.

    Args:
        callback: An item of the callbacks.
        base: ``TrainerCallback``.

    Raises:
        ArgumentTypeError: The object is not a callback, or a class that needs arguments.
    """
    if not _is_callback(callback, base):
        kind = callback if isinstance(callback, type) else type(callback)
        is_users_class = kind.__module__ != "builtins"
        raise ArgumentTypeError(
            "An object in the list of callbacks is not a callback.",
            given=repr(callback),
            expected="an instance or a subclass of TrainerCallback",
            do=f"Derive {kind.__name__} from TrainerCallback." if is_users_class else "Remove it from the list.",
        )
    if isinstance(callback, type) and (missing := required_arguments(callback)):
        raise ArgumentTypeError(
            f"{callback.__name__} cannot be created without arguments.",
            given=f"the class {callback.__name__}",
            do=f"Create it: {callback.__name__}({', '.join(f'{name}=...' for name in missing)}).",
        )


def _is_callback(value: object, base: type) -> bool:
    return isinstance(value, base) or (isinstance(value, type) and issubclass(value, base))


def warn_of_half_a_state(callback: object) -> None:
    """Warn about a callback with only one of ``state_dict`` and ``load_state_dict``, which states leave out.

    Args:
        callback: The callback.
    """
    missing, kind = missing_methods(callback), type(callback).__name__
    if len(missing) == 1:
        there = "load_state_dict" if missing == ["state_dict"] else "state_dict"
        warn_user(
            f"{kind} has {there}() and no {missing[0]}(): training states leave its state out. Define both, or none."
        )


def implements(callback: object, event: str, base: type) -> bool:
    """Return whether a callback overrides an event.

    Args:
        callback: The callback.
        event: The name of the event.
        base: ``TrainerCallback``.
    """
    method = getattr(callback, event, None)
    inherited = getattr(base, event, None)
    return method is not None and getattr(method, "__func__", method) is not inherited


def may_request(callback: Any, event: str, base: type) -> bool:
    """Return whether a callback may stop the run, or request anything of all processes, in an event.

    The value of ``only_observes`` counts only if the class of the callback itself sets it, because a subclass may
    override events, and not for an event whose method was assigned to the instance.

    Args:
        callback: The callback.
        event: The name of the event.
        base: ``TrainerCallback``.
    """
    observes = callback.only_observes and "only_observes" in type(callback).__dict__ and event not in vars(callback)
    return not observes and implements(callback, event, base)


def with_known_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """Pass only the documented arguments of an event to a callback without ``**kwargs``.

    Args:
        method: The bound method.
    """
    function = getattr(method, "__func__", None)
    if (
        isinstance(function, FunctionType)
        and not hasattr(function, "__wrapped__")
        and function.__code__.co_flags & inspect.CO_VARKEYWORDS
    ):  # a signature takes ten times as long
        return method
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return method
    names = {parameter.name for parameter in parameters}

    @wraps(method)
    def listener(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **{name: value for name, value in kwargs.items() if name in names})

    return listener


def warn_of_unknown_events(
    callback: object, events: Collection[str], warned: set[tuple[type, str]], *, only_typos: bool = False
) -> None:
    """Warn about ``on_`` methods that are never called, at the line of their class.

    Args:
        callback: The callback.
        events: The names of all events.
        warned: Methods that were warned about before; further methods are added.
        only_typos: Whether to warn only about names that are surely misspelled events; others may be custom events.
    """
    kind = type(callback)
    named = [name for name in dir(callback) if name.startswith("on_") and name not in events]
    for name in named:
        nearest = difflib.get_close_matches(name, events, n=1, cutoff=_SURELY_A_TYPO if only_typos else 0.0)
        method = getattr(kind, name, None)
        if not nearest or (kind, name) in warned or not callable(method):
            continue
        warned.add((kind, name))
        message = f"{kind.__name__}.{name} is never called: no event has this name. The nearest event is {nearest[0]}."
        code = getattr(inspect.unwrap(method), "__code__", None)
        if code is None:
            warn_user(message)
        else:
            warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno)
