"""The metrics of a training workload: collected batch by batch, averaged over batches and processes at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pa_trial.errors import CheckFailedError
from pa_trial.metric_values import hold, metrics_by_name, numbers_of, on_host
from pa_trial.progress import TrialProgress
from pa_trial.types import Array, Metrics, TrainingMetrics


@dataclass(frozen=True)
class WorkloadPayload:
    """What one process contributes to the metrics of a workload: values on the host.

    Attributes:
        num_records: How many records were in its batches.
        batches: The metrics of each batch.
    """

    num_records: int
    batches: list[Metrics]


class WorkloadMetrics:
    """What ``train_batch`` returned in a workload; tensors stay on the device until the workload ends.

    Example:
        >>> metrics = WorkloadMetrics()
        >>> metrics.add({"loss": 4.0})
        >>> metrics.add({"loss": 2.0})
        >>> metrics.reduce([metrics.payload()])
        ({'loss': 3.0}, [{'loss': 4.0}, {'loss': 2.0}])
    """

    def __init__(self) -> None:
        self._batches: list[Metrics] = []
        self._num_records = 0

    def add(self, returned: TrainingMetrics, num_records: int = 0) -> None:
        """Keep the metrics of one batch.

        Args:
            returned: What ``train_batch`` returned.
            num_records: How many records the batch has.

        Raises:
            NoMetricsError: It returned neither a dictionary nor a tensor.
        """
        metrics = {"loss": returned} if isinstance(returned, Tensor) else metrics_by_name(returned, "train_batch")
        self._batches.append({name: hold(value) for name, value in metrics.items()})
        self._num_records += num_records

    def payload(self) -> WorkloadPayload:
        """Return what this process contributes, for ``reduce``. Reading tensors waits for the device."""
        return WorkloadPayload(self._num_records, on_host(self._batches))

    def reduce(self, payloads: Sequence[WorkloadPayload]) -> tuple[Metrics, list[Metrics]]:
        """Return the means over the workload, and the metrics batch by batch, each the mean over the processes.

        Args:
            payloads: Of all processes, in the order of the ranks.

        Raises:
            CheckFailedError: The batches have metrics of different names.
        """
        names = _agreed_names(payloads)
        batches = payloads[0].batches
        if len(payloads) > 1:
            of_ranks = zip(*(payload.batches for payload in payloads), strict=True)
            batches = [{name: _mean_of_values([one[name] for one in ranks]) for name in names} for ranks in of_ranks]
        return {name: _average([batch[name] for batch in batches]) for name in names}, batches


def add_counts(metrics: Metrics, progress: TrialProgress) -> None:
    """Add "batches" and "epochs" that were trained so far, unless the user has metrics of these names.

    Args:
        metrics: Is changed.
        progress: How far the training has come.
    """
    metrics.setdefault("batches", progress.batches_trained)
    metrics.setdefault("epochs", progress.epochs_trained)


def _agreed_names(payloads: Sequence[WorkloadPayload]) -> list[str]:
    first = payloads[0].batches[0] if payloads[0].batches else {}
    for rank, payload in enumerate(payloads):
        for index, batch in enumerate(payload.batches):
            if batch.keys() != first.keys():
                raise CheckFailedError(
                    "train_batch did not return metrics of the same names in all batches of a workload.",
                    given=f"{list(first)} in the first batch on rank 0, {list(batch)} in batch {index} on rank {rank}",
                    do="Return each metric in every batch; None if a batch has no value for it.",
                )
    return list(first)


def _mean_of_values(values: list[Any]) -> Any:
    """Return the mean of a metric of one batch over the processes."""
    there = [value for value in values if value is not None]
    numbers = [numbers_of(value) for value in there]
    if not there or any(array is None for array in numbers):
        return values[0]
    arrays = [array for array in numbers if array is not None]
    if any(array.shape != arrays[0].shape for array in arrays):
        arrays = [np.asarray(_mean_of_elements([array])) for array in arrays]
    with np.errstate(all="ignore"):
        mean: Array = np.asarray(np.mean(np.stack(arrays), axis=0, dtype=np.float64))
    return mean if isinstance(there[0], (np.ndarray, list, tuple)) else float(mean)


def _average(values: list[Any]) -> float | None:
    arrays = [numbers_of(value) for value in values if value is not None]
    known = [array for array in arrays if array is not None]
    return _mean_of_elements(known) if len(known) == len(arrays) else None


def _mean_of_elements(arrays: Sequence[Array]) -> float:
    elements = np.concatenate([np.empty(0), *map(np.ravel, arrays)])
    with np.errstate(all="ignore"):  # NaN and infinities are results as any others
        return float(np.mean(elements, dtype=np.float64)) if elements.size else math.nan
