"""The events of a run, the class that listens to them, and the handler that calls the listeners.

The docstring of ``Trainer`` shows when each event fires in ``train()``. ``evaluate()`` fires ``on_prepare_start``, then
the events of an evaluation epoch between ``on_evaluation_run_start`` and ``on_evaluation_run_end``. ``predict()`` fires
``on_prepare_start``, ``on_prediction_run_start``, ``on_prediction_step_end`` after each batch, and
``on_prediction_run_end``.

``on_training_state_request`` and ``on_preemption`` fire after the update at which all processes know of such a request,
``on_training_state_save`` before a training state is captured. A run that resumes from a training state fires the start
events that came before it again (of the run, and of the epoch if it resumes within one), and then gives each callback
the state that it had. Before that, ``on_train_steps_passed_over`` fires if it resumes mid-epoch.

``StopTrainingError`` fires ``on_stop_training_error``, and the run then still ends through its last event. Any other
exception fires ``on_exception`` and leaves ``train()`` or ``evaluate()``; the last event does not fire.

Where a callback raises ``StopTrainingError``, the others are still called for the event. With one process, it is the
last event before those that end the run, and a ``NonFiniteLossError`` ends it at once, so that nobody reports or saves
such a loss. With several, events continue until all processes know of the stop: a callback that gathers would otherwise
wait for the process that stopped.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from abc import ABC
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeAlias, overload

from typing_extensions import TypeVar

from pa_core.errors import ArgumentTypeError, ConfigurationError, StopTrainingError
from pa_core.user_warnings import warn_user

if TYPE_CHECKING:
    from pa_core.any_trainer import AnyTrainer

__all__ = ["CallbackHandler", "CallbackLike", "StopTrainingError", "TrainerCallback"]

TrainerT_contra = TypeVar("TrainerT_contra", bound="AnyTrainer", default="AnyTrainer", contravariant=True)
BatchT_contra = TypeVar("BatchT_contra", default=Any, contravariant=True)
OutputT_contra = TypeVar("OutputT_contra", default=Any, contravariant=True)
_TrainerT = TypeVar("_TrainerT", bound="AnyTrainer", default="AnyTrainer")
_P = ParamSpec("_P")


class TrainerCallback(ABC, Generic[TrainerT_contra, BatchT_contra, OutputT_contra]):
    """Base class of everything that listens to the events of a run.

    Override the events that you need; those left alone are never called and cost nothing. The trainer is passed to
    each of them, and ``**kwargs`` takes what later versions may add.

    A callback with state that a resumed run needs (a best value, a counter) offers ``state_dict()``, of tensors and
    plain values, and ``load_state_dict()``. Both are called on every process; the state of the first one is kept.

    Attributes:
        joins_sanity_evaluation: Whether a copy of it is called in the evaluation that ``train(sanity_eval_steps=...)``
            runs before the first epoch; False for what would leave something behind, such as a line in a file.

    Example:
        >>> from pa_core import AnyTrainer, TrainerCallback
        >>> class CountUpdates(TrainerCallback):
        ...     updates = 0
        ...     def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
        ...         self.updates = update
    """

    joins_sanity_evaluation: bool = True

    def on_init_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called once, when the trainer has been constructed."""

    def on_prepare_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called in each run before the model is placed and wrapped: the moment to change its modules."""

    def on_training_run_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a training run starts; model, loaders, run config and scheduler are ready."""

    def on_train_epoch_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a training epoch starts."""

    def on_train_steps_passed_over(self, trainer: TrainerT_contra, steps: int, **kwargs: Any) -> None:
        """Called when a run resumes mid-epoch: once, or after each batch that a loader has to fetch again.

        Args:
            trainer: The trainer.
            steps: The number of steps of the epoch that are done.
            **kwargs: For later additions.
        """

    def on_train_step_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called before each training batch."""

    def on_train_step_end(
        self,
        trainer: TrainerT_contra,
        batch: BatchT_contra,
        batch_output: OutputT_contra,
        **kwargs: Any,
    ) -> None:
        """Called after the loss of a training batch was calculated, before its backward pass.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: What ``calculate_train_batch_loss`` returned.
            **kwargs: ``step``, the number of this batch in the epoch, from 1.
        """

    def on_optimizer_step_end(self, trainer: TrainerT_contra, update: int, **kwargs: Any) -> None:
        """Called after each optimizer update, when weights, scheduler and gradients are ready for the next one.

        An update that the gradient scaler of fp16 skipped is not an update, and does not fire this event.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: For later additions.
        """

    def on_train_epoch_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a training epoch has ended and its loss is recorded."""

    def on_eval_epoch_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when an evaluation epoch starts; ``is_intermediate=True`` in ``kwargs`` within a training epoch."""

    def on_eval_step_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called before each evaluation batch."""

    def on_eval_step_end(
        self,
        trainer: TrainerT_contra,
        batch: BatchT_contra,
        batch_output: OutputT_contra,
        **kwargs: Any,
    ) -> None:
        """Called after each evaluation batch.

        Args:
            trainer: The trainer.
            batch: The batch, on the device.
            batch_output: What ``calculate_eval_batch_loss`` returned.
            **kwargs: ``step``, the number of this batch in the epoch, from 1.
        """

    def on_eval_epoch_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when an evaluation epoch has ended and its loss is recorded."""

    def on_training_run_epoch_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called after the training epoch and, where there is one, the evaluation epoch that follows it."""

    def on_training_run_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a training run has ended, early or not, but not when an exception ended it."""

    def on_evaluation_run_start(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when ``evaluate()`` starts."""

    def on_evaluation_run_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when ``evaluate()`` has ended."""

    def on_prediction_run_start(self, trainer: TrainerT_contra, *, num_batches: int, **kwargs: Any) -> None:
        """Called when ``predict()`` starts; the model is ready.

        Args:
            trainer: The trainer.
            num_batches: How many batches this process is going to predict.
            **kwargs: For later additions.
        """

    def on_prediction_step_end(self, trainer: TrainerT_contra, *, batch_size: int, **kwargs: Any) -> None:
        """Called after each batch of a prediction.

        Args:
            trainer: The trainer.
            batch_size: The number of samples in the batch.
            **kwargs: For later additions.
        """

    def on_prediction_run_end(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when ``predict()`` has ended, even if its iterator was left early."""

    def on_stop_training_error(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when a ``StopTrainingError`` was raised; ``error`` in ``kwargs`` is that error."""

    def on_training_state_request(self, trainer: TrainerT_contra, update: int, **kwargs: Any) -> None:
        """Called when all processes know that one of them called ``trainer.request_training_state()``: save one.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: For later additions.
        """

    def on_preemption(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called when all processes know that the run is preempted: save a training state, which is waited for."""

    def on_training_state_save(self, trainer: TrainerT_contra, **kwargs: Any) -> None:
        """Called before a training state is captured: settle what is pending, such as losses not yet looked at."""

    def on_exception(self, trainer: TrainerT_contra, exception: BaseException, **kwargs: Any) -> None:
        """Called when an exception, ``KeyboardInterrupt`` included, is about to leave the run: close what is open.

        With several processes it may be called on one of them alone, and cannot communicate with the others.

        Args:
            trainer: The trainer.
            exception: What is about to leave the run.
            **kwargs: For later additions.
        """


CallbackLike: TypeAlias = "TrainerCallback[_TrainerT, Any, Any] | type[TrainerCallback[_TrainerT, Any, Any]]"

# A method this similar to an event is taken for a typo of it at once; others may be custom events, and
# are warned about when a run has ended without firing them.
_SURELY_A_TYPO = 0.85

EVENT_NAMES = frozenset(name for name in vars(TrainerCallback) if name.startswith("on_"))


class CallbackHandler(Generic[_TrainerT]):
    """Calls the registered callbacks, in the order in which they were given.

    Args:
        callbacks: Callback classes (which are constructed without arguments) or instances. Two of one class are an
            error: which of them would be meant by its name?

    Raises:
        ValueError: A callback of the same class is registered already.
        ArgumentTypeError: An object is not a callback, or the callbacks are not in a list.

    Example:
        >>> from pa_core import CallbackHandler, TrainerCallback
        >>> class Hello(TrainerCallback):
        ...     def greet(self, name: str) -> None:
        ...         print("hello", name)
        >>> CallbackHandler([Hello]).call_event("greet", name="reader")
        hello reader
    """

    def __init__(self, callbacks: Iterable[CallbackLike[_TrainerT]] = ()) -> None:
        self.callbacks: list[TrainerCallback[_TrainerT, Any, Any]] = []
        self._listeners: dict[str, list[Callable[..., Any]]] = {}
        self._fired: set[str] = set()
        self._warned: set[tuple[type, str]] = set()
        self.add_callbacks(callbacks)

    def add_callbacks(self, callbacks: Iterable[CallbackLike[_TrainerT]]) -> None:
        """Register several callbacks, in the order given."""
        _require_iterable(callbacks)
        for callback in callbacks:
            self.add_callback(callback)

    def add_callback(self, callback: CallbackLike[_TrainerT]) -> None:
        """Register a callback, to be called after those that are registered already.

        Args:
            callback: An instance, or a class that can be constructed without arguments.

        Raises:
            ConfigurationError: A callback of the same class is registered already.
            ArgumentTypeError: The object is not a callback, or a class whose constructor needs arguments.
        """
        _require_callback(callback)
        instance = callback() if isinstance(callback, type) else callback
        if any(type(other) is type(instance) for other in self.callbacks):
            registered = ", ".join(type(other).__name__ for other in self.callbacks)
            raise ConfigurationError(
                "There is a callback of this class already.",
                given=f"a second callback of class {type(instance).__name__}, besides {registered}",
                expected="one callback of each class",
                do="Remove one of the two, or subclass it for the second use.",
            )
        self.callbacks.append(instance)
        self._listeners.clear()
        for name, nearest in _unknown_events(instance).items():
            is_typo = difflib.SequenceMatcher(None, name, nearest).ratio() >= _SURELY_A_TYPO
            if is_typo and (type(instance), name) not in self._warned:
                self._warned.add((type(instance), name))
                _warn_of_unknown_event(instance, name, nearest)

    def remove_callback(self, callback: TrainerCallback[_TrainerT, Any, Any]) -> None:
        """Take a registered callback out again.

        Raises:
            ValueError: The callback is not registered.
        """
        self.callbacks.remove(callback)
        self._listeners.clear()

    @contextmanager
    def replaced_by(self, callbacks: Iterable[CallbackLike[_TrainerT]]) -> Generator[None]:
        """Within the context, call only the given callbacks; the registered ones are always restored."""
        registered = self.callbacks
        self.callbacks = []
        self._listeners.clear()
        try:
            self.add_callbacks(callbacks)
            yield
        finally:
            self.callbacks = registered
            self._listeners.clear()

    @overload
    def call_event(self, event: str, *args: Any, **kwargs: Any) -> None: ...
    @overload
    def call_event(self, event: Callable[Concatenate[Any, _P], None], *args: _P.args, **kwargs: _P.kwargs) -> None: ...
    def call_event(self, event: str | Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call one event on every callback that implements it.

        Args:
            event: The name of the method, or the method itself (``MyCallback.my_event``), with which type checkers
                compare the arguments.
            *args: Passed on.
            **kwargs: Passed on.
        """
        name = event if isinstance(event, str) else event.__name__
        for listener in self.listeners(name):
            listener(*args, **kwargs)

    def listeners(self, event: str) -> list[Callable[..., Any]]:
        """Return the bound methods that the event calls, in order; empty where none implements it."""
        bound = self._listeners.get(event)
        if bound is None:
            bound = [getattr(callback, event) for callback in self.callbacks if _implements(callback, event)]
            if event in EVENT_NAMES:
                bound = [_with_known_arguments(method) for method in bound]
            self._listeners[event] = bound
            self._fired.add(event)
        return bound

    def warn_of_unfired_events(self) -> None:
        """Warn about each ``on_`` method that was never called by the end of a run."""
        for callback in self.callbacks:
            for name, nearest in _unknown_events(callback).items():
                if name not in self._fired and (type(callback), name) not in self._warned:
                    self._warned.add((type(callback), name))
                    _warn_of_unknown_event(callback, name, nearest)


def _require_iterable(callbacks: object) -> None:
    if isinstance(callbacks, Iterable):
        return
    if _is_callback(callbacks):
        shown = callbacks.__name__ if isinstance(callbacks, type) else f"{type(callbacks).__name__}(...)"
        raise ArgumentTypeError(
            "The callbacks are not in a list.",
            given=f"callbacks={shown}",
            expected="an iterable of callbacks, which replaces the default ones",
            do=f"Put it into a list: callbacks=[{shown}].",
        )
    raise ArgumentTypeError(
        "The callbacks are not a list.",
        given=f"callbacks={callbacks!r}",
        expected="an iterable of callbacks",
        do="Pass callbacks=[] for none, or leave the argument out for the default ones.",
    )


def _require_callback(callback: object) -> None:
    """Raise an error for anything that is not a callback, or a class that cannot be constructed without arguments."""
    if not _is_callback(callback):
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
            expected=f"an instance of it, created with {', '.join(missing)}",
            do=f"Create it: {callback.__name__}({', '.join(f'{name}=...' for name in missing)}).",
        )


def _is_callback(value: object) -> bool:
    return isinstance(value, TrainerCallback) or (isinstance(value, type) and issubclass(value, TrainerCallback))


def _required_arguments(kind: type) -> list[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(kind).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variable]


def _implements(callback: TrainerCallback[Any, Any, Any], event: str) -> bool:
    method = getattr(callback, event, None)
    inherited = getattr(TrainerCallback, event, None)
    return method is not None and getattr(method, "__func__", method) is not inherited


def _with_known_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """Leave out what an event passes beyond its documented arguments where a callback takes no ``**kwargs``."""
    parameters = inspect.signature(method).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return method
    names = {one.name for one in parameters}

    @functools.wraps(method)
    def listener(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **{name: value for name, value in kwargs.items() if name in names})

    return listener


def _unknown_events(callback: TrainerCallback[Any, Any, Any]) -> dict[str, str]:
    """Map the ``on_`` methods of a callback that are not events of the trainer to the nearest event."""
    named = [name for name in dir(callback) if name.startswith("on_") and name not in EVENT_NAMES]
    unknown = [name for name in named if callable(getattr(type(callback), name, None))]
    return {name: difflib.get_close_matches(name, EVENT_NAMES, n=1, cutoff=0.0)[0] for name in unknown}


def _warn_of_unknown_event(callback: TrainerCallback[Any, Any, Any], name: str, nearest: str) -> None:
    """Point at the method in its class: that is what has to be renamed."""
    message = (
        f"{type(callback).__name__}.{name} is never called: no event has this name. The nearest event is {nearest}."
    )
    code = getattr(inspect.unwrap(getattr(type(callback), name)), "__code__", None)
    if code is None:
        warn_user(message)
    else:
        warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno)
