"""The reducers that a trial wraps: reset, fed by the user, and reduced over all processes at the end of a workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, TypeVar, cast, overload

from typing_extensions import override

from pa_distributed import gather_objects
from pa_trial.errors import InvalidHP, MetricReducerError, UsageError
from pa_trial.metric_values import hold, to_host, to_result
from pa_trial.reducer import MetricReducer
from pa_trial.types import Metrics

_ReducerT = TypeVar("_ReducerT", bound=MetricReducer)
_T = TypeVar("_T")
_MISSING = object()


class CallableReducer(MetricReducer):
    """Collects values, and passes the values from all processes to a function when a workload or a validation ends.

    ``context.wrap_reducer`` returns it if you pass a function, so you rarely create one yourself. Call ``update`` in
    ``train_batch`` or ``evaluate_batch``. The function is passed a flat list of the values. They are in the order in
    which a single process would have seen them, provided that ``update`` is called once for each batch. Tensors in the
    list are on the CPU. If all values together would take too much memory, derive from ``MetricReducer`` instead.

    Args:
        function: A function of the list of all values that returns the metric, or a dictionary of metrics by name if
            the reducer is wrapped without a name.

    Attributes:
        function: As passed.

    Example:
        >>> from pa_trial import CallableReducer
        >>> largest = CallableReducer(max)
        >>> largest.update(2)
        >>> largest.update(3)
        >>> largest.cross_slot_reduce([largest.per_slot_reduce(), [5, 1]])  # fit calls both, here for two processes
        5
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self.function = function
        self._values: list[Any] = []

    def update(self, value: Any) -> None:
        """Add a value; call it in ``train_batch`` or ``evaluate_batch``, once for each batch.

        Args:
            value: Anything that can be pickled. A tensor is copied and stays on its device until the workload ends, so
                adding it does not wait for a GPU.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     worst = context.wrap_reducer(max, name="worst_loss", for_training=False)  # in __init__ of the trial
            ...     worst.update(0.5)  # in evaluate_batch
        """
        self._values.append(hold(value))

    @override
    def reset(self) -> None:
        """Forget all collected values.

        ``fit`` calls it before each training workload and each validation; you need not call it yourself.
        """
        self._values = []

    @override
    def per_slot_reduce(self) -> list[Any]:
        """Return the collected values of this process, with tensors on the CPU.

        ``fit`` calls it on each process at the end of a training workload or a validation; you need not call it
        yourself.

        Returns:
            A list of the values, in the order of the ``update`` calls.
        """
        return cast("list[Any]", to_host(self._values))

    @override
    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        """Return the result of the function for the values of all processes.

        ``fit`` calls it on each process after ``per_slot_reduce``; you need not call it yourself. See the example in
        `CallableReducer`.

        Args:
            per_slot_metrics: The values of each process, in the order of the ranks. The function is passed the first
                value of each process, then the second value of each process, and so on.

        Returns:
            The metric that the function returns, or a dictionary of metrics by name.
        """
        interleaved = chain.from_iterable(zip_longest(*per_slot_metrics, fillvalue=_MISSING))
        return self.function([value for value in interleaved if value is not _MISSING])


@dataclass(frozen=True)
class _Wrapped:
    reducer: MetricReducer
    name: str | None
    for_training: bool
    for_validation: bool

    @property
    def label(self) -> str:
        """The name in messages: the class or function, with the name of the metric if it has a name."""
        reducer = self.reducer
        function = reducer.function if isinstance(reducer, CallableReducer) else type(reducer)
        label = str(getattr(function, "__name__", type(function).__name__))
        return label if self.name is None else f"{label} (name={self.name!r})"


