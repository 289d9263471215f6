"""The metrics of a validation: collected batch by batch, reduced over batches and processes at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from pa_trial.errors import ArgumentTypeError, EmptyLoaderError, InvalidExperimentException
from pa_trial.metric_values import (
    agreed_names,
    hold,
    metrics_by_name,
    numbers_of,
    on_host,
    require_json,
    to_host,
    to_result,
)
from pa_trial.reducer import Reducer
from pa_trial.types import Array, Metrics

_Partial: TypeAlias = tuple[Any, float]
"""A process's share of a metric: its sum, maximum or minimum, and its weight in a mean."""

ValidationPayload: TypeAlias = dict[str, _Partial] | None
"""The contribution of a process to each metric of a validation, by its name; None if it had no batch."""


class ValidationMetrics:
    """The return values of ``evaluate_batch`` in a validation; tensors stay on the device until it ends.

    Args:
        reducer: The return value of ``evaluation_reducer``.
        weigh_by_records: Whether ``Reducer.AVG`` weights each batch by its number of records, so that a metric does not
            depend on the number of processes. By default, all batches have the same weight.

    Raises:
        InvalidExperimentException: ``reducer`` is neither a ``Reducer`` nor a dictionary of them.

    Example:
        >>> metrics = ValidationMetrics(Reducer.AVG)
        >>> metrics.add({"loss": 4.0}, num_records=8)
        >>> metrics.add({"loss": 2.0}, num_records=1)
        >>> metrics.reduce([metrics.payload()])
        {'loss': np.float64(3.0)}
    """

    def __init__(self, reducer: Reducer | Mapping[str, Reducer], *, weigh_by_records: bool = False) -> None:
        _check_reducer(reducer)
        self._reducer = reducer
        self._weigh_by_records = weigh_by_records
        self._held: list[Metrics] = []
        self._num_records: list[int] = []

    def add(self, returned: Metrics, num_records: int = 1) -> None:
        """Keep the metrics of a batch.

        Args:
            returned: The return value of ``evaluate_batch``.
            num_records: The number of records of the batch.

        Raises:
            NoMetricsError: The value is not a dictionary.
            CheckFailedError: The names of its metrics are not the same as in earlier batches.
        """
        metrics = metrics_by_name(returned, "evaluate_batch")
        first = self._held[0] if self._held else metrics
        agreed_names("evaluate_batch", {"for the first batch": first, f"for batch {len(self._held)}": metrics})
        self._held.append({name: hold(value) for name, value in metrics.items()})
        self._num_records.append(num_records)

    def outputs(self) -> list[Metrics]:
        """Return the metrics of each batch of this process, tensors as NumPy arrays; it waits for the device."""
        return on_host(self._held)

    def payload(self) -> ValidationPayload:
        """Return the contribution of this process, for ``reduce``; it waits for the device.

        Raises:
            ArgumentTypeError: A metric does not consist of numbers.
        """
        batches = self.outputs()
        if not batches:
            return None
        return {name: self._partial(name, [batch[name] for batch in batches]) for name in batches[0]}

    def reduce(self, payloads: Sequence[ValidationPayload]) -> Metrics:
        """Return the metrics of the validation: NumPy scalars.

        Args:
            payloads: The payloads of all processes, in the order of the ranks.

        Raises:
            EmptyLoaderError: No process had a batch.
            CheckFailedError: The processes have metrics with different names.
            InvalidExperimentException: ``evaluation_reducer`` names other metrics than ``evaluate_batch``.
        """
        shares = {rank: payload for rank, payload in enumerate(payloads) if payload is not None}
        if not shares:
            problem = "The validation data loader has no batches."
            raise EmptyLoaderError(problem, do="Check the dataset of build_validation_data_loader, and its drop_last.")
        names = self._agreed_names(shares)
        return {name: _combined(self._reducer_of(name), [share[name] for share in shares.values()]) for name in names}

    def _partial(self, name: str, values: list[Any]) -> _Partial:
        reducer = self._reducer_of(name)
        arrays = [_number(name, value) for value in values]
        with np.errstate(all="ignore"):  # NaN and infinities are valid results
            if reducer is not Reducer.AVG:
                reduce = _REDUCTIONS[reducer]
                return reduce([reduce(array) for array in arrays]), 1
            weights = self._num_records if self._weigh_by_records else [array.size for array in arrays]
            means = [float(np.mean(array, dtype=np.float64)) for array in arrays]
            return sum(mean * weight for mean, weight in zip(means, weights, strict=True)), sum(weights)

    def _reducer_of(self, name: str) -> Reducer:
        return self._reducer if isinstance(self._reducer, Reducer) else self._reducer.get(name, Reducer.AVG)

    def _agreed_names(self, shares: Mapping[int, Mapping[str, _Partial]]) -> list[str]:
        names = agreed_names("evaluate_batch", {f"on rank {rank}": share for rank, share in shares.items()})
        if not isinstance(self._reducer, Reducer) and set(self._reducer) != set(names):
            raise InvalidExperimentException(
                "evaluation_reducer does not name the metrics that evaluate_batch returns.",
                given=f"reducers for {list(self._reducer)}, metrics {names}",
                do="Give each metric its Reducer, or return a single Reducer for all of them.",
            )
        return names


def metrics_of_full_dataset(returned: Metrics) -> Metrics:
    """Return the metrics of a validation by ``evaluate_full_dataset``, with NumPy values in place of tensors.

    Args:
        returned: The return value of ``evaluate_full_dataset``, on the chief.

    Raises:
        NoMetricsError: The value is not a dictionary.
        ArgumentTypeError: A metric cannot be written as JSON.
    """
    on_host: Metrics = to_host(metrics_by_name(returned, "evaluate_full_dataset"))
    metrics = {name: to_result(value) for name, value in on_host.items()}
    for name, value in metrics.items():
        require_json(value, name)
    return metrics


def _check_reducer(returned: object) -> None:
    reducers = list(cast("Mapping[str, object]", returned).values()) if isinstance(returned, Mapping) else [returned]
    for reducer in reducers:
        if not isinstance(reducer, Reducer):
            problem = f"evaluation_reducer must return Reducer.AVG, SUM, MAX or MIN, got {reducer!r}."
            raise InvalidExperimentException(problem, do="For other reductions use context.wrap_reducer.")


def _number(name: str, value: Any) -> Array:
    numbers = numbers_of(value)
    if numbers is None or numbers.size == 0:
        require_json(value, name)
        raise ArgumentTypeError(
            f"The validation metric {name!r} is not a number: {type(value).__name__} {value!r}.",
            do="Do not return it from evaluate_batch, or pass it to a reducer of context.wrap_reducer.",
        )
    return numbers


def _sum(values: Any) -> Any:
    array = np.asarray(values)
    return np.sum(array, dtype=np.float64 if array.dtype.kind == "f" else None)


_REDUCTIONS: dict[Reducer, Callable[[Any], Any]] = {Reducer.SUM: _sum, Reducer.MAX: np.max, Reducer.MIN: np.min}


def _combined(reducer: Reducer, partials: Sequence[_Partial]) -> Any:
    with np.errstate(all="ignore"):
        if reducer is not Reducer.AVG:
            result = _REDUCTIONS[reducer]([value for value, _ in partials])
            return np.float64(result) if result.dtype.kind == "f" else result
        total, weight = (sum(parts) for parts in zip(*partials, strict=True))
        return np.float64(total / weight) if weight else np.float64(np.nan)
