"""Calls the callbacks of a trial, in their order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, Concatenate, ParamSpec, cast

from pa_trial.callback import PyTorchCallback
from pa_trial.errors import UsageError
from pa_trial.user_warnings import warn_user

_P = ParamSpec("_P")


class CallbackCalls:
    """The callbacks of a trial, in the order of their dictionary.

    Args:
        callbacks: The return value of ``build_callbacks``.

    Example:
        >>> class Greeting(PyTorchCallback):
        ...     def on_training_start(self) -> None:
        ...         print("hello")
        >>> CallbackCalls({"greeting": Greeting()}).call(PyTorchCallback.on_training_start)
        hello
    """

    def __init__(self, callbacks: Mapping[str, PyTorchCallback]) -> None:
        self._callbacks = dict(callbacks)
        base = PyTorchCallback.on_checkpoint_end
        overriding = [
            type(callback).__name__ for callback in callbacks.values() if type(callback).on_checkpoint_end is not base
        ]
        if overriding:
            warn_user(
                f"{overriding[0]}.on_checkpoint_end is deprecated. Override on_checkpoint_write_end instead, which is "
                "called at the same time.",
                DeprecationWarning,
            )
        self._older = [callback for callback in callbacks.values() if _is_without_index(callback)]
        if self._older:
            warn_user(
                f"{type(self._older[0]).__name__}.on_training_epoch_start without the index is deprecated. "
                "Give it the parameter epoch_idx.",
                DeprecationWarning,
            )

    def call(self, method: Callable[Concatenate[Any, _P], None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call a method of all callbacks.

        Args:
            method: The method of ``PyTorchCallback``.
            *args: Its arguments.
            **kwargs: Its arguments by name.
        """
        for callback in self._callbacks.values():
            call: Any = getattr(callback, method.__name__)
            if method is _ON_TRAINING_EPOCH_START and callback in self._older:
                call()
            else:
                call(*args, **kwargs)

    def describe(self) -> dict[str, str]:
        """Return the classes of the callbacks, by name, for a comparison of the processes."""
        return {f"callback {name}": type(callback).__qualname__ for name, callback in self._callbacks.items()}

    @contextmanager
    def started(self, first_batch_idx: int, checkpoint_uuid: str | None) -> Generator[ExitStack]:
        """Call ``on_trial_startup``; at the end of the block, call ``on_trial_shutdown`` in reverse order.

        A callback whose ``on_trial_startup`` raised an error is not shut down.

        Args:
            first_batch_idx: The index of the first batch to train.
            checkpoint_uuid: The name of the resumed checkpoint, or None.
        """
        with ExitStack() as shutdown:
            for callback in self._callbacks.values():
                callback.on_trial_startup(first_batch_idx, checkpoint_uuid)
                shutdown.callback(callback.on_trial_shutdown)
            yield shutdown


_ON_TRAINING_EPOCH_START = PyTorchCallback.on_training_epoch_start


def _is_without_index(callback: PyTorchCallback) -> bool:
    """Whether a callback has the old signature of ``on_training_epoch_start``, without the index of the epoch."""
    method = signature(callback.on_training_epoch_start)
    try:
        method.bind(0)
    except TypeError:
        return not any(parameter.default is parameter.empty for parameter in method.parameters.values())
    return False


def check_callbacks(returned: object) -> dict[str, PyTorchCallback]:
    """Return the callbacks of a trial, checked.

    Args:
        returned: The return value of ``build_callbacks``.

    Raises:
        UsageError: The value is not a dictionary of callbacks.
    """
    callbacks = dict(cast("Mapping[object, object]", returned)) if isinstance(returned, Mapping) else {}
    are_callbacks = (
        isinstance(key, str) and isinstance(callback, PyTorchCallback) for key, callback in callbacks.items()
    )
    if not isinstance(returned, Mapping) or not all(are_callbacks):
        do = 'Return a dictionary of instances of PyTorchCallback by their names, such as {"name": MyCallback()}.'
        raise UsageError(f"These are not callbacks of a trial: build_callbacks() returned {returned!r}.", do=do)
    return cast("dict[str, PyTorchCallback]", callbacks)