class MetricReducers:
    """All reducers of a trial.

    Example:
        >>> reducers = MetricReducers()
        >>> total = reducers.wrap(sum, name="total")
        >>> reducers.reset()
        >>> total.update(2)
        >>> reducers.exchange("own", training=True)
        (['own'], {'total': 2})
    """

    def __init__(self) -> None:
        self._wrapped: list[_Wrapped] = []

    def wrap(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: object = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Let a reducer take part; see ``WrapsReducers.wrap_reducer``."""
        wrapped = _as_reducer(reducer)
        if name is not None and not isinstance(name, str):
            raise UsageError(f"The name of a reducer must be a string or None, got name={name!r}.")
        if any(wrapped is other.reducer for other in self._wrapped):
            problem = f"A reducer was wrapped twice: {type(wrapped).__name__}, name={name!r}."
            raise UsageError(problem, do="Create another instance for the second metric.")
        self._wrapped.append(_Wrapped(wrapped, name, for_training, for_validation))
        return wrapped

    def reset(self) -> None:
        """Reset all of them, even if they do not take part in the workload that begins."""
        for wrapped in self._wrapped:
            _call(wrapped, "reset", wrapped.reducer.reset)

    def exchange(self, own: _T, *, training: bool) -> tuple[list[_T], Metrics]:
        """Exchange a value, and the values of the reducers that take part; every process must call this.

        Args:
            own: The value of this process.
            training: True for a training workload, False for a validation.

        Returns:
            The values of all processes, in the order of the ranks; and the metrics of the reducers.

        Raises:
            MetricReducerError: A reducer raised an error, which is its cause, or returned a dictionary although it has
                a name, or no dictionary although it has no name.
        """
        taking_part = [
            wrapped for wrapped in self._wrapped if (wrapped.for_training if training else wrapped.for_validation)
        ]
        held = to_host([_call(wrapped, "per_slot_reduce", wrapped.reducer.per_slot_reduce) for wrapped in taking_part])
        of_each = gather_objects((own, held))
        metrics: Metrics = {}
        for index, wrapped in enumerate(taking_part):
            values = [held[index] for _, held in of_each]
            result = _call(wrapped, "cross_slot_reduce", wrapped.reducer.cross_slot_reduce, values)
            metrics.update(_named(wrapped, result))
        return [wrapped for wrapped, _ in of_each], {name: to_result(value) for name, value in metrics.items()}


class WrapsReducers(ABC):
    """The part of a context with ``wrap_reducer``."""

    @abstractmethod
    def _reducers(self) -> MetricReducers:
        """Return the reducers of the trial."""

    @overload
    def wrap_reducer(
        self, reducer: _ReducerT, name: str | None = None, for_training: bool = True, for_validation: bool = True
    ) -> _ReducerT: ...

    @overload
    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> CallableReducer: ...

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Register a metric reducer, whose result is added to the metrics at the end of a workload or a validation.

        Call it in ``__init__`` of the trial, for a metric that is not simply the mean over the batches, such as an F1
        score. Then collect values in ``train_batch`` or ``evaluate_batch``: if you passed a function, call ``update``
        of the returned reducer; if you passed your own ``MetricReducer``, call the method that you have added to it.

        Args:
            reducer: An instance of a class that derives from ``MetricReducer``, or a function of the list of all values
                that were collected on all processes.
            name: The name of the metric. The default, None, is for a reducer that returns a dictionary of metrics by
                name.
            for_training: Whether its result is added to the training metrics, by default True.
            for_validation: Whether its result is added to the validation metrics, by default True. If you collect
                values in only one of ``train_batch`` and ``evaluate_batch``, pass False for the other.

        Returns:
            The same reducer; for a function, a ``CallableReducer``, which has an ``update(value)`` method.

        Raises:
            InternalException: The ``with`` block of ``init`` has ended.
            UsageError: ``reducer`` is a class or not callable, is wrapped already, or the name is not a string.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init() as context:
            ...     worst = context.wrap_reducer(max, name="worst_loss", for_training=False)
            ...     worst.update(0.5)  # in evaluate_batch
        """
        return cast("MetricReducer", self._reducers().wrap(reducer, name, for_training, for_validation))


def _as_reducer(reducer: Any) -> MetricReducer:
    if isinstance(reducer, MetricReducer):
        return reducer
    if MetricReducer in getattr(reducer, "__mro__", ()):
        problem = f"wrap_reducer was given a class: {reducer.__name__}."
        raise UsageError(problem, do=f"Add the parentheses that create it: wrap_reducer({reducer.__name__}()).")
    if not callable(reducer):
        problem = f"wrap_reducer was given something that cannot reduce: {type(reducer).__name__} {reducer!r}."
        raise UsageError(problem, do="Subclass MetricReducer, or pass a function such as np.mean.")
    return CallableReducer(reducer)


def _call(wrapped: _Wrapped, method: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except InvalidHP:
        raise
    except Exception as error:
        raise MetricReducerError(f"The metric reducer {wrapped.label} failed in {method}: {error}") from error


def _named(wrapped: _Wrapped, result: Any) -> Metrics:
    if wrapped.name is not None:
        if not isinstance(result, dict):
            return {wrapped.name: result}
        raise MetricReducerError(
            f"The metric reducer {wrapped.label} was wrapped with name set but it returned a dict anyway.",
            given=f"the names {list(cast('Metrics', result))}",
            do="Return the value itself, or call wrap_reducer without a name.",
        )
    if isinstance(result, dict):
        return cast("Metrics", result)
    raise MetricReducerError(
        f"The metric reducer {wrapped.label} was wrapped with name=None but it did not return a dict.",
        given=f"{type(result).__name__} {result!r}",
        do="Pass the name of the metric to wrap_reducer, or return a dictionary.",
    )
